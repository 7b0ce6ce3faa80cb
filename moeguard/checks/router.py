"""``check_router``: one router on one case. Buffers are poisoned and guarded, inputs are watched, the answer is judged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from moeguard.backends.routers.protocol import Router
from moeguard.checks.defaults import Defaults
from moeguard.checks.lost_device import settle
from moeguard.core.finding import Kind
from moeguard.core.router import RouterCase, RouterFinding
from moeguard.memory import poison
from moeguard.memory.buffers import Trespass, Workspace
from moeguard.memory.digest import Snapshot
from moeguard.oracle.routing import judge_routing
from moeguard.tensors.logits import make_router_inputs

#: Execution number whose poison is finite: no router writes such an id, and no weight is that large.
_POISON = 1


@dataclass(frozen=True, slots=True)
class RouterVerdict:
    """tokens: judged. undefined, near_ties: of these, as in oracle.routing. unsupported: why it was not run, else None."""

    findings: tuple[RouterFinding, ...] = ()
    tokens: int = 0
    undefined: int = 0
    near_ties: int = 0
    unsupported: str | None = None

    @property
    def passed(self) -> bool:
        """True when the router ran and nothing was found."""
        return self.unsupported is None and not self.findings


def check_router(router: Router, case: RouterCase, device: str = "cpu") -> RouterVerdict:
    """Run ``router`` once on ``case`` and judge every token. device: ``cpu`` or ``cuda``. Runs in the calling process."""
    defaults = Defaults()
    with defaults.of_guard():
        return _check(router, case, device, defaults)


def _check(router: Router, case: RouterCase, device: str, defaults: Defaults) -> RouterVerdict:
    findings: list[RouterFinding] = []

    def found(kind: Kind, rule: str, sentence: str, numbers: dict[str, Any]) -> None:
        findings.append(RouterFinding(kind, router.name, rule, case, sentence, numbers))

    call = "supports"
    try:
        support = router.supports(case)
        if not support.supported:
            return RouterVerdict(unsupported=support.reason or "not supported")
        call = "weights_dtype"
        dtype = router.weights_dtype(case)
        if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
            raise TypeError(f"returned {dtype!r}; allowed: a floating torch.dtype")
        call = "precision"
        precision = router.precision(case)
    except (Exception, SystemExit) as error:
        found("crash", call, _raised(call, error), {})
        return RouterVerdict(tuple(findings))
    logits, bias = make_router_inputs(case, device)
    shape = case.num_tokens, case.top_k
    buffers = {name: Workspace(shape[0] * shape[1] * kind.itemsize, device) for name, kind in _outputs(dtype)}
    ids, weights = (buffers[name].poison(_POISON).view(kind).view(shape) for name, kind in _outputs(dtype))
    watched = Snapshot({"logits": logits} | ({} if bias is None else {"bias": bias}))
    try:
        with defaults.of_backend():
            returned: Any = router.route(case, logits, bias, ids, weights)
            settle(logits.device)
    except (Exception, SystemExit) as error:
        found("crash", "exception", _raised("route", error), {})
        return RouterVerdict(tuple(findings))
    if returned is not None:
        found("wrong_return", "return", f"route returned {type(returned).__name__}, not None", {})
    changed = watched.changed()
    if changed:
        found("input_mutated", "inputs", f"route changed {' and '.join(changed)}", {"changed": changed})
        watched.restore()
    for name, buffer in buffers.items():
        trespass: Trespass | None = buffer.trespass()
        if trespass is not None:
            found("out_of_bounds_write", "bounds", f"{name}: {trespass.count} guard bytes were written, the first at byte "
                  f"{trespass.offset}", {"count": trespass.count, "offset": trespass.offset})
    untouched = (ids.view(torch.uint8).view(*shape, 4) == poison.byte(_POISON)).all(2)
    if untouched.any():
        token, count = int(untouched.nonzero()[0, 0]), int(untouched.sum())
        found("unwritten_output", "written", f"token {token}: {count} ids were not written", {"count": count, "token": token})
        return RouterVerdict(tuple(findings), case.num_tokens)
    judged = judge_routing(case, logits, bias, ids, weights, precision)
    for fault in judged.faults:
        more = f"; {fault.count} of {case.num_tokens} tokens" if fault.count > 1 else ""
        found("routing_contract", fault.rule, f"{case.method}, {case.probe}: token {fault.token}: {fault.clause}{more}",
              fault.numbers | {"token": fault.token, "tokens": fault.count})
    return RouterVerdict(tuple(findings), judged.tokens, judged.undefined, judged.near_ties)


def _raised(call: str, error: BaseException) -> str:
    return f"{call} raised {type(error).__name__}: {' '.join(str(error).split())[:300]}"


def _outputs(weights: torch.dtype) -> tuple[tuple[str, torch.dtype], ...]:
    return ("ids", torch.int32), ("weights", weights)
