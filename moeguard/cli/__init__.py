"""Command line: thin front doors over the engine and the reports."""
