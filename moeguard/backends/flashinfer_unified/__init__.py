"""``flashinfer_cutile`` and ``flashinfer_frost``: runners of FlashInfer's unified MoE API that need no nvcc."""
