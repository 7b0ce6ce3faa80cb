"""Router cases of a campaign: every method with every probe that it has, sizes drawn around those of real models."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from moeguard.core.router import BIAS_PROBES, BIASED, METHODS, PROBES, Method, RouterCase

#: Experts: powers of two, those of Kimi K2 and of Qwen3-Next, and some that fill no warp.
_EXPERTS = (2, 8, 16, 60, 64, 72, 128, 160, 256, 384, 512)
_TOKENS = (0, 1, 2, 7, 33, 128)


def draw_router_cases(count: int, seed: int, methods: Sequence[Method] = METHODS) -> Iterator[RouterCase]:
    """``count`` cases that follow from ``seed`` alone; methods and probes take turns."""
    pairs = [(method, probe) for probe in PROBES for method in methods if probe not in BIAS_PROBES or method in BIASED]
    for number in range(count):
        source = random.Random(f"{seed}|{number}")
        method, probe = pairs[number % len(pairs)]
        experts = source.choice(_EXPERTS)
        groups = kept = 1
        if method == "grouped_topk":
            groups = source.choice([size for size in (1, 2, 4, 8, 8, 16, 32) if experts % size == 0 and experts // size >= 2])
            kept = source.randint(1, groups)
        most = min(experts // groups * kept, 10)
        top_k = 1 if method == "llama4_sigmoid" and source.random() < 0.5 else source.randint(1, most)
        # the smaller counts have no token that the probe leaves alone
        tokens = source.choice(_TOKENS if number >= len(pairs) else _TOKENS[3:])
        yield RouterCase(method=method, probe=probe, num_tokens=tokens, num_experts=experts, top_k=top_k, num_groups=groups,
                         topk_groups=kept, scaling_factor=source.choice((1.0, 2.5)) if method in BIASED else 1.0,
                         dtype=source.choice(("float32", "bfloat16")), seed=source.getrandbits(48))
