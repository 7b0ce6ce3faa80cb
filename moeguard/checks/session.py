"""A session: one backend on one case. Every execution is poisoned, guarded, compared and judged here."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from moeguard.backends.protocol import Backend, Support, Traits
from moeguard.checks.confirmation import excused
from moeguard.checks.declared import trait_of
from moeguard.checks.exhausted import asked_for, beyond, exhausted
from moeguard.checks.lost_device import settle
from moeguard.checks.outside_sample import outside_sample
from moeguard.checks.place import place_map
from moeguard.checks.raised import ScenarioAborted, frameless
from moeguard.checks.sentence import describe, plain
from moeguard.checks.subject import Resources, Subject, base_subject
from moeguard.core.case import Case
from moeguard.core.events import Event, Executed, Found, Noted
from moeguard.core.finding import MEMORY_KINDS, Finding, Kind
from moeguard.core.numerics import Numerics
from moeguard.memory.buffers import OutputBuffer, Workspace
from moeguard.memory.digest import Snapshot
from moeguard.oracle.judge import Judgement

#: What a method of a plug-in must return, as its author writes it.
DUE: dict[type, str] = {Support: 'mg.Support.yes() or mg.Support.no("reason")', Traits: "mg.Traits(...)",
                        Numerics: "mg.Numerics(...)", int: "an int"}
#: Largest workspace that a backend may ask for, in bytes: more than any device has.
LARGEST_WORKSPACE = 1 << 40


class Calling(NamedTuple):
    """The call into the backend that is under way: what it is, for which check, with which tactic."""

    what: str
    check: str = "values"
    tactic: str | None = None


@dataclass(frozen=True, slots=True)
class Execution:
    """One ``Backend.run``. answer: a copy of ``out``. refused: the exception when the backend raised one.

    wrote: whether anything of the buffer changed. whole: no memory finding was made, so that the bits mean something.
    """

    answer: Tensor
    judgement: Judgement
    pattern: int
    ok: bool
    refused: BaseException | None = None
    wrote: bool = True
    whole: bool = True

    def same_bits(self, other: Execution) -> bool:
        """Whether both answers are bitwise equal."""
        return torch.equal(self.answer.view(torch.int16), other.answer.view(torch.int16))


class Session:
    """Runs one scenario. ``emit`` receives events; ``entering`` a Calling before each call into the backend, None after it.

    final: it confirms what another session saw, and excuses nothing itself.
    """

    def __init__(self, backend: Backend, case: Case, resources: Resources, *, scenario: int = 0,
                 emit: Callable[[Event], None] = lambda event: None,
                 entering: Callable[[Calling | None], None] = lambda call: None, final: bool = False) -> None:
        self.backend, self.case, self.resources, self.scenario = backend, case, resources, scenario
        self._emit, self.entering, self.final = emit, entering, final
        self.findings: list[Finding] = []
        self.notes: list[Noted] = []
        self.executions = 0
        self._pattern = 0
        self._seen: set[tuple[str, str | None, str | None]] = set()
        self._numerics: dict[tuple[str, Hashable | None], Numerics] = {}
        self._traits: dict[Hashable | None, Traits] = {}
        self._base: Subject | None = None
        self.first: Execution | None = None
        #: Kind of finding that a write in the wrong place, or none, amounts to while a contract is probed.
        self.breach: Kind | None = None
        self._topic: str | None = None

    @property
    def base(self) -> Subject:
        """The case's own subject; prepares the weights on first use."""
        if self._base is None:
            self._base = self.guarded("prepare", lambda: base_subject(self.resources, self.backend, self.case))
        return self._base

    def guarded(self, what: str, call: Callable[[], Any], tactic: Hashable | None = None, check: str = "values",
                due: type | None = None) -> Any:
        """Call into the backend; an exception, or another type than ``due``, is a crash finding and ends the scenario."""
        try:
            with self._inside(what, check, tactic):
                value = call()
        except (Exception, SystemExit) as error:
            self.crash(what, error, tactic, check)
        if due is not None and not isinstance(value, due):
            returned = type(value).__name__
            self.report("crash", check, tactic, f"{what} must return {DUE[due]}, not {returned}",
                        {"call": what, "returned": returned})
            raise ScenarioAborted(what)
        return value

    @contextlib.contextmanager
    def _inside(self, what: str, check: str, tactic: Hashable | None) -> Iterator[None]:
        """Around a call into the backend: the engine is told, and torch's defaults are the backend's own."""
        self.entering(Calling(what, check, None if tactic is None else str(tactic)))
        try:
            with self.resources.defaults.of_backend():
                yield
        finally:
            self.entering(None)

    @contextlib.contextmanager
    def probing(self, breach: Kind | None, topic: str | None = None) -> Iterator[None]:
        """Around the probe of a contract: what memory shows is a ``breach``, and findings about other topics stay apart."""
        self.breach, self._topic = breach, topic
        try:
            yield
        finally:
            self.breach = self._topic = None

    def crash(self, what: str, error: BaseException, tactic: Hashable | None, check: str,
              declared: int | None = None) -> NoReturn:
        """Report a crash and abort. Memory or disk space that ran out is noted, unless it exceeds the declared workspace.

        declared: bytes of the workspace that a ``run`` was given; None for every other call.
        """
        lacking, asked = exhausted(error), asked_for(error)
        if lacking is not None and not (lacking == "memory" and beyond(asked, declared)):
            self.note(lacking, f"{what} ran out of {lacking}")
            raise ScenarioAborted(what) from error
        more = f" (it asked for {asked} bytes, and declares a workspace of {declared})" if lacking is not None else ""
        self.report("crash", check, tactic, f"{what} raised {type(error).__name__}: {plain(error)}{more}",
                    {"call": what, "exception": type(error).__name__})
        raise ScenarioAborted(what) from error

    def support(self, case: Case) -> Support:
        """Whether the backend has the capability that ``case`` asks for."""
        support: Support = self.guarded("supports", lambda: self.backend.supports(case), due=Support)
        return support

    def traits(self, tactic: Hashable | None = None) -> Traits:
        """What the backend declares for this case."""
        if tactic not in self._traits:
            self._traits[tactic] = self.guarded("traits", lambda: self.backend.traits(self.case, tactic), tactic, due=Traits)
        return self._traits[tactic]

    def numerics(self, case: Case, tactic: Hashable | None) -> Numerics:
        """Declared rounding points of ``case`` by ``tactic``."""
        key = (case.fingerprint, tactic)
        if key not in self._numerics:
            self._numerics[key] = self.guarded("numerics", lambda: self.backend.numerics(case, tactic), tactic, due=Numerics)
        return self._numerics[key]

    def execute(self, check: str, role: str, *, tactic: Hashable | None = None, subject: Subject | None = None,
                wrong: Kind = "mismatch", pattern: int | None = None, refusals: tuple[type[Exception], ...] = (),
                quiet: bool = False) -> Execution:
        """Run once and judge. wrong: the kind of finding for a wrong value. refusals: exceptions that are an answer here.

        quiet: judge, but leave a wrong value to the caller (no finding).
        """
        subject = subject or self.base
        problem = subject.problem
        # made before the call, which may write to the weights; a call that is meant to raise needs none
        judge = None if refusals else subject.judge(self.numerics(problem.case, tactic))
        number = self._pattern if pattern is None else pattern
        self._pattern += pattern is None
        buffer = OutputBuffer(problem.output_shape, problem.output_dtype, problem.row_padding, problem.device)
        out = buffer.poison(number)
        workspace = self._workspace(subject, tactic, check)
        inputs = Snapshot(problem.batch.tensors())
        area = None if workspace is None else workspace.poison(number)
        refused: BaseException | None = None
        returned = None
        start = time.perf_counter()
        try:
            with self._inside(f"run ({role})", check, tactic):
                returned = self.backend.run(subject.prepared, problem.batch, out, tactic=tactic, workspace=area)
                settle(problem.device)
        except (Exception, SystemExit) as error:
            if not isinstance(error, refusals):
                self.crash("run", error, tactic, check, subject.workspace_bytes)
            refused = frameless(error)
        seconds = time.perf_counter() - start
        broken = self._memory(check, tactic, buffer, out, workspace, inputs, returned, refused)
        if refused is None and not broken:
            broken = self._unwritten(check, role, tactic, subject, buffer, number)
        answer = buffer.view().reshape(-1, problem.output_shape[-1]).clone()
        if problem.valid is not None:
            answer[~problem.valid] = 0.0  # rows beyond expert_num_tokens are don't-care
        judgement = Judgement()
        ok = not broken
        if ok and refused is None:
            judge = judge or subject.judge(self.numerics(problem.case, tactic))
            judgement = judge.judge(answer)
            ok = judgement.passed or excused(self, check, tactic, subject, judge, answer, judgement, refusals)
            if ok and judge.rows is not None:
                outside = outside_sample(self, check, tactic, subject, answer)
                ok, judgement = outside.passed, judgement if outside.passed else outside
                judgement = replace(judgement, numbers=judgement.numbers | {"sampled_rows": len(judge.rows)})
        if not ok and not broken and not quiet:
            self._wrong(check, role, tactic, wrong, judgement, subject, answer)
        outcome = "refused" if refused else "ok" if ok else "finding"
        if outcome == "ok" and not judgement.numbers.get("elements"):
            outcome = "unjudged"
        self.executed(check, role, tactic, outcome, seconds, judgement.numbers)
        return Execution(answer, judgement, number, ok, refused, refused is None or not buffer.untouched(),
                         not broken)

    def executed(self, check: str, role: str, tactic: Hashable | None, outcome: str, seconds: float, numbers: dict[str, Any],
                 count: int = 1) -> None:
        """Count ``count`` executions of one call, and tell of them in one event."""
        self.executions += count
        self._emit(Executed(scenario=self.scenario, number=self.executions, check=check, role=role,
                            tactic=None if tactic is None else str(tactic), outcome=outcome, seconds=seconds,
                            numbers=numbers, count=count))

    def workspace_bytes(self, subject: Subject, tactic: Hashable | None = None, check: str = "values") -> int:
        """Bytes of workspace that the backend asks for, asked once a subject."""
        if subject.workspace_bytes is None:
            subject.workspace_bytes = self.guarded("workspace_bytes", lambda: self.backend.workspace_bytes(
                subject.prepared, subject.problem.batch), tactic, check, due=int)
            if not 0 <= subject.workspace_bytes <= LARGEST_WORKSPACE:
                error = ValueError(f"allowed: 0 to {LARGEST_WORKSPACE}")
                self.crash(f"workspace_bytes = {subject.workspace_bytes}", error, tactic, check)
        return subject.workspace_bytes

    def _workspace(self, subject: Subject, tactic: Hashable | None, check: str) -> Workspace | None:
        size = self.workspace_bytes(subject, tactic, check)
        if not size:
            return None
        try:
            return Workspace(size, subject.problem.device)
        except (RuntimeError, ValueError) as error:
            self.crash(f"workspace_bytes = {size}", error, tactic, check)

    def report(self, kind: Kind, check: str, tactic: Hashable | None, sentence: str, numbers: dict[str, Any]) -> None:
        """A finding; the first of its kind, tactic and probed topic in this scenario counts."""
        name = None if tactic is None else str(tactic)
        if self.breach is not None and kind in MEMORY_KINDS:
            kind, sentence = self.breach, sentence if self._topic is None else f"{self._topic}: {sentence}"
        if (kind, name, self._topic) in self._seen:
            return
        self._seen.add((kind, name, self._topic))
        finding = Finding(kind=kind, check=check, backend=self.backend.name, case=self.case, sentence=sentence, tactic=name,
                          numbers=numbers)
        self.findings.append(finding)
        self._emit(Found(scenario=self.scenario, finding=finding.to_data()))

    def note(self, what: str, reason: str) -> None:
        """Something that this scenario did not verify."""
        note = Noted(scenario=self.scenario, backend=self.backend.name, recipe=self.case.recipe, what=what, reason=reason)
        if note not in self.notes:
            self.notes.append(note)
            self._emit(note)

    def _memory(self, check: str, tactic: Hashable | None, buffer: OutputBuffer, out: Tensor, workspace: Workspace | None,
                inputs: Snapshot, returned: object, refused: BaseException | None) -> bool:
        """Everything about memory but unwritten elements; True when a finding was made."""
        broken = False

        def found(kind: Kind, sentence: str, numbers: dict[str, Any]) -> None:
            nonlocal broken
            broken = True
            self.report(kind, check, tactic, sentence, numbers)

        if refused is None and returned is not None:
            found("wrong_return", f"run returned {type(returned).__name__} where None is due",
                        {"returned": type(returned).__name__})
        if buffer.replaced(out):
            found("output_alias", "run replaced the storage of out instead of writing into it", {})
        for place in (buffer.trespass(), None if workspace is None else workspace.trespass()):
            if place is not None:
                found("out_of_bounds_write", place.sentence, {"count": place.count, "where": place.where, "offset": place.offset})
        changed = inputs.changed()
        if changed:
            inputs.restore()
            found("input_mutated", f"run changed {', '.join(changed)}", {"changed": changed})
        return broken

    def _unwritten(self, check: str, role: str, tactic: Hashable | None, subject: Subject, buffer: OutputBuffer,
                   number: int) -> bool:
        """Elements that kept the pattern, and keep another pattern in a second execution too."""
        mask = buffer.unwritten()
        if subject.problem.valid is not None:
            mask &= subject.problem.valid[:, None]
        if not bool(mask.any()):
            return False
        second = OutputBuffer(subject.problem.output_shape, subject.problem.output_dtype, 0, subject.problem.device)
        out = second.poison(number + 1)
        workspace = self._workspace(subject, tactic, check)
        area = None if workspace is None else workspace.poison(number + 1)
        self.guarded(f"run {role}", lambda: self.backend.run(subject.prepared, subject.problem.batch, out, tactic=tactic,
                                                              workspace=area), tactic, check)
        mask &= second.unwritten()
        if not bool(mask.any()):
            return False
        rows, columns = mask.any(1).nonzero()[:, 0], mask.any(0).nonzero()[:, 0]
        total = int(mask.sum())
        self.report("unwritten_output", check, tactic,
                    f"{total} of {mask.numel()} output elements were never written, the first at row {int(rows[0])}, "
                    f"column {int(mask[rows[0]].nonzero()[0, 0])}",
                    {"unwritten": total, "elements": mask.numel(), "rows": [int(rows[0]), int(rows[-1])],
                     "columns": [int(columns[0]), int(columns[-1])], "worst_row": int(rows[0]),
                     "worst_column": int(columns[0]), "map": place_map(mask.double(), "unwritten")})
        return True

    def beside(self, case: Case, *, final: bool = False) -> Session:
        """A session on another case for this one's sake: its executions count here, its findings are not ours."""
        def relay(event: Event) -> None:
            if isinstance(event, Executed):
                self.executions += event.count
                self._emit(replace(event, number=self.executions))

        return Session(self.backend, case, self.resources, scenario=self.scenario, emit=relay, entering=self.entering,
                       final=final)

    def _wrong(self, check: str, role: str, tactic: Hashable | None, wrong: Kind, judgement: Judgement, subject: Subject,
               answer: Tensor) -> None:
        judge = subject.judge(self.numerics(subject.problem.case, tactic))
        numbers = dict(judgement.numbers, rules=list(judgement.failed), role=role)
        if judge.rows is None:
            share = judge.normalised(answer.double()).abs() / judge.limits.element(judge.judged)
            numbers["map"] = place_map(share, "largest |z| over its limit")
        kind = wrong
        if wrong == "mismatch" and trait_of(self.case) is not None and self._right_with_plain_routing(tactic):
            kind = "routing_contract"
        elif wrong == "mismatch" and "finite" in judgement.failed:
            kind = "non_finite"
        self.report(kind, check, tactic, describe(judgement), numbers)

    def _right_with_plain_routing(self, tactic: Hashable | None) -> bool:
        """Whether the same case with ordinary ids is answered rightly, so that the probe is what matters."""
        if self.case.shape.num_tokens == 0:
            return True
        control = self.beside(self.case.with_(routing={"kind": "uniform"}))
        return control.execute("contract", "plain routing", tactic=tactic, quiet=True).ok
