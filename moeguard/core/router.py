"""A router case: the immutable description of one call of a router, and what may be found there."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from moeguard.core.case import describe
from moeguard.core.errors import CaseError
from moeguard.core.finding import Kind
from moeguard.core.finite import finite

Method = Literal["softmax_topk", "renormalize", "sigmoid_bias", "grouped_topk", "llama4_sigmoid"]
Probe = Literal["normal", "ties", "near_ties", "all_negative", "dominant", "nan", "minus_infinity", "negative_bias",
                "bias_cancellation"]
METHODS: tuple[Method, ...] = get_args(Method)
PROBES: tuple[Probe, ...] = get_args(Probe)
#: Methods that rank by sigmoid plus a selection bias per expert.
BIASED: tuple[Method, ...] = ("sigmoid_bias", "grouped_topk")
#: Probes that are about that bias.
BIAS_PROBES: tuple[Probe, ...] = ("negative_bias", "bias_cancellation")
#: Methods whose weights are divided by their sum.
NORMALISED: tuple[Method, ...] = ("renormalize", *BIASED)

Positive = Annotated[int, Field(ge=1, le=65536)]


class RouterCase(BaseModel):
    """What a router is asked: T tokens, E experts, K per token, by which method, from which logits.

    num_groups, topk_groups: experts form ``num_groups`` groups of equal size, and a token chooses among ``topk_groups`` of
    them; both 1 unless the method is grouped_topk. scaling_factor: multiplies the weights. dtype: that of logits and bias.
    probe: how the logits are drawn (``moeguard.tensors.logits``). Raises pydantic's ValidationError on impossible values.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    method: Method
    num_tokens: Annotated[int, Field(ge=0, le=1 << 20)]
    num_experts: Positive
    top_k: Positive
    num_groups: Positive = 1
    topk_groups: Positive = 1
    scaling_factor: Annotated[float, Field(gt=0)] = 1.0
    dtype: Literal["float32", "bfloat16"] = "float32"
    probe: Probe = "normal"
    seed: Annotated[int, Field(ge=0, le=2**63 - 1)] = 0

    @model_validator(mode="after")
    def _possible(self) -> RouterCase:
        if self.method != "grouped_topk" and (self.num_groups, self.topk_groups) != (1, 1):
            raise ValueError("num_groups and topk_groups are 1 unless the method is grouped_topk")
        if self.num_experts % self.num_groups:
            raise ValueError(f"num_groups: {self.num_groups} does not divide num_experts {self.num_experts}")
        if self.topk_groups > self.num_groups:
            raise ValueError(f"topk_groups: {self.topk_groups} exceeds num_groups {self.num_groups}")
        if self.method == "grouped_topk" and self.group_size < 2:
            raise ValueError(f"num_groups: {self.num_groups} leaves one expert a group; the score of a group needs two")
        if self.top_k > self.topk_groups * self.group_size:
            raise ValueError(f"top_k: {self.top_k} exceeds the {self.topk_groups * self.group_size} experts to choose from")
        if self.probe in BIAS_PROBES and not self.biased:
            raise ValueError(f"probe: {self.probe} is for the methods {', '.join(BIASED)}")
        return self

    @classmethod
    def from_json(cls, text: str) -> RouterCase:
        """Parse a case. Raises CaseError that names the field and what is allowed."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise CaseError(f"--case: {describe(error).removeprefix('case: ')}") from None

    @property
    def biased(self) -> bool:
        """Whether there is a selection bias."""
        return self.method in BIASED

    @property
    def normalised(self) -> bool:
        """Whether the weights of a token add up to ``scaling_factor``."""
        return self.method in NORMALISED

    @property
    def group_size(self) -> int:
        """Experts of a group."""
        return self.num_experts // self.num_groups


@dataclass(frozen=True, slots=True)
class Precision:
    """How exactly a router computes its scores from the logits that it is given.

    roundoff: unit roundoff of its arithmetic, 2**-24 for float32, 2**-8 for bfloat16. sigmoid_error: absolute error of its
    sigmoid beyond that, for example of a form that cancels. What is declared is granted, and nothing else.
    """

    roundoff: float = 2.0**-24
    sigmoid_error: float = 0.0


@dataclass(frozen=True, slots=True)
class RouterFinding:
    """One defect of a router. ``rule``: what was broken; ``numbers``: the proof, of the first token that shows it."""

    kind: Kind
    router: str
    rule: str
    case: RouterCase
    sentence: str
    numbers: dict[str, Any]

    @property
    def fingerprint(self) -> str:
        """Stable identity of the defect: kind, router, rule and method, but not the case."""
        identity = "|".join((self.kind, self.router, self.rule, self.case.method))
        return hashlib.sha256(identity.encode("utf-8", "surrogatepass")).hexdigest()[:12]

    def to_data(self) -> dict[str, Any]:
        """JSON data; numbers that JSON does not have are text."""
        return {"kind": self.kind, "fingerprint": self.fingerprint, "router": self.router, "rule": self.rule,
                "case": self.case.model_dump(mode="json"), "sentence": self.sentence, "numbers": finite(self.numbers)}
