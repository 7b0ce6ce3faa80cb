"""A spot check: two arms answer the same questions, chunk by chunk, and nothing but what was answered is believed."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from moeguard.core.errors import MoeguardError
from moeguard.evals import treatment
from moeguard.evals.answer import Answer
from moeguard.evals.child import Child, HarnessFailed
from moeguard.evals.comparison import LOOKS
from moeguard.evals.dataset import Dataset, load
from moeguard.evals.options import SEED
from moeguard.evals.power import USUAL, Plan
from moeguard.evals.record import Event, Record
from moeguard.evals.relay import Relay
from moeguard.evals.result import AGAIN, BASELINE, CANDIDATE, Result, answers_by_arm, capital
from moeguard.evals.samples import PRIVATE_BLOCK, private
from moeguard.evals.server import PROBES, Server, ServerLost


class Part(NamedTuple):
    """What one arm answers in one go: the questions of a chunk, once."""

    arm: str
    chunk: int
    repeat: int


class Progress(NamedTuple):
    """What a listener hears: the arm under way, requests answered of all, and a sentence, None when nothing is new."""

    arm: str
    answered: int
    total: int
    sentence: str | None = None


class _Lost(Exception):
    """The run cannot go on; one clause."""


@dataclass
class SpotCheck:
    """record: where everything is written. listen: is told the progress."""

    record: Record
    listen: Callable[[Progress], None] = lambda progress: None

    _answered: int = field(default=0, init=False)
    _total: int = field(default=0, init=False)

    def run(self) -> Result:
        """Go on from what the journal holds to the end; the result. Raises MoeguardError for bad input.

        Whatever else ends it (a server that is lost, an interrupt) leaves a journal from which it can go on.
        """
        options = self.record.options
        events = self.record.events()
        if events and events[-1]["event"] == "finished":
            return Result.of(options, events)
        with tempfile.TemporaryDirectory() as secret, ExitStack() as stack:
            self._logs = Path(secret) if private(options.task) else None
            fetched = options.data is None
            child = stack.enter_context(Child(options.python, self._log("lm-eval"), offline=not fetched))
            self._child, self._options = child, options
            try:
                self._data = self._questions()
                self._same_questions(events)
                child.job("prepare", name=self._name, task=options.task, shots=self._data.shots, rows=self._data.rows)
                self._plan(USUAL)
                self._answer()
                reason = self._void()
                if reason is not None:
                    self.record.add({"event": "void", "reason": reason})
                self.record.add({"event": "finished"})
            except (_Lost, ServerLost, HarnessFailed) as error:
                self.record.add({"event": "lost", "reason": " ".join(str(error).split())})
        return Result.of(options, self.record.events())

    def _plan(self, disagreements: Sequence[float]) -> None:
        """Say what so many questions can tell, before they are asked."""
        number = len(self._data.rows)
        for rate in dict.fromkeys(max(one, 1 / number) for one in disagreements):
            self._say(BASELINE, Plan.of(number, rate, self._options.margin).sentence)

    @property
    def _name(self) -> str:
        return f"{self._options.task}_local"

    def _log(self, name: str) -> Path:
        """A file for output; in a folder that goes with the run where questions may not be left anywhere."""
        return self.record.log(name) if self._logs is None else self._logs / f"{name}.log"

    def _questions(self) -> Dataset:
        options = self._options
        if options.data is None:
            public = self._child.job("fetch", task=options.task)
            made = Dataset.of(options.task, public["rows"], public["train"], options.shots, f"public set {options.task}")
        else:
            train = None if options.train is None else load(Path(options.train), "--train")
            made = Dataset.of(options.task, load(Path(options.data)), train, options.shots, f"--data: {options.data}")
        return made.limited(options.limit)

    def _same_questions(self, events: Sequence[Event]) -> None:
        """On the first start note which questions are asked, later check that it is those."""
        asked = {"event": "questions", "sha256": self._data.sha256, "number": len(self._data.rows),
                 "lm_eval": self._child.version}
        noted = next((event for event in events if event["event"] == "questions"), None)
        if noted is None:
            self.record.add(asked)
        elif noted != asked:
            raise MoeguardError("--resume: the questions or lm-eval have changed since the run was started; allowed: the same")

    def _parts(self) -> Iterator[list[Part]]:
        """The parts in order, in the groups whose servers are up together."""
        options = self._options
        number = -(-len(self._data.rows) // options.chunk)
        chunks = [(chunk, repeat) for chunk in range(number) for repeat in range(options.repeats)]
        first = [BASELINE, AGAIN] if options.again else [BASELINE]
        groups = ([first, [CANDIDATE]] if options.again else [[BASELINE, CANDIDATE]]) if options.interleaved else [
            [name] for name in (*first, CANDIDATE)]
        for group in groups:
            yield [Part(name, chunk, repeat) for chunk, repeat in chunks for name in group]

    def _answer(self) -> None:
        """Have every part answered that the journal does not hold."""
        events = self.record.events()
        done = {Part(event["arm"], event["chunk"], event["repeat"]) for event in events if event["event"] == "answers"}
        groups = list(self._parts())
        self._total = sum(len(self._ids(part)) for group in groups for part in group)
        self._answered = sum(len(self._ids(part)) for part in done)
        for group in groups:
            if self._options.again and group[0].arm == CANDIDATE:
                noise = Result.of(self._options, self.record.events()).noise
                self._plan([noise.disagreement] if noise else [])
            if all(part in done for part in group):
                continue
            sides = dict.fromkeys(CANDIDATE if part.arm == CANDIDATE else BASELINE for part in group)
            with ExitStack() as stack:
                relays = {side: self._served(side, stack) for side in sides}
                for part in group:
                    if part not in done:
                        self._part(part, *relays[CANDIDATE if part.arm == CANDIDATE else BASELINE])
                    if part.arm == CANDIDATE and part.repeat == self._options.repeats - 1 and self._harmed():
                        return

    def _served(self, side: str, stack: ExitStack) -> tuple[Relay, str]:
        """A server that is up and answers as the other arm's does, behind a relay; and the model's name."""
        options = self._options
        url, command = ((options.baseline_url, options.baseline_cmd) if side == BASELINE
                        else (options.candidate_url, options.candidate_cmd))
        self._say(side, f"waiting for the server of the {side}")
        server = stack.enter_context(Server(side, url, command, self._log(side), options.start_timeout))
        model = self._model(server)
        self._same_tokenizer(side, server, model)
        relay = stack.enter_context(Relay(server.url, timeout=options.timeout, attempts=options.attempts,
                                          answered=lambda: self._step(side), ended=server.ended))
        return relay, model

    def _model(self, server: Server) -> str:
        served = server.models()
        wanted = self._options.model
        if wanted is None and len(served) == 1:
            return served[0]
        if wanted is None or wanted not in served:
            asked = "not given" if wanted is None else f"{wanted!r} is not served by the {server.arm}"
            raise MoeguardError(f"--model: {asked}; allowed: {', '.join(served) or 'none, it serves no model'}")
        return wanted

    def _same_tokenizer(self, side: str, server: Server, model: str) -> None:
        tokens = list(server.tokens(model))
        known = {event["arm"]: event["tokens"] for event in self.record.events() if event["event"] == "server"}
        if side not in known:
            self.record.add({"event": "server", "arm": side, "model": model, "tokens": tokens})
        for other, theirs in known.items():
            for text, ours, others in zip(PROBES, tokens, theirs, strict=True):
                if type(ours) is type(others) and ours != others:
                    counts = [len(one) if isinstance(one, list) else one for one in (ours, others)]
                    raise MoeguardError(f"the tokenizers differ: {text!r} has {counts[0]} tokens in the {side} and {counts[1]} "
                                        f"in the {other}{' (other ids)' if counts[0] == counts[1] else ''}; allowed: the same "
                                        "model and tokenizer in both arms")

    def _ids(self, part: Part) -> range:
        size, last = self._options.chunk, len(self._data.rows)
        return range(part.chunk * size, min(last, (part.chunk + 1) * size))

    def _part(self, part: Part, relay: Relay, model: str) -> None:
        options, begin = self._options, time.monotonic()
        before, retries = self._answered, relay.retries.copy()
        self._say(part.arm, None)
        path = "/v1/chat/completions" if options.chat else "/v1/completions"
        try:
            records = self._child.job("evaluate", name=self._name, ids=list(self._ids(part)), base_url=relay.url + path,
                                      model=model, chat=options.chat, concurrency=options.concurrency, seed=SEED + part.repeat,
                                      generation=options.generation())
        except HarnessFailed as error:
            self._answered = before
            said = str(error).partition(":")[0] if private(options.task) else error  # what it says may repeat a question
            raise _Lost(f"the {part.arm} was lost: {relay.failure}" if relay.failure else f"lm-eval failed: {said}") from None
        self._answered = before + len(self._ids(part))
        block = PRIVATE_BLOCK if private(options.task) else 1
        answers = [Answer.of(record, options.task, repeat=part.repeat, block=block).to_data() for record in records]
        self.record.add({"event": "answers", "arm": part.arm, "chunk": part.chunk, "repeat": part.repeat,
                         "seconds": round(time.monotonic() - begin, 3), "retries": dict(relay.retries - retries),
                         "answers": answers})

    def _harmed(self) -> bool:
        """Whether enough harm is shown to end the run; only harm ends it early."""
        if not self._options.early_stop:
            return False
        shown = capital(answers_by_arm(self.record.events()), self._options)
        if shown >= 1 / LOOKS:
            self._say(CANDIDATE, "stopped early: harm is shown")
        return shown >= 1 / LOOKS

    def _void(self) -> str | None:
        return treatment.void(self._log(BASELINE), self._log(CANDIDATE))

    def _step(self, arm: str) -> None:
        self._answered += 1
        self._say(arm, None)

    def _say(self, arm: str, sentence: str | None) -> None:
        self.listen(Progress(arm, self._answered, self._total, sentence))
