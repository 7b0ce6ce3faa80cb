"""FP8 block scales that make an expert nearly vanish give rows that are not finite (flashinfer#2595).

Public API only: python near_dead_expert.py   (flashinfer-python 0.7.4, compute capability 9.0)
"""

import flashinfer
import torch
from flashinfer.fused_moe import cutlass_fused_moe

T, H, INTER, E = 8, 256, 256, 4
generator = torch.Generator("cuda").manual_seed(0)


def codes(*shape: int) -> torch.Tensor:
    return (torch.randn(*shape, device="cuda", generator=generator) * 100).clamp(-448, 448).to(torch.float8_e4m3fn)


x = torch.randn(T, H, device="cuda", generator=generator).bfloat16()
w1, w2 = codes(E, 2 * INTER, H), codes(E, H, INTER)
ids = torch.arange(T, device="cuda").remainder(E)[:, None].int()
weights = torch.ones(T, 1, device="cuda")
print(f"flashinfer {flashinfer.__version__}, torch {torch.__version__}, {torch.cuda.get_device_name()}")
for step in range(19 * 8, 25 * 8 + 1):  # eighths of a decade: the window is narrow
    scale = 10 ** (-step / 8)
    s1 = torch.full((E, 2 * INTER // 128, H // 128), 1e-3, device="cuda")
    s2 = torch.full((E, H // 128, INTER // 128), 1e-3, device="cuda")
    s1[2] = scale  # gate and up of expert 2
    y = cutlass_fused_moe(x, ids, weights, w1, w2, torch.bfloat16, [s1, s2], use_deepseek_fp8_block_scale=True)[0]
    broken = (~torch.isfinite(y)).any(1).nonzero()[:, 0].tolist()
    if broken or step % 8 == 0:
        print(f"scale {scale:.2e} of expert 2: rows that are not finite: {broken} (rows of expert 2: {list(range(2, T, E))})")
