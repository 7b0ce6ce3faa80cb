"""What a campaign amounts to: outcome, frames, JUnit, Markdown and HTML, all derived from manifest and journal."""
