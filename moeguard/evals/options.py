"""Options of a spot check, as its manifest keeps them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from moeguard.core.errors import MoeguardError

#: Seed of the first repeat; lm-eval's own.
SEED = 1234


class Options(BaseModel):
    """task: gsm8k or gpqa. baseline_url, ...: see moeguard.evals.server. model: None for the one that is served. data, train:
    files of questions and examples, None for the public set as lm-eval's library finds it. limit: questions, None for all.
    repeats: answers a question, each with its own seed. shots: examples before a question. again: run the baseline twice (A/A).
    margin: largest drop that is allowed. chunk: questions between two looks. early_stop: end when harm is shown. together:
    both servers at the same time, chunk by chunk. concurrency: requests at the same time. max_tokens, temperature: of each
    answer. timeout, start_timeout: seconds. attempts: how often a request is sent at most. python: interpreter that has
    lm-eval. backend, recipe: of the cell that the answers speak of, None for none.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    task: Literal["gsm8k", "gpqa"]
    baseline_url: str | None = None
    baseline_cmd: str | None = None
    candidate_url: str | None = None
    candidate_cmd: str | None = None
    model: str | None = None
    data: str | None = None
    train: str | None = None
    limit: Annotated[int, Field(ge=1)] | None = None
    repeats: Annotated[int, Field(ge=1, le=64)] = 1
    shots: Annotated[int, Field(ge=0, le=64)] = 0
    again: bool = False
    margin: Annotated[float, Field(gt=0, lt=1)] = 0.02
    chunk: Annotated[int, Field(ge=1)] = 100
    early_stop: bool = False
    together: bool = False
    chat: bool = False
    concurrency: Annotated[int, Field(ge=1, le=4096)] = 16
    max_tokens: Annotated[int, Field(ge=1)] = 512
    temperature: Annotated[float, Field(ge=0, le=2)] = 0.0
    timeout: Annotated[float, Field(gt=0)] = 300.0
    start_timeout: Annotated[float, Field(gt=0)] = 1800.0
    attempts: Annotated[int, Field(ge=1, le=100)] = 5
    python: str | None = None
    backend: str | None = None
    recipe: str | None = None

    @classmethod
    def of(cls, **values: Any) -> Options:
        """Checked options. Raises MoeguardError that names the first wrong one."""
        from pydantic import ValidationError

        try:
            made = cls(**values)
        except ValidationError as error:
            first = error.errors()[0]
            name = str(first["loc"][0]).replace("_", "-") if first["loc"] else "options"
            raise MoeguardError(f"--{name}: {first['input']!r}: {first['msg']}") from None
        if (made.backend is None) != (made.recipe is None):
            raise MoeguardError("--backend: names a cell together with --recipe; allowed: both or neither")
        if made.repeats > 1 and made.temperature == 0:
            raise MoeguardError("--repeats: more than 1 at temperature 0 asks for the same answer again; allowed: a "
                                "--temperature above 0")
        return made

    @property
    def interleaved(self) -> bool:
        """Whether both servers answer chunk by chunk, so that early looks see both."""
        return self.together or (self.baseline_cmd is None and self.candidate_cmd is None)

    def generation(self) -> dict[str, Any]:
        """Generation arguments of lm-eval."""
        return {"max_gen_toks": self.max_tokens, "temperature": self.temperature, "do_sample": self.temperature > 0}
