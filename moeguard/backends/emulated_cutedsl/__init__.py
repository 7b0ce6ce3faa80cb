"""The two dataflows of FlashInfer's CuteDSL MoE in plain torch, on CPU and GPU."""
