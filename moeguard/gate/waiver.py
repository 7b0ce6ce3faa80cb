"""A waiver: somebody answers for a requirement that is not met."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

#: Requirements that a waiver may cover. An open finding is lifted by a ledger entry instead.
WAIVABLE = ("executions", "bound", "tactics", "token_buckets", "repeats", "reruns", "known_findings", "strata", "speed_up",
            "evals")
Text = Annotated[str, Field(min_length=1)]


class Waiver(BaseModel):
    """Holds until ``expires``, that day included. reference: where to read why."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    requirement: str
    owner: Text
    reason: Text
    reference: Text
    expires: date

    @field_validator("requirement")
    @classmethod
    def _waivable(cls, name: str) -> str:
        if name not in WAIVABLE:
            raise ValueError(f"{name!r}; allowed: {', '.join(WAIVABLE)}")
        return name

    @property
    def sentence(self) -> str:
        """One sentence for people."""
        return f"waived by {self.owner} until {self.expires}: {self.reason} ({self.reference})"

    def to_data(self) -> dict[str, Any]:
        """JSON data."""
        return self.model_dump(mode="json")
