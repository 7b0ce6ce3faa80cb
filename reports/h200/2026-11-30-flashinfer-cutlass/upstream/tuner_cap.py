"""tune_max_num_tokens of an earlier call stays in force: 8192, then 512, then 8192 leaves 512.

Public API but for one read of the tuner's configuration: python tuner_cap.py   (flashinfer-python 0.7.4, compute capability 9.0)
"""

import flashinfer
import torch
from flashinfer.fused_moe import core, cutlass_fused_moe

H, INTER, E, K = 256, 256, 8, 2
w1 = torch.randn(E, 2 * INTER, H, device="cuda").bfloat16() * H**-0.5
w2 = torch.randn(E, H, INTER, device="cuda").bfloat16() * INTER**-0.5
x = torch.randn(16, H, device="cuda").bfloat16()
ids = torch.arange(16 * K, device="cuda").view(16, K).remainder(E).int()
weights = torch.full((16, K), 1 / K, device="cuda")
runner = core.get_cutlass_fused_moe_module("90").MoERunner
print(f"flashinfer {flashinfer.__version__}, torch {torch.__version__}, {torch.cuda.get_device_name()}")
for cap in (8192, 512, 8192):
    cutlass_fused_moe(x, ids, weights, w1, w2, torch.bfloat16, [], tune_max_num_tokens=cap)
    buckets = runner.tuning_config.dynamic_tensor_specs[0].gen_tuning_buckets
    print(f"tune_max_num_tokens={cap}: the largest tuning bucket is {max(buckets)}")
