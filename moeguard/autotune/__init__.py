"""FlashInfer's tuner: facts for each version, and probes of its state. Nothing here needs FlashInfer to be imported."""
