"""A finding: a defect that was seen, as a value."""

from __future__ import annotations

import hashlib
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

from moeguard.core.case import Case

Kind = Literal[
    "unwritten_output", "out_of_bounds_write", "input_mutated", "wrong_return", "output_alias", "non_finite", "mismatch",
    "bad_tactic", "tactic_not_executed", "vacuous_autotune", "autotune_mismatch", "nondeterministic", "stale_state",
    "workspace_dependence", "batch_variance", "metamorphic", "graph_mismatch", "crash", "hang", "routing_contract",
    "layout_contract", "tuning_range", "perf_regression",
]
KINDS: tuple[str, ...] = get_args(Kind)
#: What is seen in memory alone, whatever check made the call.
MEMORY_KINDS = frozenset({"unwritten_output", "out_of_bounds_write", "input_mutated", "wrong_return", "output_alias"})


class Finding(BaseModel):
    """One defect. ``numbers`` is the proof: worst z with its row, column, tile and expert; counts and places; ...

    kind: one of KINDS. check: the check group that saw it. tactic: ``str`` of the tactic, None for the default.
    sentence: one plain sentence. reproduced: True or False after a second try, None before one.
    entry: id of the ledger entry that covers it, None when it is not known.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")

    kind: Kind
    check: str
    backend: str
    case: Case
    sentence: str
    tactic: str | None = None
    numbers: dict[str, Any] = Field(default_factory=dict)
    reproduced: bool | None = None
    entry: str | None = None

    @property
    def known(self) -> bool:
        """Whether a ledger entry covers it."""
        return self.entry is not None

    @property
    def recipe(self) -> str:
        """Recipe of the case."""
        return self.case.recipe

    @property
    def fingerprint(self) -> str:
        """Stable identity of the defect: kind, backend, recipe and tactic, but not the case or the check that saw it.

        A known defect has an identity of its own, so that it never stands for an unknown one.
        """
        identity = "|".join((self.kind, self.backend, self.recipe, self.tactic or "-", *filter(None, (self.entry,))))
        return hashlib.sha256(identity.encode("utf-8", "surrogatepass")).hexdigest()[:12]

    def to_data(self) -> dict[str, Any]:
        """JSON data, as in a ``Found`` event; ``model_validate`` is inverse."""
        return self.model_dump(mode="json", by_alias=True)
