"""Options: what is allowed, and durations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from moeguard.core.case import Case
from moeguard.core.duration import duration
from moeguard.core.errors import CaseError, MoeguardError, UnknownNameError
from moeguard.engine.options import Options, check_device

GOOD = Options(backends=("torch_reference",), recipes=("bf16",), budget=1.0, max_cases=3)
SHAPE = dict(num_tokens=1, hidden_size=8, intermediate_size=8, num_experts=2, top_k=1)


def test_good_options_pass() -> None:
    GOOD.check()
    replace(GOOD, budget=None, max_cases=None).check()


def test_round_trip() -> None:
    assert Options.from_data(GOOD.to_data()) == GOOD


@pytest.mark.parametrize(("change", "message"), [
    ({"backends": ("nope",)}, "--backend: unknown value 'nope'"),
    ({"recipes": ("nope",)}, "--recipe: unknown value 'nope'; allowed: bf16, "),
    ({"profile": "nope"}, "--profile: unknown value 'nope'; allowed: smoke, "),
    ({"device": "tpu"}, "--device: unknown value 'tpu'"),
    ({"budget": 0.0}, "--budget: 0; allowed: more than 0"),
    ({"budget": -1.0}, "--budget: -1; allowed: more than 0"),
    ({"max_cases": 0}, "--max-cases: 0; allowed: more than 0"),
    ({"workers": 0}, "--workers: 0; allowed: more than 0"),
    ({"timeout": -0.5}, "--timeout: -0.5; allowed: more than 0"),
    ({"seed": -1}, "--seed: -1; allowed: 0 or more"),
    ({"repeat": 0}, "--repeat: 0; allowed: more than 0"),
])
def test_the_wrong_option_is_named_with_what_is_allowed(change: dict[str, Any], message: str) -> None:
    with pytest.raises(MoeguardError) as error:
        replace(GOOD, **change).check()
    assert str(error.value).startswith(message)


def test_a_case_that_no_memory_holds() -> None:
    huge = Case.model_validate({"shape": SHAPE | {"hidden_size": 2**30, "intermediate_size": 2**30}})
    with pytest.raises(CaseError, match="shape: needs at least .* GiB; allowed: "):
        replace(GOOD, cases=(huge.model_dump(mode="json", by_alias=True),)).check()


@pytest.mark.parametrize(("text", "seconds"), [("30", 30), ("30s", 30), ("0.5s", 0.5), ("5m", 300), ("2h", 7200), ("1e1", 10)])
def test_durations(text: str, seconds: float) -> None:
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "m", "-1", "0", "0s", "nan", "inf", "1d", "1 h 5", "five", "--"])
def test_texts_that_are_no_duration(text: str) -> None:
    with pytest.raises(MoeguardError, match="--timeout: .*allowed: a positive number of seconds"):
        duration(text, "--timeout")


def test_devices() -> None:
    check_device("cpu")
    with pytest.raises(UnknownNameError, match="--device: unknown value 'tpu'; allowed: cpu, cuda"):
        check_device("tpu")
