"""FlashInfer's MoE kernels for Blackwell: CuteDSL (standard and batched) and TRTLLM-gen, called as serving engines call them.

None of them ran anywhere yet. What can be known without a Blackwell GPU is tested: every call is bound to the signatures of real
releases (``moeguard doctor --wheels``), preparations that are pure torch are executed, and their layouts are inverted.
"""
