"""``flashinfer_cutlass``: FlashInfer's CUTLASS fused MoE on Hopper, called as serving engines call it."""
