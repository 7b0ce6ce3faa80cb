"""``moeguard_case``, ``moeguard_backend`` and the marker in tests of one's own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from plugin.conftest import LOADED, Ran

Run = Callable[..., Ran]


def test_cases_and_backends_are_parametrised(run: Run, loop: str, pytester: pytest.Pytester) -> None:
    pytester.makepyfile('''
        import pytest
        import moeguard as mg

        @pytest.mark.moeguard(recipes=["bf16"], profile="smoke", max_cases=150, seed=5)
        def test_case(moeguard_case, request):
            assert isinstance(moeguard_case, mg.Case)
            assert moeguard_case.recipe == "bf16" and moeguard_case.shape.num_tokens <= 257
            assert moeguard_case.fingerprint in request.node.name

        @pytest.mark.moeguard(backends=["loop", "torch_reference"], recipes=["bf16", "fp16"], max_cases=6)
        def test_both(moeguard_case, moeguard_backend):
            assert moeguard_backend.supports(moeguard_case).supported
            assert mg.check(moeguard_backend, moeguard_case).passed

        def test_backend(moeguard_backend):
            assert moeguard_backend.name

        def test_without():
            pass
    ''')
    done = run(loop, "--moeguard-backend=loop", "-n", 2)
    assert done.code == 0, done.out
    assert sum("test_case[" in name for name in done.tests) == 150
    assert sum("test_both[" in name for name in done.tests) == 12
    assert "test_backend[loop]" in "".join(done.tests)
    skipped = [name for name, outcome in done.tests.items() if outcome == "skipped"]
    assert skipped and all("loop" in name for name in skipped)
    assert "plain bf16 swiglu only" in "".join(one.attrib.get("message", "") for one in done.junit.iter("skipped"))


def test_a_backend_that_cannot_run_here_is_skipped(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makeconftest('''
        import moeguard as mg
        from moeguard.backends.torch_reference import TorchReference

        class Absent(TorchReference):
            name = "absent"
            def availability(self):
                return mg.Availability.no("needs SM 10.0")

        class Mine(TorchReference):
            name = "mine"

        mg.register(Absent())
        mg.register(Mine())
    ''')
    pytester.makepyfile('''
        import pytest

        @pytest.mark.moeguard(backends=["absent", "mine"])
        def test_backend(moeguard_backend):
            assert moeguard_backend.name == "mine"
    ''')
    done = run()
    assert sorted(done.tests.values()) == ["passed", "skipped"]
    both = run("--moeguard", "--moeguard-backend=mine,absent", "--moeguard-recipe=fp16", "--moeguard-budget=1s", "-k", "values")
    assert both.tests == {"moeguard::mine::fp16::values": "passed", "moeguard::absent::fp16::values": "skipped"}, both.out


WRONG = {
    "recipes=['nope']": "nope", "recipes='bf16'": "a list of names", "recipes=[]": "a list of names",
    "colour=1": "colour: unknown keyword", "max_cases=0": "max-cases: 0", "max_cases='many'": "a whole number",
    "backends=['nope']": "marker: backend: unknown value 'nope'", "profile='nope'": "nope", "3": "keywords alone",
    "seed=-1": "seed: -1",
}


@pytest.mark.parametrize("marker", WRONG)
def test_a_wrong_marker_is_one_sentence(marker: str, pytester: pytest.Pytester, in_process: None) -> None:
    pytester.makepyfile(f'''
        import pytest

        @pytest.mark.moeguard({marker})
        def test_case(moeguard_case):
            pass
    ''')
    done = pytester.runpytest_inprocess(*LOADED)
    text = done.stdout.str()
    assert done.ret == pytest.ExitCode.INTERRUPTED
    assert "moeguard marker: " in text and WRONG[marker] in text
    assert "Traceback" not in text and "parameters.py" not in text
    assert "During handling" not in text and "direct cause" not in text
