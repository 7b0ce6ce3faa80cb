"""Spot checks of whole models as evidence: they support a cell that was swept, and never take the place of its sweep."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, timezone
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from moeguard.core.cell import Cell
from moeguard.core.errors import MoeguardError
from moeguard.evals.comparison import Comparison
from moeguard.evals.options import Options
from moeguard.evals.record import JOURNAL, MANIFEST, parse_journal, parse_manifest
from moeguard.evals.result import Result
from moeguard.gate.snapshot import Stale, digest


class SpotCheck(BaseModel):
    """What an allowlist records of one.

    run_id, started (UTC), sha256 over its manifest and journal: as of a run. task: ``gsm8k`` or ``gpqa``. outcome: with
    ``margin``, the largest drop that was allowed. drop: estimated. upper_bound: of the drop, one-sided 95 %.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    run_id: Annotated[str, Field(min_length=1)]
    started: date
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    task: Annotated[str, Field(min_length=1)]
    outcome: Literal["not_worse", "worse", "cannot_tell"]
    questions: Annotated[int, Field(ge=1)]
    repeats: Annotated[int, Field(ge=1)]
    losses: Annotated[int, Field(ge=0)]
    gains: Annotated[int, Field(ge=0)]
    margin: Annotated[float, Field(gt=0, lt=1)]
    drop: Annotated[float, Field(ge=-1, le=1)]
    upper_bound: Annotated[float, Field(ge=-1, le=1)]

    @property
    def sentence(self) -> str:
        """The figures in one clause."""
        return (f"{self.task} {self.outcome.replace('_', ' ')}: drop {100 * self.drop:.2f} points, at most "
                f"{100 * self.upper_bound:.2f}, over {self.questions} questions")


@dataclass(frozen=True, slots=True)
class Supporting:
    """A spot check that was read. path: as it was given. gpu: its name, None on a CPU. cell: what it speaks of."""

    path: str
    gpu: str | None
    cell: Cell
    check: SpotCheck


def is_spot_check(path: Path) -> bool:
    """Whether a folder holds a spot check rather than a run."""
    return (path / JOURNAL).is_file()


def read(path: Path) -> Supporting | Stale:
    """Count a spot check again from its manifest and journal alone; ``Stale`` when it is no evidence."""
    try:
        files = {name: (path / name).read_bytes() for name in (MANIFEST, JOURNAL)}
        manifest = parse_manifest(files[MANIFEST].decode("utf-8"), str(path))
        options = Options.model_validate(manifest["options"])
        if not files[JOURNAL].endswith(b"\n"):
            return Stale(str(path), f"{JOURNAL} is truncated: its last line is not complete")
        result = Result.of(options, parse_journal(files[JOURNAL], JOURNAL))
    except OSError as error:
        return Stale(str(path), f"cannot be read ({error.strerror})")
    except MoeguardError as error:
        return Stale(str(path), str(error))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return Stale(str(path), f"damaged ({type(error).__name__})")
    if result.lost is not None or result.comparison is None:
        return Stale(str(path), f"the spot check did not come to its end; finish it with moeguard eval {options.task} --resume")
    if options.backend is None or options.recipe is None:
        return Stale(str(path), "the spot check names no cell; make it with --backend and --recipe")
    cell = Cell.of(options.backend, options.recipe, manifest["environment"])
    return Supporting(str(path), manifest["environment"].get("gpu"), cell, _check(manifest, digest(files), result.comparison))


def _check(manifest: dict[str, Any], sha256: str, found: Comparison) -> SpotCheck:
    started = datetime.fromisoformat(manifest["started"])
    day = (started if started.tzinfo is None else started.astimezone(timezone.utc)).date()
    return SpotCheck(run_id=manifest["run_id"], started=day, sha256=sha256, task=manifest["options"]["task"],
                     outcome=found.outcome, questions=found.questions, repeats=found.repeats, losses=found.losses,
                     gains=found.gains, margin=found.margin, drop=round(found.drop, 6), upper_bound=round(found.upper_bound, 4))
