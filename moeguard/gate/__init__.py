"""From evidence to a decision: confidence in what a run has shown."""
