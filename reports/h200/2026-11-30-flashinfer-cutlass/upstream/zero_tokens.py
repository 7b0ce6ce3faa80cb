"""No tokens: an internal assertion instead of an empty output (sglang#38773).

Public API only: python zero_tokens.py   (flashinfer-python 0.7.4, compute capability 9.0)
"""

import flashinfer
import torch
from flashinfer.fused_moe import cutlass_fused_moe

H, INTER, E, K = 256, 256, 8, 2
w1, w2 = torch.zeros(E, 2 * INTER, H, device="cuda").bfloat16(), torch.zeros(E, H, INTER, device="cuda").bfloat16()
x = torch.zeros(0, H, device="cuda").bfloat16()
ids, weights = torch.zeros(0, K, device="cuda", dtype=torch.int32), torch.zeros(0, K, device="cuda")
print(f"flashinfer {flashinfer.__version__}, torch {torch.__version__}, {torch.cuda.get_device_name()}")
try:
    print("output", tuple(cutlass_fused_moe(x, ids, weights, w1, w2, torch.bfloat16, [])[0].shape))
except RuntimeError as error:
    print(type(error).__name__, str(error).splitlines()[0][:160])
