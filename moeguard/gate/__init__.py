"""From evidence to a decision: what runs have shown, the allowlist that records it, and the policy that asks for it."""
