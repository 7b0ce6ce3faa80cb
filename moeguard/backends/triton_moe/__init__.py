"""``triton``: fused MoE kernels of our own, in Triton. Importing this package does not import triton."""
