"""Profiles: which shapes a campaign may draw, and what one case may cost on a device.

Budgets bound the whole case, whatever is drawn: weights made, products, and rows of intermediate values. CPU figures
are for the float64 oracle on one or two cores: a smoke case typically within 40 ms, a ci case within 500 ms. Measured
on one core: smoke oracle median 3 ms, 95 % 12 ms, worst of 256 cases 42 ms; ci oracle median 12 ms, worst of 60 cases
203 ms. CUDA figures are an estimate for one data-centre GPU with 80 GB and fast float64.
"""

from __future__ import annotations

from dataclasses import dataclass

from moeguard.core.case import Case
from moeguard.core.errors import UnknownNameError

DEVICES = ("cpu", "cuda")


@dataclass(frozen=True, slots=True)
class Budget:
    """What one case may cost.

    weights: elements of gate, up and down that a rank makes, E/ep * H * I * 3. work: multiply-adds, 3 * rows * H * I.
    activations: elements of the per-slot tensors, rows * (H + I). rows: T * K, or T * max(K, E/ep) if batched.
    """

    weights: int
    work: int
    activations: int

    def scaled(self, fraction: float) -> Budget:
        """The same budget times ``fraction``."""
        return Budget(int(self.weights * fraction), int(self.work * fraction), int(self.activations * fraction))

    def holds(self, cost: Budget) -> bool:
        """Whether ``cost`` is within this budget."""
        return cost.weights <= self.weights and cost.work <= self.work and cost.activations <= self.activations


@dataclass(frozen=True, slots=True)
class Profile:
    """Bounds of a campaign: largest T, E, H and I, the budget of a case, and ``round_size`` scenarios a round.

    Raises ValueError for bounds below the smallest shapes that the strategies need.
    """

    name: str
    max_tokens: int
    max_experts: int
    max_hidden: int
    max_intermediate: int
    budget: Budget
    round_size: int

    def __post_init__(self) -> None:
        smallest = (self.max_tokens >= 2, self.max_experts >= 8, self.max_hidden >= 128, self.max_intermediate >= 128,
                    self.round_size >= 1, self.budget.holds(Budget(1 << 19, 1 << 17, 1 << 13)))
        if not all(smallest):
            raise ValueError(f"profile {self.name}: needs max_tokens >= 2, max_experts >= 8, sizes >= 128, a round_size "
                             f"and a budget of at least {1 << 19} weights, {1 << 17} work and {1 << 13} activations")


def cost(case: Case) -> Budget:
    """What ``case`` costs at most, in the units of Budget; not gated activations are counted as if they were."""
    shape = case.shape
    slots = max(shape.top_k, case.experts_local) if case.activation_format == "batched" else shape.top_k
    rows = shape.num_tokens * slots
    return measure(rows, case.experts_local, shape.hidden_size, shape.intermediate_size)


def measure(rows: int, experts_local: int, hidden_size: int, intermediate_size: int) -> Budget:
    """Cost of ``rows`` slots through ``experts_local`` experts of H x I."""
    area = 3 * hidden_size * intermediate_size
    return Budget(experts_local * area, rows * area, rows * (hidden_size + intermediate_size))


#: name: (max T, max E, max H, max I, round size).
_BOUNDS = {
    "smoke": (257, 32, 512, 512, 128),
    "ci": (4097, 256, 4096, 4096, 128),
    "nightly": (8193, 512, 7168, 14336, 128),
    "soak": (8193, 512, 7168, 14336, 256),
}
_BUDGETS = {
    ("smoke", "cpu"): Budget(1_500_000, 60_000_000, 400_000),
    ("smoke", "cuda"): Budget(20_000_000, 2_000_000_000, 2_000_000),
    ("ci", "cpu"): Budget(12_000_000, 600_000_000, 2_500_000),
    ("ci", "cuda"): Budget(650_000_000, 200_000_000_000, 100_000_000),
    ("nightly", "cpu"): Budget(50_000_000, 6_000_000_000, 20_000_000),
    ("nightly", "cuda"): Budget(3_300_000_000, 3_000_000_000_000, 650_000_000),
}
PROFILES = tuple(_BOUNDS)


def profile(name: str, device: str = "cpu") -> Profile:
    """The profile ``name`` for ``cpu`` or ``cuda`` (``cuda:1`` counts as ``cuda``). Raises UnknownNameError."""
    if name not in _BOUNDS:
        raise UnknownNameError("--profile", name, list(PROFILES))
    kind = device.partition(":")[0]
    if kind not in DEVICES:
        raise UnknownNameError("--device", device, list(DEVICES))
    tokens, experts, hidden, intermediate, round_size = _BOUNDS[name]
    budget = _BUDGETS["nightly" if name == "soak" else name, kind]
    return Profile(name, tokens, experts, hidden, intermediate, budget, round_size)
