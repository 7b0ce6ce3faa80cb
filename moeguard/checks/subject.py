"""A subject: one problem to be executed, with its prepared weights and its judges."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import torch

from moeguard.backends.protocol import Backend
from moeguard.checks.defaults import Defaults
from moeguard.core.case import Case
from moeguard.core.numerics import Numerics
from moeguard.layouts.contract import Moved
from moeguard.memory.digest import digest
from moeguard.oracle.judge import Judge
from moeguard.oracle.quick import QuickJudge
from moeguard.oracle.sampling import judge_of
from moeguard.tensors.identity import weight_key
from moeguard.tensors.operand import Weights
from moeguard.tensors.problem import Problem, build_problem
from moeguard.tensors.resident import CAPACITY, Resident
from moeguard.tensors.weights import WeightBank, weight_bytes

if TYPE_CHECKING:
    from moeguard.checks.session import Session

Value = TypeVar("Value")

#: Examined layouts that are remembered: a few words each.
_LAYOUTS = 256
#: Case fields that a prepared layout may not depend on.
_FREE_FIELDS: dict[str, Any] = {"routing": True, "inputs": True, "seed": True, "shape": {"num_tokens"}}


@dataclass(frozen=True, slots=True)
class Verified:
    """A right answer [T, H], and the tactic that gave it (None: the default)."""

    answer: torch.Tensor
    tactic: Hashable | None


@dataclass(slots=True)
class Subject:
    """problem and prepared, with one judge for each set of rounding points that a tactic declares.

    verified: a right answer, which others are compared with where the oracle is sampled; None before the first. again: what
    follows in the same way from another session, or None; its base where there is no such function. stood: exceedances that
    were looked at, and whether they stood.
    """

    problem: Problem
    prepared: Any
    make: Callable[[Numerics], Judge]
    judges: dict[Numerics, Judge] = field(default_factory=dict)
    quick_judges: dict[Numerics, QuickJudge] = field(default_factory=dict)
    workspace_bytes: int | None = None
    verified: Verified | None = None
    again: Callable[[Session], Subject | None] | None = None
    stood: dict[tuple[object, ...], bool] = field(default_factory=dict)

    def verified_as(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Verified | None:
        """The right answer as ``change`` makes it, if there is one."""
        return None if self.verified is None else replace(self.verified, answer=change(self.verified.answer))

    def judge(self, numerics: Numerics) -> Judge:
        """The judge for ``numerics``."""
        if numerics not in self.judges:
            self.judges[numerics] = self.make(numerics)
        return self.judges[numerics]

    def quick_judge(self, numerics: Numerics) -> QuickJudge:
        """The same for executions in a row, made once for all tactics that round alike."""
        if numerics not in self.quick_judges:
            self.quick_judges[numerics] = QuickJudge(self.judge(numerics))
        return self.quick_judges[numerics]


class Recent(Generic[Value]):
    """The last few values by key, least recently used first out."""

    def __init__(self, kept: int) -> None:
        self._kept = kept
        self._held: OrderedDict[str, Value] = OrderedDict()

    def get(self, key: str, make: Callable[[], Value]) -> Value:
        """The value of ``key``, made when it is not held."""
        if key not in self._held:
            self._held[key] = make()
            while len(self._held) > self._kept:
                self._held.popitem(last=False)
        self._held.move_to_end(key)
        return self._held[key]

    def clear(self) -> None:
        """Forget everything."""
        self._held.clear()


class _Prepared(NamedTuple):
    """What a backend made of weights. bytes: of its tensors and of the weights, which it may refer to.

    backend: held, so that its id, a part of the key, stays its own.
    """

    value: Any
    bytes: int
    backend: Backend

    @classmethod
    def by(cls, backend: Backend, weights: Weights, case: Case) -> _Prepared:
        """``backend.prepare`` with the size of what it returns."""
        value = backend.prepare(weights, case)
        known = {tensor.untyped_storage().data_ptr() for tensor in weights.tensors().values()}
        return cls(value, weight_bytes(weights) + _tensor_bytes(value, known), backend)


def _tensor_bytes(value: Any, known: set[int]) -> int:
    """Bytes of the tensors in ``value`` and in what it is made of; storages of ``known``, and those met before, count once."""
    if isinstance(value, torch.Tensor):
        storage = value.untyped_storage()
        if storage.data_ptr() in known:
            return 0
        known.add(storage.data_ptr())
        return storage.nbytes()
    if isinstance(value, Mapping):
        return sum(_tensor_bytes(one, known) for one in value.values())
    if isinstance(value, list | tuple):
        return sum(_tensor_bytes(one, known) for one in value)
    parts = [getattr(value, name, None) for name in (*getattr(value, "__slots__", ()), *getattr(value, "__dict__", ()))]
    return sum(_tensor_bytes(one, known) for one in parts if isinstance(one, torch.Tensor | Mapping | list | tuple))


class Resources:
    """What outlives a scenario in one process: weight bank, prepared layouts, references of recent cases.

    device: ``cpu`` or ``cuda``.
    """

    def __init__(self, device: str = "cpu") -> None:
        kept = 8 if device == "cpu" else 3  # cases are larger there, and several workers may share a GPU
        self.device = torch.device(device)
        self.defaults = Defaults()
        self.bank = WeightBank()
        self._prepared: Resident[_Prepared] = Resident(CAPACITY, lambda prepared: prepared.bytes)
        self._judges: Recent[dict[Numerics, Judge]] = Recent(kept)
        self._problems: Recent[Problem] = Recent(kept)
        self._digests: Recent[dict[str, int]] = Recent(4 * kept)
        self._placed: Recent[tuple[Backend, dict[str, Moved]]] = Recent(_LAYOUTS)
        self._tuning_caps: dict[tuple[int, str], tuple[Backend, tuple[int, ...] | None]] = {}

    def problem(self, case: Case) -> Problem:
        """The tensors of ``case``, shared between the backends that run it."""
        return self._problems.get(case.fingerprint, lambda: build_problem(case, self.bank, self.device))

    def judges(self, case: Case) -> dict[Numerics, Judge]:
        """Judges of ``case``, shared likewise."""
        return self._judges.get(case.fingerprint, dict)

    def digests(self, case: Case) -> dict[str, int]:
        """Digests of the weights of ``case`` when they were first used here, by tensor name."""
        parallel = case.parallel
        key = f"{weight_key(case)}|{parallel.ep_size}.{parallel.ep_rank}.{parallel.tp_size}.{parallel.tp_rank}"
        return self._digests.get(key, lambda: weight_digests(self.problem(case)))

    def prepare(self, backend: Backend, case: Case, weights: Weights) -> Any:
        """``backend.prepare``, reused while weight content and every field that it may depend on are equal."""
        key = f"{_layout_key(backend, case)}|{weight_key(case)}"
        return self._prepared.get(key, lambda: _Prepared.by(backend, weights, case)).value

    def placed(self, backend: Backend, case: Case, examine: Callable[[], dict[str, Moved]]) -> dict[str, Moved]:
        """What ``examine`` said of layouts, by the name of the probe; asked once for all cases that are prepared alike."""
        return self._placed.get(_layout_key(backend, case), lambda: (backend, examine()))[1]  # its id stays its own

    def counters(self) -> dict[str, int]:
        """Hits, misses and bytes of weight sets and of prepared layouts."""
        return {f"{name}_{what}": value for name, store in (("weights", self.bank), ("prepared", self._prepared))
                for what, value in store.counters().items()}

    def tuning_caps(self, backend: Backend, recipe: str,
                    ask: Callable[[], tuple[int, ...] | None]) -> tuple[int, ...] | None:
        """What ``ask`` answered first for this backend and recipe: state cannot be asked twice."""
        key = (id(backend), recipe)
        if key not in self._tuning_caps:
            self._tuning_caps[key] = backend, ask()  # the backend is held, so that its id stays its own
        return self._tuning_caps[key][1]

    def release(self) -> None:
        """Give back what can be made again, after memory ran out."""
        for store in (self._problems, self._judges):
            store.clear()
        self._prepared.drop("")
        self.bank.clear()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def forget(self) -> None:
        """Drop all weights, after a backend changed some: others may be views of them."""
        self.bank.clear()
        self._prepared.drop("")
        self._problems.clear()
        self._digests.clear()
        self._judges.clear()


def _layout_key(backend: Backend, case: Case) -> str:
    """All that a preparation may depend on but the content of the weights."""
    return f"{backend.name}|{id(backend)}|{case.model_dump(exclude=_FREE_FIELDS)}"


def weight_digests(problem: Problem) -> dict[str, int]:
    """Digest of every weight tensor, by name."""
    return {name: digest(tensor) for name, tensor in problem.weights.tensors().items()}


def base_subject(resources: Resources, backend: Backend, case: Case) -> Subject:
    """The subject of ``case`` itself."""
    problem = resources.problem(case)
    prepared = resources.prepare(backend, case, problem.weights)
    return Subject(problem, prepared, lambda numerics: judge_of(problem, numerics), resources.judges(case))
