"""A case: the immutable description from which every tensor of a scenario follows bit for bit."""

from __future__ import annotations

import hashlib
import json
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from moeguard.core.errors import CaseError
from moeguard.core.recipe import RECIPES

SCHEMA = 1
#: Bytes of a case file.
LARGEST_FILE = 1 << 20
GATED = ("swiglu", "geglu", "geglu_tanh", "swiglu_oai")
PROBES = ("duplicate_ids", "invalid_ids", "nan_logits", "all_negative_logits")
#: Probes that give a token one expert several times, which needs K of 2 or more.
REPEATING = ("duplicate_ids", "nan_logits")

Positive = Annotated[int, Field(ge=1, le=2**31 - 1)]
Count = Annotated[int, Field(ge=0, le=2**31 - 1)]


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Shape(_Value):
    """T ``num_tokens``, H ``hidden_size``, I ``intermediate_size``, E ``num_experts``, K ``top_k``."""

    num_tokens: Count
    hidden_size: Positive
    intermediate_size: Positive
    num_experts: Positive
    top_k: Positive


class Activation(_Value):
    """Gated: swiglu, geglu (erf), geglu_tanh, swiglu_oai; not gated: relu2, silu, gelu.

    ``alpha``, ``beta``, ``limit`` belong to swiglu_oai alone; None means 1.702, 1.0 and no clamp.
    """

    kind: Literal["swiglu", "geglu", "geglu_tanh", "swiglu_oai", "relu2", "silu", "gelu"] = "swiglu"
    alpha: float | None = None
    beta: float | None = None
    limit: Annotated[float, Field(gt=0)] | None = None

    @property
    def gated(self) -> bool:
        """Whether an up projection exists."""
        return self.kind in GATED

    @model_validator(mode="after")
    def _parameters(self) -> Activation:
        if self.kind != "swiglu_oai" and (self.alpha, self.beta, self.limit) != (None, None, None):
            raise ValueError("alpha, beta and limit are allowed for kind 'swiglu_oai' only")
        return self


class Routing(_Value):
    """``kind`` shapes the load of the experts (or is a contract probe); ``method`` turns logits into ids."""

    kind: Literal["uniform", "balanced", "skewed", "one_expert", "empty_experts", "duplicate_ids", "invalid_ids",
                  "nan_logits", "all_negative_logits"] = "uniform"
    method: Literal["softmax_topk", "renormalize", "sigmoid_bias", "grouped_topk", "llama4_sigmoid"] = "renormalize"

    @property
    def probe(self) -> bool:
        """Whether the ids break, or strain, the ordinary routing contract."""
        return self.kind in PROBES


class Inputs(_Value):
    """Distribution of ``batch.x``; ``exact`` makes every healthy kernel agree bit for bit."""

    kind: Literal["normal", "heavy_tail", "sparse", "zeros", "spread", "outlier", "exact"] = "normal"


class Scales(_Value):
    """Distribution of the weight scales; ``exponent`` (base 2) is the magnitude that the kind applies."""

    kind: Literal["normal", "tiny", "zero", "bimodal", "heterogeneous", "saturating"] = "normal"
    exponent: Annotated[int, Field(ge=-149, le=127)] = 0


class WeightSet(_Value):
    """``zero_expert``: one expert's weights are all zero; ``bias``: per-expert float32 biases exist."""

    kind: Literal["normal", "zero_expert"] = "normal"
    bias: bool = False


class Layout(_Value):
    """Memory layout of ``batch.x`` and ``out``: row padding, or row padding full of NaN."""

    kind: Literal["contiguous", "noncontiguous", "nan_padding"] = "contiguous"


class Parallel(_Value):
    """Which shard of the layer this call sees. Rank r of EP holds experts [r*E/ep, (r+1)*E/ep)."""

    ep_size: Positive = 1
    ep_rank: Count = 0
    tp_size: Positive = 1
    tp_rank: Count = 0
    dp_size: Positive = 1


class Case(_Value):
    """Everything that a scenario depends on. Hashable; ``to_json`` and ``from_json`` are inverse.

    Raises CaseError (through ``from_json`` and ``load``) or pydantic's ValidationError on impossible values.
    """

    schema_version: Literal[1] = Field(default=1, alias="schema")
    shape: Shape
    recipe: Literal["bf16", "fp16", "fp8_per_tensor", "fp8_block", "mxfp8", "mxfp4_bf16", "mxfp4_fp8", "int4_fp8",
                    "nvfp4", "nvfp4_bf16"] = "bf16"
    activation: Activation = Activation()
    routing: Routing = Routing()
    inputs: Inputs = Inputs()
    scales: Scales = Scales()
    weights: WeightSet = WeightSet()
    layout: Layout = Layout()
    parallel: Parallel = Parallel()
    activation_format: Literal["standard", "batched"] = "standard"
    seed: Annotated[int, Field(ge=0, le=2**63 - 1)] = 0

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, populate_by_name=True, allow_inf_nan=False)

    @model_validator(mode="after")
    def _possible(self) -> Case:
        shape, parallel = self.shape, self.parallel
        if shape.top_k > shape.num_experts:
            raise ValueError(f"shape.top_k: {shape.top_k} exceeds num_experts {shape.num_experts}")
        for kind, size, rank in (("ep", parallel.ep_size, parallel.ep_rank), ("tp", parallel.tp_size, parallel.tp_rank)):
            if rank >= size:
                raise ValueError(f"parallel.{kind}_rank: {rank}; allowed: 0 to {kind}_size - 1 = {size - 1}")
        if shape.num_experts % parallel.ep_size:
            raise ValueError(f"parallel.ep_size: {parallel.ep_size} does not divide num_experts {shape.num_experts}")
        if shape.intermediate_size % parallel.tp_size:
            raise ValueError(
                f"parallel.tp_size: {parallel.tp_size} does not divide intermediate_size {shape.intermediate_size}")
        group = RECIPES[self.recipe].group
        if shape.hidden_size % group:
            raise ValueError(f"shape.hidden_size: {shape.hidden_size}; recipe {self.recipe} needs a multiple of {group}")
        if self.intermediate_local % group:
            raise ValueError(f"shape.intermediate_size: {shape.intermediate_size} over tp_size {parallel.tp_size}; "
                             f"recipe {self.recipe} needs a multiple of {group} on each rank")
        if self.inputs.kind == "exact" and self.weights.bias:
            raise ValueError("weights.bias: must be false when inputs.kind is 'exact'")
        return self

    @property
    def exact(self) -> bool:
        """Whether the operands make every healthy kernel agree bit for bit (see moeguard.tensors.exact)."""
        if self.inputs.kind != "exact":
            return False
        saturating = ("swiglu", "geglu", "geglu_tanh")
        return self.activation.kind in (saturating if RECIPES[self.recipe].narrow else (*saturating, "relu2", "silu", "gelu"))

    @property
    def experts_local(self) -> int:
        """E_local: experts that this rank holds."""
        return self.shape.num_experts // self.parallel.ep_size

    @property
    def first_expert(self) -> int:
        """Global id of this rank's first expert."""
        return self.parallel.ep_rank * self.experts_local

    @property
    def intermediate_local(self) -> int:
        """Rows of the gate and up weights that this rank holds."""
        return self.shape.intermediate_size // self.parallel.tp_size

    @cached_property
    def fingerprint(self) -> str:
        """First 12 hex digits of the sha256 of the canonical JSON."""
        return hashlib.sha256(self.to_json(indent=None).encode()).hexdigest()[:12]

    def with_(self, **changes: Any) -> Case:
        """A validated copy; nested fields by name, for example ``with_(shape={"num_tokens": 1}, seed=3)``."""
        data = self.model_dump(by_alias=True)
        for name, value in changes.items():
            data[name] = {**data[name], **value} if isinstance(value, dict) else value
        return Case.model_validate(data)

    def to_json(self, *, indent: int | None = 2) -> str:
        """Canonical JSON text with ``"schema": 1`` first."""
        return json.dumps(self.model_dump(by_alias=True), indent=indent, allow_nan=False)

    @classmethod
    def from_json(cls, text: str, *, source: str = "case") -> Case:
        """Parse a case. Raises CaseError that names the field and what is allowed."""
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise CaseError(f"{source}: not valid JSON ({error})") from None
        if not isinstance(data, dict):
            raise CaseError(f"{source}: a case is a JSON object, not {type(data).__name__}")
        if data.get("schema") != SCHEMA:
            raise CaseError(f"{source}: schema {data.get('schema')!r} is not supported; allowed: {SCHEMA}")
        try:
            return cls.model_validate_json(json.dumps(data))
        except ValidationError as error:
            raise CaseError(f"{source}: {describe(error)}") from None

    @classmethod
    def load(cls, path: Path | str) -> Case:
        """Read a case file. Raises CaseError when it is missing, unreadable, malformed, or another file of a run directory."""
        file = Path(path)
        try:
            if not file.exists():
                raise CaseError(f"{path}: no such file")
            if file.is_dir():
                raise CaseError(f"{path}: is a folder; give a file of its cases/")
            if not file.is_file() or file.stat().st_size > LARGEST_FILE:
                raise CaseError(f"{path}: cannot read the case file; allowed: a regular file of at most {LARGEST_FILE} bytes")
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise CaseError(f"{path}: cannot read the case file ({error.__class__.__name__})") from None
        try:
            return cls.from_json(text, source=str(path))
        except CaseError:
            if (file.parent / "journal.jsonl").is_file():
                raise CaseError(f"{path}: not a case file; cases are in {file.parent / 'cases'}/") from None
            raise


def describe(error: ValidationError) -> str:
    """The first problem of a pydantic error as one clause: field, what is wrong."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"]) or "case"
    message = str(first["msg"]).removeprefix("Value error, ")
    return message if message.startswith(("shape.", "parallel.", "weights.")) else f"{where}: {message[:1].lower()}{message[1:]}"
