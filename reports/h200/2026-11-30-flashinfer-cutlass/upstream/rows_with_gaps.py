"""cutlass_fused_moe reads an input whose rows have gaps as if there were none, and says nothing.

Public API only: python rows_with_gaps.py   (flashinfer-python 0.7.4, compute capability 9.0)
"""

import flashinfer
import torch
from flashinfer.fused_moe import cutlass_fused_moe

T, H, INTER, E, K, GAP = 16, 256, 256, 8, 2, 8
generator = torch.Generator("cuda").manual_seed(0)


def normal(*shape: int, scale: float = 1.0) -> torch.Tensor:
    return (torch.randn(*shape, device="cuda", generator=generator) * scale).bfloat16()


x, w1, w2 = normal(T, H), normal(E, 2 * INTER, H, scale=H**-0.5), normal(E, H, INTER, scale=INTER**-0.5)
ids = torch.stack([torch.randperm(E, device="cuda", generator=generator)[:K] for _ in range(T)]).int()
weights = torch.full((T, K), 1 / K, device="cuda")


def call(value: torch.Tensor) -> torch.Tensor:
    return cutlass_fused_moe(value, ids, weights, w1, w2, torch.bfloat16, [])[0].float()


padded = torch.zeros(T, H + GAP, device="cuda", dtype=torch.bfloat16)
padded[:, :H] = x
view = padded[:, :H]
assert torch.equal(view, x) and view.stride() == (H + GAP, 1)
dense, strided = call(x), call(view)
wrong = ((dense - strided).abs() > 0.05 * dense.abs().amax()).any(1)
print(f"flashinfer {flashinfer.__version__}, torch {torch.__version__}, {torch.cuda.get_device_name()}")
print(f"equal values, strides {tuple(x.stride())} and {tuple(view.stride())}: {int(wrong.sum())} of {T} rows differ by more "
      f"than 5 % of the largest value; largest difference {float((dense - strided).abs().max()):.3f} "
      f"of {float(dense.abs().max()):.3f}")
