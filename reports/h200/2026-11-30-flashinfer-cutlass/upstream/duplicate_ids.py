"""An expert that a token lists twice is lost when the three-step prologue sorts the tokens (flashinfer#3011).

Public API only: python duplicate_ids.py   (flashinfer-python 0.7.4, compute capability 9.0)
"""

import flashinfer
import torch
from flashinfer.fused_moe import cutlass_fused_moe

H, INTER, E = 256, 256, 16
generator = torch.Generator("cuda").manual_seed(0)
w1 = (torch.randn(E, 2 * INTER, H, device="cuda", generator=generator) * H**-0.5).bfloat16()
w2 = (torch.randn(E, H, INTER, device="cuda", generator=generator) * INTER**-0.5).bfloat16()
print(f"flashinfer {flashinfer.__version__}, torch {torch.__version__}, {torch.cuda.get_device_name()}")
for tokens, top_k in ((4, 2), (256, 2), (257, 2), (300, 2), (4, 3), (4, 8), (300, 8), (4, 10)):
    x = torch.randn(tokens, H, device="cuda", generator=generator).bfloat16()
    ids = torch.full((tokens, top_k), 5, device="cuda", dtype=torch.int32)
    weights = torch.full((tokens, top_k), 1 / top_k, device="cuda")
    once = cutlass_fused_moe(x, ids[:, :1].contiguous(), torch.ones(tokens, 1, device="cuda"), w1, w2, torch.bfloat16, [])[0]
    many = cutlass_fused_moe(x, ids, weights, w1, w2, torch.bfloat16, [])[0]
    wrong = ((once.float() - many.float()).abs() > 0.05 * once.float().abs().amax()).any(1)
    print(f"T={tokens}, top_k={top_k}, every id 5, weights 1/{top_k}: {int(wrong.sum())} of {tokens} rows differ from top_k=1")
