"""The policy: thresholds of each level, packaged or from a TOML file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from moeguard.core.errors import AllowlistError
from moeguard.core.finding import KINDS
from moeguard.gate.level import LEVELS, check_level
from moeguard.gate.tables import checked, table_of, text_of

TASKS = ("gsm8k", "gpqa")
PACKAGED_FILE = Path(__file__).with_name("policy.toml")
#: Open findings that O3 may be told to tolerate: none of them is about an answer.
TOLERABLE = ("perf_regression", "tuning_range")
#: Findings about answers and memory. Known ones need a waiver before tuning may pick among the tactics.
WRONG_ANSWERS = frozenset(KINDS) - {*TOLERABLE, "crash", "hang", "vacuous_autotune", "tactic_not_executed", "routing_contract",
                                    "layout_contract"}
#: Findings for which a tactic must not be picked.
FAULTS = WRONG_ANSWERS | {"crash", "hang", "tactic_not_executed"}
#: Findings that need not come back on the next execution.
RACES = ("nondeterministic", "stale_state", "workspace_dependence")


class Thresholds(BaseModel):
    """What one level asks for; the comments of ``policy.toml`` say what each is.

    never: no evidence is enough. max_stratum_bound: None asks for nothing. min_speed_up: None asks for no timed sweep.
    evals: spot checks that must be there, with the largest drop that they may leave possible. tolerated: kinds of open findings
    that do not count, O3 alone.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    never: bool = False
    min_executions: Annotated[int, Field(ge=1)] = 1000
    max_bound: Annotated[float, Field(gt=0, lt=1)] = 0.01
    all_tactics: bool = True
    min_repeats: Annotated[int, Field(ge=1)] = 5
    min_reruns: Annotated[int, Field(ge=1)] = 59
    max_stratum_bound: Annotated[float, Field(gt=0, lt=1)] | None = None
    token_buckets_up_to: Annotated[int, Field(ge=1, le=1 << 24)] = 4096
    min_speed_up: Annotated[float, Field(gt=0)] | None = None
    evals: dict[str, Annotated[float, Field(gt=0, lt=1)]] = {}
    tolerated: list[str] = []

    @field_validator("evals")
    @classmethod
    def _known_tasks(cls, evals: dict[str, float]) -> dict[str, float]:
        for task in evals:
            if task not in TASKS:
                raise ValueError(f"{task!r}; allowed: {', '.join(TASKS)}")
        return evals

    @field_validator("tolerated")
    @classmethod
    def _no_wrong_answers(cls, kinds: list[str]) -> list[str]:
        for kind in kinds:
            if kind not in TOLERABLE:
                raise ValueError(f"{kind!r}; allowed: {', '.join(TOLERABLE)}")
        return kinds


@dataclass(frozen=True, slots=True)
class Policy:
    """source: ``packaged`` or the path. levels: thresholds by level. archs: by arch and level, where they differ."""

    source: str
    levels: dict[str, Thresholds]
    archs: dict[str, dict[str, Thresholds]]

    @classmethod
    def load(cls, path: Path | str | None = None) -> Policy:
        """Read a policy, None for the packaged one. Raises AllowlistError with one sentence."""
        source = "packaged" if path is None else str(path)
        data = table_of(text_of(PACKAGED_FILE if path is None else Path(path), "policy"), source, "level", "arch")
        rows = _tables(data.get("level"), source, "level")
        missing = sorted(set(LEVELS) - set(rows))
        if missing:
            raise AllowlistError(f"{source}: level.{missing[0]}: missing; allowed: a table for each of {', '.join(LEVELS)}")
        levels = {level: _thresholds(level, row, f"{source}: level.{level}") for level, row in rows.items()}
        archs = {arch: {level: _thresholds(level, {**rows.get(level, {}), **row}, f"{source}: arch.{arch}.{level}")
                        for level, row in _tables(those, source, f"arch.{arch}").items()}
                 for arch, those in _tables(data.get("arch", {}), source, "arch").items()}
        return cls(source, levels, archs)

    def thresholds(self, level: str, arch: str) -> Thresholds:
        """Those of ``level`` on ``arch``. Raises UnknownNameError when there is no such level."""
        check_level(level)
        return self.archs.get(arch, {}).get(level, self.levels[level])


def _tables(value: Any, source: str, where: str) -> dict[str, dict[str, Any]]:
    if not isinstance(value, dict) or not all(isinstance(row, dict) for row in value.values()):
        raise AllowlistError(f"{source}: {where}: allowed: tables")
    return value


def _thresholds(level: str, row: dict[str, Any], where: str) -> Thresholds:
    if level not in LEVELS:
        raise AllowlistError(f"{where}: unknown level; allowed: {', '.join(LEVELS)}")
    value = checked(Thresholds, row, where)
    if level == "O0" and not value.never:
        raise AllowlistError(f"{where}.never: false; allowed: true, since O0 is never tuned")
    if level != "O3" and value.tolerated:
        raise AllowlistError(f"{where}.tolerated: {value.tolerated[0]}; allowed for O3 alone")
    return value

