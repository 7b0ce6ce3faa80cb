"""Event streams written by hand, as a campaign would write them."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any

from moeguard.core.case import Case
from moeguard.core.events import Event, Executed, Found, Noted, RunFinished, ScenarioFinished, ScenarioStarted
from moeguard.core.finding import Finding

CHECKS = ("memory", "accuracy", "determinism", "sequence", "batch", "routing")
RICH_CELLS = [("torch_reference", "bf16"), ("torch_reference", "fp8_block"), ("triton", "bf16"),
              ("triton", "fp8_per_tensor"), ("flashinfer_cutlass", "bf16"), ("flashinfer_cutlass", "fp8_block")]
JUDGED = {"max_z": 3.0, "tau": 6.0, "rms_z": 0.5, "rho": 1.1, "row": 2}


def manifest(**options: Any) -> dict[str, Any]:
    """A manifest with a GPU environment; ``options`` replace the run's."""
    return {
        "schema": 1, "run_id": "20250101-120000-7", "moeguard": "0.1.0", "command": "run",
        "options": {"backends": [], "recipes": [], "profile": "smoke", "budget": 30.0, "max_cases": None, "seed": 7,
                    "device": "cuda", "workers": 2, "timeout": 10.0, "plugins": [], **options},
        "environment": {"device": "cuda", "arch": "sm90", "platform": "Linux-6.1", "machine": "x86_64",
                        "python": "3.12.7", "cpus": 16, "gpu": "NVIDIA H200", "cuda": "12.9", "driver": "575.57",
                        "packages": {"moeguard": "0.1.0", "torch": "2.8.0", "triton": "3.4.0",
                                     "flashinfer-python": "0.4.1", "hypothesis": "6.150", "nvidia-cutlass-dsl": None}},
        "started": "2025-01-01T12:00:00+00:00",
    }


def case(recipe: str = "bf16", tokens: int = 5, seed: int = 0, **fields: Any) -> Case:
    """A small case; ``fields`` by name."""
    shape = {"num_tokens": tokens, "hidden_size": 64, "intermediate_size": 32, "num_experts": 8, "top_k": 2}
    return Case.model_validate({"schema": 1, "shape": shape, "recipe": recipe, "seed": seed, **fields})


def finding(kind: str = "mismatch", *, of: Case | None = None, backend: str = "mine", check: str = "accuracy",
            **fields: Any) -> Finding:
    """A finding with a sentence."""
    return Finding.model_validate({"kind": kind, "check": check, "backend": backend, "case": of or case(),
                                   "sentence": f"A {kind} was seen."} | fields)


def found(scenario: int, value: Finding, *, shrunk: bool = False) -> Found:
    """The event of a finding."""
    return Found(scenario=scenario, finding=value.model_dump(by_alias=True), shrunk=shrunk)


def scenario(number: int, *, backend: str = "mine", of: Case | None = None, checks: Sequence[str] = CHECKS[:2],
             findings: Iterable[Finding] = (), tactic: str | None = None, numbers: dict[str, Any] | None = None,
             outcome: str = "ok", status: str | None = None) -> list[Event]:
    """A scenario with one execution for each check; those that a finding names have outcome ``finding``."""
    of, findings = of or case(seed=number), list(findings)
    bad = {one.check for one in findings}
    executed = [
        Executed(scenario=number, number=place, check=check, role="base" if place == 0 else f"repeat {place}",
                 tactic=tactic, outcome="finding" if check in bad else outcome, seconds=0.25,
                 numbers=JUDGED if numbers is None else numbers)
        for place, check in enumerate(checks)]
    return [
        ScenarioStarted(scenario=number, draw=number, round=number // 8, backend=backend, recipe=of.recipe,
                        case=of.model_dump(mode="json", by_alias=True), fingerprint=of.fingerprint),
        *executed,
        *(found(number, one) for one in findings),
        ScenarioFinished(scenario=number, status=status or ("findings" if findings else "clean"),
                         executions=len(executed), seconds=0.25 * len(executed)),
    ]


def refused(number: int, *, backend: str = "mine", of: Case | None = None, reason: str = "needs sm100") -> list[Event]:
    """A scenario that the backend does not support."""
    of = of or case(seed=number)
    events = scenario(number, backend=backend, of=of, checks=(), status="refused")
    note = Noted(scenario=number, backend=backend, recipe=of.recipe, what="case", reason=reason)
    return [events[0], note, *events[1:]]


def rich(scenarios: int = 400, seed: int = 0, kinds: int = 6) -> list[Event]:
    """A long run of several backends and recipes with findings, refusals and notes; the same for the same arguments."""
    draw = random.Random(seed)
    events: list[Event] = [Noted(scenario=-1, backend="flashinfer_cutedsl", recipe=recipe, what="backend",
                                 reason="nvidia-cutlass-dsl is not installed") for recipe in ("bf16", "nvfp4")]
    defects = [
        ("mismatch", "accuracy", {"max_z": 812.4, "tau": 7.31, "row": 12, "column": 63, "tile": "0,0", "expert": 3,
                                  "rms_z": 31.2, "rho": 44.0}),
        ("unwritten_output", "memory", {"count": 4096, "first": [64, 0], "last": [127, 63]}),
        ("nondeterministic", "determinism", {"differing": 17, "max_ulp": 3}),
        ("stale_state", "sequence", {"max_z": float("inf"), "tau": 7.31}),
        ("routing_contract", "routing", {"ids": [0, -1]}),
        ("crash", "batch", {}),
    ]
    for number in range(scenarios):
        backend, recipe = draw.choice(RICH_CELLS)
        of = case(recipe, draw.choice([0, 1, 2, 3, 7, 8, 31, 64, 100, 257, 1024]), number,
                  routing={"kind": draw.choice(["uniform", "skewed", "one_expert", "invalid_ids"])},
                  inputs={"kind": draw.choice(["normal", "heavy_tail", "outlier", "exact"])},
                  activation={"kind": draw.choice(["swiglu", "geglu", "relu2"])})
        tactic = None if backend == "torch_reference" else draw.choice([None, "(3, 7)", "(12, 0)"])
        z = draw.lognormvariate(1.2, 0.2)
        numbers = {"max_z": z, "tau": 7.3, "rms_z": z / 6, "rho": draw.lognormvariate(0.05, 0.15)}
        here: list[Finding] = []
        if backend != "torch_reference" and draw.random() < 0.06:
            kind, check, proof = draw.choice(defects[:kinds])
            here = [finding(kind, of=of, backend=backend, check=check, tactic=tactic, numbers=proof,
                            reproduced=draw.choice([True, True, False, None]),
                            entry="an-entry" if kind == "routing_contract" else None,
                            sentence=f"{backend} with {recipe}: {kind.replace('_', ' ')} at T = {of.shape.num_tokens}, "
                                     "first seen in row 12 and column 63.")]
            numbers = numbers | {"max_z": 812.4, "rms_z": 31.2, "rho": 44.0} if kind == "mismatch" else numbers
        if recipe == "bf16" and backend == "flashinfer_cutlass" and of.activation.kind == "relu2":
            events += refused(number, backend=backend, of=of, reason="relu2 is not offered by this kernel")
            continue
        checks = CHECKS if backend != "torch_reference" else CHECKS[:4]
        events += scenario(number, backend=backend, of=of, checks=checks, findings=here, tactic=tactic, numbers=numbers)
        if backend == "triton":
            events.append(Noted(scenario=number, backend=backend, recipe=recipe, what="executed tactic",
                                reason="the backend has no witness"))
    return [*events, RunFinished(seconds=298.4)]
