"""Boundary tables: the sizes at which kernels break, in increasing order, so that a draw shrinks to the small end.

Layers of public models come from the ``config.json`` that each model publishes.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple


def _around(*edges: int) -> tuple[int, ...]:
    return tuple(sorted({edge + step for edge in edges for step in (-1, 0, 1)}))


#: Tokens T >= 1 around every power of two and every 3 * 2**n tile edge; T = 0 is drawn apart (see strategies).
TOKENS = (1, 2, *_around(4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144,
                         8192))
#: Experts E of the layer, all ranks together: powers of two, their neighbours and the odd counts of public models.
EXPERTS = (1, 2, 3, 4, 7, 8, 16, 17, 31, 32, 60, 64, 128, 255, 256, 257, 512)
#: Experts a token is sent to, K.
TOP_K = tuple(range(1, 11))
#: Hidden sizes H: tile multiples, 8-mod-16 and 64-mod-128 neighbours, sizes of public models.
HIDDEN = (8, 16, 24, 32, 40, 56, 64, 72, 96, 104, 120, 128, 136, 184, 192, 200, 248, 256, 264, 320, 384, 392, 448, 504,
          512, 520, 640, 768, 896, 928, 1024, 1032, 1152, 1280, 1536, 1544, 1792, 2048, 2056, 2560, 2880, 3072, 3584,
          4088, 4096, 5120, 6144, 7168)
#: Intermediate sizes I of one tensor-parallel rank.
INTERMEDIATE = (8, 16, 24, 32, 40, 48, 64, 72, 88, 104, 120, 128, 136, 168, 192, 200, 248, 256, 264, 320, 352, 384, 392,
                464, 504, 512, 520, 640, 704, 768, 896, 928, 1024, 1032, 1280, 1408, 1536, 1544, 1856, 2048, 2056, 2560,
                2880, 3072, 3584, 4088, 4096, 8192, 14336)
#: Expert-parallel and tensor-parallel sizes; 3, 5 and 15 divide 60 and 255.
EP_SIZES = (2, 4, 8, 3, 16, 5, 15, 32)
TP_SIZES = (2, 4, 8)
#: Data-parallel sizes.
DP_SIZES = (2, 8)
#: Base-2 exponents of scales: every one from the smallest float32 subnormal to the largest binade.
EXPONENTS = (-149, 127)
#: Magnitudes at whose binary exponent a value leaves what float32 can take: 2**-119 is the smallest amax whose quotient
#: 448 / amax is finite, 2**-126 the smallest normal number. By how often a factor counts in the value: once, or in a product
#: of two.
_EDGES = {1: (119, 126), 2: (59, 63)}
_STEPS = tuple(step for step in range(-6, 7) for _ in range(7 - abs(step)))
#: Exponents about these, both signs, the nearer the more often.
EXPONENT_EDGES = {times: tuple(sorted((sign * (edge + step) for edge in edges for step in _STEPS for sign in (1, -1)
                                       if -149 <= sign * (edge + step) <= 127), key=lambda value: (abs(value), value)))
                  for times, edges in _EDGES.items()}


class Layer(NamedTuple):
    """The MoE layer of a public model: H, I of one expert, E routed experts, K."""

    model: str
    hidden_size: int
    intermediate_size: int
    num_experts: int
    top_k: int


LAYERS = (
    Layer("Qwen3-30B-A3B", 2048, 768, 128, 8),
    Layer("Qwen3-Next-80B-A3B", 2048, 512, 512, 10),
    Layer("Qwen1.5-MoE-A2.7B", 2048, 1408, 60, 4),
    Layer("DeepSeek-V2-Lite", 2048, 1408, 64, 6),
    Layer("gpt-oss-20b", 2880, 2880, 32, 4),
    Layer("gpt-oss-120b", 2880, 2880, 128, 4),
    Layer("GLM-4.5-Air", 4096, 1408, 128, 8),
    Layer("Qwen3-235B-A22B", 4096, 1536, 128, 8),
    Layer("Mixtral-8x7B", 4096, 14336, 8, 2),
    Layer("Llama-4-Scout", 5120, 8192, 16, 1),
    Layer("DeepSeek-V3", 7168, 2048, 256, 8),
    Layer("Kimi-K2", 7168, 2048, 384, 8),
)


@lru_cache(maxsize=4096)
def within(table: tuple[int, ...], minimum: int, maximum: int, multiple_of: int = 1) -> tuple[int, ...]:
    """The values v of ``table`` with minimum <= v <= maximum and v % multiple_of == 0, or (minimum,) if there are none.

    The caller vouches that ``minimum`` itself is admissible.
    """
    return tuple(v for v in table if minimum <= v <= maximum and v % multiple_of == 0) or (minimum,)
