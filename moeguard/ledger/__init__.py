"""The ledger of known findings: entries, where each applies, and what it says of the findings of a run."""
