"""Probes: sequences of calls on the real ``AutoTuner`` of the installed FlashInfer, with stand-ins for kernels and clock.

Each takes nothing, or JSON data, and returns facts as JSON data; None stands for a feature that this release has not. They
run on a CPU (see ``moeguard.autotune.fake_runner`` for what is replaced) and are meant for a process of their own.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from moeguard.autotune import fake_runner
from moeguard.autotune.caps import effective_cap, effective_caps
from moeguard.autotune.fake_runner import OP
from moeguard.autotune.runner_class import unbuilt_runner_class
from moeguard.autotune.statistics import Statistics, choices
from moeguard.autotune.vacuous import conclude

CAP = 8192
TACTICS = (0, 1, 2)


def _config(cap: int = CAP, linked: int = 1) -> Any:
    """The buckets of the real ``MoERunner`` for ``cap``, on a class that nobody else uses."""
    made: Any = unbuilt_runner_class()
    effective_cap(made, cap)
    return fake_runner.tuning_config(made.tuning_config, linked)


def _by_bucket(tokens: int, tactic: int) -> float:
    """A clock by which tactic = tokens is the fastest, so that a choice tells its bucket."""
    return 1.0 + abs(tokens - tactic)


def caps(asked: Sequence[int] = (8192, 512, 8192)) -> dict[str, Any]:
    """The caps that the real ``MoERunner`` works with after each of ``asked``, in one process."""
    made: Any = unbuilt_runner_class()
    return {"asked": list(asked), "throwaway": effective_caps(made, asked), "again": effective_caps(made, asked),
            "class_itself": [effective_cap(made, cap) for cap in asked]}


def buckets(cap: int, tokens: Sequence[int]) -> dict[str, Any]:
    """The buckets of the real ``MoERunner`` for ``cap``, and the one that serves each of ``tokens``."""
    made: Any = unbuilt_runner_class()
    effective_cap(made, cap)
    (spec,) = made.tuning_config.dynamic_tensor_specs
    return {"buckets": sorted(spec.gen_tuning_buckets), "serving": [spec.map_to_tuning_buckets(count) for count in tokens]}


def between_buckets(tokens: Sequence[int] = (1000, 4000, 8000, 12000), linked: int = 5) -> list[dict[str, Any]]:
    """Tune every bucket up to 8192, then look up counts between and above them; ``linked`` tensors share the count.

    In 0.6.6 none is found when tensors are linked: only the first one's count is mapped to a bucket.
    """
    config = _config(linked=linked)
    known = sorted(config.dynamic_tensor_specs[0].gen_tuning_buckets)
    with fake_runner.tuner() as tuner:
        made = fake_runner.runner(known, _by_bucket)
        fake_runner.tune(tuner, [made], config, CAP, linked)
        read = choices(tuner, OP, [made], config, lambda count: fake_runner.inputs(count, linked), tokens)
    return [choice.to_data() for choice in read]


def stale_cap(tokens: int = 8192) -> dict[str, Any]:
    """Which bucket's tactic a call with ``tokens`` gets after the caps 8192, 512, 8192, all tuned again at the end."""
    made: Any = unbuilt_runner_class()
    for cap in (8192, 512, 8192):
        effective_cap(made, cap)
    config = fake_runner.tuning_config(made.tuning_config)
    with fake_runner.tuner() as tuner:
        given = fake_runner.runner((64, 512, 4096, 8192), _by_bucket)
        fake_runner.tune(tuner, [given], config, tokens)
        (choice,) = choices(tuner, OP, [given], config, fake_runner.inputs, [tokens])
        return {"served_by_bucket": int(choice.tactic), "buckets": len(tuner.profiling_cache)}


def round_trip(extra: dict[str, Any] | None = None) -> dict[str, Any] | None:
    """Tune, save, forget, load: what is found again. ``extra`` is written over the file's metadata before it is loaded."""
    with fake_runner.tuner() as tuner, tempfile.TemporaryDirectory() as folder:
        if not hasattr(tuner, "save_configs"):
            return None
        path = Path(folder) / "tactics.json"
        made, config = fake_runner.runner(TACTICS, lambda tokens, tactic: float(3 - tactic)), _config(4)
        fake_runner.tune(tuner, [made], config, 4)
        before = choices(tuner, OP, [made], config, fake_runner.inputs, [1, 2, 4])
        tuner.save_configs(str(path))
        data = json.loads(path.read_text(encoding="utf-8"))
        data.setdefault("_metadata", {}).update(extra or {})
        path.write_text(json.dumps(data), encoding="utf-8")
        tuner.clear_cache()
        forgotten = choices(tuner, OP, [made], config, fake_runner.inputs, [4])
        loaded = tuner.load_configs(str(path))
        after = choices(tuner, OP, [made], config, fake_runner.inputs, [1, 2, 4])
    return {"loaded": loaded is not False, "forgotten": not forgotten[0].found, "same": before == after,
            "found": [choice.found for choice in after], "keys": sorted(key for key in data if not key.startswith("_"))}


def reversed_runners() -> dict[str, Any]:
    """Tune with runners (A, B), of which B is faster, then look up with (B, A). Up to 0.6.14, A comes back with B's tactic."""
    config = _config(4)
    with fake_runner.tuner() as tuner:
        slow = fake_runner.runner((1,), lambda tokens, tactic: 9.0, "Slow")
        fast = fake_runner.runner((7,), lambda tokens, tactic: 1.0, "Fast")
        tuned = fake_runner.tune(tuner, [slow, fast], config, 4)
        (choice,) = choices(tuner, OP, [fast, slow], config, fake_runner.inputs, [4])
    return {"tuned": list(tuned), "looked_up": [choice.runner, int(choice.tactic)]}


def skip_ops() -> dict[str, Any] | None:
    """Tune with the op in ``skip_ops``: what comes back, what is cached, and whether it is concluded to be vacuous."""
    if not _takes("skip_ops"):
        return None
    return _tuning(lambda tokens, tactic: None, skip_ops={OP})


def blocklist(metadata: dict[str, str] | None = None) -> dict[str, Any] | None:
    """Block tactic 2, the fastest, by a file with or without ``_metadata``: whether it loads, and what is chosen then."""
    with fake_runner.tuner() as tuner, tempfile.TemporaryDirectory() as folder:
        if not hasattr(tuner, "_blocklist"):
            return None
        path = Path(folder) / "blocklist.json"
        data: dict[str, Any] = {"invalid_tactics": {f"{OP}::FakeRunner": [2]}}
        if metadata is not None:
            data["_metadata"] = metadata
        path.write_text(json.dumps(data), encoding="utf-8")
        loaded = tuner._blocklist.load(str(path))
        made = fake_runner.runner(TACTICS, lambda tokens, tactic: float(3 - tactic))
        chosen = fake_runner.tune(tuner, [made], _config(1), 1)
        return {"loaded": loaded is not False, "chosen": chosen[1], "profiled": sorted({tactic for _, tactic in made.ran})}


def given_blocklist(text: str, offered: dict[str, list[int]]) -> dict[str, Any] | None:
    """Tune two operations with this file in ``FLASHINFER_TACTICS_BLOCKLIST``, as the tuner reads it when it is made.

    offered: tactic ids by operation, the last one being fastest, of a runner class called ``MoERunner``. What is loaded, and
    for each operation what was profiled and what was chosen.
    """
    variable = "FLASHINFER_TACTICS_BLOCKLIST"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "blocklist.json"
        path.write_text(text, encoding="utf-8")
        os.environ[variable] = str(path)
        try:
            with fake_runner.tuner() as tuner:
                if not hasattr(tuner, "_blocklist"):
                    return None
                chosen, profiled = {}, {}
                for op, tactics in offered.items():
                    made = fake_runner.runner(tactics, lambda tokens, tactic: 1000.0 - tactic, "MoERunner")
                    chosen[op] = fake_runner.tune(tuner, [made], _config(1), 1, op=op)[1]
                    profiled[op] = sorted({tactic for _, tactic in made.ran})
                return {"loaded": tuner._blocklist.summary(), "chosen": chosen, "profiled": profiled}
        finally:
            del os.environ[variable]


def cached_before_blocked() -> dict[str, Any] | None:
    """Tune, then block the winner: what a lookup, and another tuning, answer."""
    with fake_runner.tuner() as tuner:
        if not hasattr(tuner, "_blocklist"):
            return None
        made, config = fake_runner.runner(TACTICS, lambda tokens, tactic: float(3 - tactic)), _config(1)
        fake_runner.tune(tuner, [made], config, 1)
        tuner._blocklist._invalid.setdefault(f"{OP}::FakeRunner", set()).add(2)
        (choice,) = choices(tuner, OP, [made], config, fake_runner.inputs, [1])
        return {"looked_up": int(choice.tactic), "tuned_again": fake_runner.tune(tuner, [made], config, 1)[1]}


def given_buckets() -> dict[str, Any] | None:
    """Tune with ``tuning_buckets=(100, 1000)``: whether 700 tokens are found inside of the context, and outside of it."""
    if not _takes("tuning_buckets"):
        return None
    library, config = importlib.import_module("flashinfer.autotuner"), _config()
    made = fake_runner.runner((100, 1000), _by_bucket)
    with fake_runner.tuner() as tuner:
        fake_runner.tune(tuner, [made], config, 1000, tuning_buckets=(100, 1000))
        with library.autotune(False, tuning_buckets=(100, 1000)):
            inside = tuner.choose_one(OP, [made], config, fake_runner.inputs(700))[1]
        with library.autotune(False, tuning_buckets=(100, 1000), round_up=True):
            above = tuner.choose_one(OP, [made], config, fake_runner.inputs(700))[1]
        outside = tuner.choose_one(OP, [made], config, fake_runner.inputs(700))[1]
    return {"inside": inside, "inside_rounding_up": above, "outside": outside}


def healthy() -> dict[str, Any]:
    """A tuning in which everything works."""
    return _tuning(lambda tokens, tactic: None)


def all_tactics_fail() -> dict[str, Any]:
    """A tuning in which every tactic raises, as when the timing kernel cannot be built."""
    return _tuning(lambda tokens, tactic: RuntimeError("no timing kernel"))


def one_tactic_fails() -> dict[str, Any]:
    """A tuning in which the fastest tactic raises."""
    return _tuning(lambda tokens, tactic: RuntimeError("unsupported") if tactic == 2 else None)


def out_of_memory(from_tokens: int = 1) -> dict[str, Any]:
    """A tuning in which memory runs out in buckets of at least ``from_tokens``, up to 4."""
    return _tuning(lambda tokens, tactic: torch.OutOfMemoryError("out of memory") if tokens >= from_tokens else None)


def only_the_fallback() -> dict[str, Any]:
    """A tuning that is offered -1 and nothing else."""
    return _tuning(lambda tokens, tactic: None, tactics=(-1,))


def warm_cache() -> dict[str, Any]:
    """The same tuning twice; the facts are those of the second."""
    return _tuning(lambda tokens, tactic: None, times=2)


def _tuning(failing: Callable[[int, int], BaseException | None], *, tactics: Sequence[int] = TACTICS, times: int = 1,
            **options: Any) -> dict[str, Any]:
    """Tune the buckets up to 4, the last of the ``tactics`` being fastest; counters around it, choices and conclusion."""
    config = _config(4)
    with fake_runner.tuner() as tuner:
        made = fake_runner.runner(tactics, lambda tokens, tactic: float(max(tactics) + 1 - tactic), failing=failing)
        for _ in range(times):
            before, ran = Statistics.of(tuner), len(made.ran)
            returned = fake_runner.tune(tuner, [made], config, 4, **options)
        after = Statistics.of(tuner)
        read = choices(tuner, OP, [made], config, fake_runner.inputs, [1, 2, 4])
    conclusion = conclude(before, after, read, {OP: [str(tactic) for tactic in tactics]})
    return {"returned": returned[1], "before": before.to_data(), "after": after.to_data(), "runs": len(made.ran) - ran,
            "choices": [choice.to_data() for choice in read], "conclusion": conclusion.to_data()}


def run(wanted: dict[str, list[Any]]) -> dict[str, Any]:
    """Several probes in this process: by label, the name of a probe and its arguments. Raises KeyError on other names."""
    return {label: PROBES[name](*arguments) for label, (name, *arguments) in wanted.items()}


def _takes(option: str) -> bool:
    return option in inspect.signature(importlib.import_module("flashinfer.autotuner").autotune).parameters


PROBES: dict[str, Callable[..., Any]] = {probe.__name__: probe for probe in (
    caps, buckets, between_buckets, stale_cap, round_trip, reversed_runners, skip_ops, blocklist,
    given_blocklist, cached_before_blocked,
    given_buckets, healthy, all_tactics_fail, one_tactic_fails, out_of_memory, only_the_fallback, warm_cache)}
