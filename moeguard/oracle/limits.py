"""Limits of the judge's rules: where each comes from, and the false-alarm rate that it stands for.

Element rule: z is sub-Gaussian with variance at most 1, so P(max|z| > tau) <= 2 N Phi(-tau) <= alpha.
Block rules: the mean of z^2 over a block with nu effective degrees of freedom is at most chi-square(nu)/nu
(Satterthwaite, Biometrics Bulletin 2, 1946), so its limit is that quantile at first_look / (number of blocks of the
execution), never below ``block``^2; rows above ``block`` but below that quantile get the sharper limit of ``oracle.flips``.
A block or ratio exceedance is a finding only when CONFIRMING_TWINS twins and a second, independent seed confirm it. If the
model holds, block rules then alarm at most first_look^2 = 1e-6 times an execution; this product is derived, not measured
(measured: no alarm on 5496 distinct cases, below 5.4e-4), and it does not hold for 14-bit FP8 accumulators, where 3 of 342
fp8_block cases exceeded at the first look. The first look of the ratio rule has no stated level. Ratio rule: ``ratio``
times the root of an F quantile with the freedom of the twins' energies.

Measured on emulated kernels (oracle.calibration, oracle.floors; tables in reports/calibration): smallest scale error that is
caught in every draw at T128 H256 I128 E16 K4 is 0.25 % (fp16), 0.5 % (bf16, FP8) and 1 % (nvfp4) for the whole answer, 0.25 %
(fp16), 1.5 % (bf16), 5-7 % (FP8, nvfp4) for one of 16 experts; with a 14-bit FP8 accumulator 2 % and 20-30 %. A token that lost
its weakest expert, an unwritten tile and one element off by six standard deviations are caught in every draw.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special

#: Twins of a first look, by number of tokens, and of a confirmation.
FEW_TWINS, MANY_TWINS, CONFIRMING_TWINS = 2, 16, 64


@dataclass(frozen=True, slots=True)
class Limits:
    """alpha: false alarms per execution of the element rule. first_look: exceedances per healthy execution of all block
    rules together, each of which must recur on a second seed.

    block: smallest block limit on rms(z). ratio: limit on rms(z) over the worst twin with many degrees of freedom.
    ratio_floor: rms(z) below which the ratio rule is silent: below it there is nothing but underflow (an output rounded to
    bf16 alone has an rms(z) of about 0.04 in FP8 recipes).
    min_block: blocks with fewer elements are left to the element rule. tile: edge of a tile.
    """

    alpha: float = 1e-6
    first_look: float = 1e-3
    block: float = 1.5
    ratio: float = 2.0
    ratio_floor: float = 0.02
    min_block: int = 8
    tile: int = 64

    def element(self, count: int) -> float:
        """tau for ``count`` checked elements; sqrt(2 ln(N / alpha))."""
        return math.sqrt(2 * math.log(max(count, 1) / self.alpha))

    def blocks(self, freedom: npt.NDArray[np.float64], total: int) -> npt.NDArray[np.float64]:
        """Limits on rms(z) for blocks with the given degrees of freedom; ``total`` blocks are tested in the execution."""
        nu = np.maximum(freedom, 1.0)
        quantile = special.chdtri(nu, self.first_look / max(total, 1)) / nu
        return np.asarray(np.maximum(self.block, np.sqrt(quantile)))

    def twin_ratio(self, energies: npt.NDArray[np.float64], elements: int) -> float:
        """Limit on rms(z) / rms(twins) from the twins' mean squared errors [M] over ``elements``.

        Infinite for less than two twins, 0 when all twins agree with the oracle to the bit. Few elements have few
        degrees of freedom even where the twins agree with each other.
        """
        mean = float(energies.mean())
        if len(energies) < 2:
            return math.inf
        if mean <= 0:
            return 0.0
        spread = float(energies.var(ddof=1))
        nu = mean**2 / max(spread, 1e-12 * mean**2)  # half of 2 m^2 / s^2: heavy tails make s^2 look small
        nu = min(max(1.0, nu), max(elements, 1))
        return self.ratio * math.sqrt(float(special.fdtri(nu, nu * len(energies), 1.0 - self.first_look)))


def few_twins(tokens: int) -> int:
    """Twins of a first look: 16 below 128 tokens, where two say too little, else 2."""
    return MANY_TWINS if tokens < 128 else FEW_TWINS
