"""The registry: names, plug-in files, and what is wrong with those that do not load."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import moeguard as mg
from moeguard.backends import registry
from moeguard.backends.protocol import Availability, Backend, Support, Traits
from moeguard.core.case import Case
from moeguard.core.errors import MoeguardError, PluginError, UnknownNameError
from moeguard.core.numerics import Numerics

METHODS = "    def prepare(self, weights, case): ...\n    def run(self, *a, **k): ...\n"
CASE = Case.model_validate({"shape": dict(num_tokens=3, hidden_size=8, intermediate_size=8, num_experts=2, top_k=1)})


@pytest.fixture(autouse=True)
def clean(clean_registry: None) -> Iterator[None]:
    yield


class Plain(Backend):
    name = "plain"

    def prepare(self, weights, case):  # type: ignore[no-untyped-def]
        return None

    def run(self, prepared, batch, out, *, tactic=None, workspace=None):  # type: ignore[no-untyped-def]
        return None


def plugin(tmp_path: Path, source: str, name: str = "plugin.py") -> Path:
    path = tmp_path / name
    path.write_text(source)
    return path


def test_built_in_backends_are_known_and_load() -> None:
    for name in registry.BUILTINS:
        assert name in registry.names()
        assert registry.get(name).name == name
        assert registry.get(name) is registry.get(name)


def test_register_replaces() -> None:
    first, second = Plain(), Plain()
    assert registry.register(first) is first
    assert mg.register(second) is second
    assert registry.get("plain") is second
    assert registry.names().count("plain") == 1


@pytest.mark.parametrize("name", ["", "Mine", "my-kernel", "a b", "\u00e4", "mine\n", 3, None])
def test_bad_names(name: object) -> None:
    backend = Plain()
    backend.name = name  # type: ignore[assignment]
    with pytest.raises(PluginError, match=r"Plain\.name: .*; allowed: one or more of a-z, 0-9, _"):
        registry.register(backend)


@pytest.mark.parametrize("value", [None, 3, Plain, "plain"])
def test_only_instances_are_registered(value: object) -> None:
    with pytest.raises(PluginError, match=r"expected an instance of moeguard\.Backend"):
        registry.register(value)  # type: ignore[arg-type]


def test_unknown_names_are_refused_with_those_that_exist() -> None:
    with pytest.raises(UnknownNameError, match="--backend: unknown value 'nope'; allowed: .*torch_reference"):
        registry.get("nope")


def test_a_plugin_is_imported_once(tmp_path: Path) -> None:
    path = plugin(tmp_path, f"import moeguard as mg\nclass B(mg.Backend):\n    name = 'once'\n{METHODS}mg.register(B())\n")
    assert registry.load_plugin(path) == ("once",)
    backend = registry.get("once")
    assert registry.load_plugin(str(path)) == ("once",)
    assert registry.get("once") is backend


def test_a_plugin_sees_its_file_and_may_hold_several_backends(tmp_path: Path) -> None:
    path = plugin(tmp_path, f"import moeguard as mg\nfrom pathlib import Path\nassert Path(__file__).name == 'plugin.py'\n"
                            f"class B(mg.Backend):\n    name = 'several_b'\n{METHODS}class A(B):\n    name = 'several_a'\n"
                            "mg.register(B())\nmg.register(A())\n")
    assert registry.load_plugin(path) == ("several_b", "several_a")


def test_classes_that_are_only_defined_are_registered(tmp_path: Path) -> None:
    path = plugin(tmp_path, f"import moeguard as mg\nclass B(mg.Backend):\n    name = 'defined'\n{METHODS}")
    assert registry.load_plugin(path) == ("defined",)


@pytest.mark.parametrize(("source", "message"), [
    ("def broken(:\n", "failed to import: SyntaxError: "),
    ("import no_such_module\n", "failed to import: ModuleNotFoundError: No module named 'no_such_module'"),
    ("1 / 0\n", "failed to import: ZeroDivisionError: "),
    ("raise SystemExit\n", "failed to import: SystemExit"),
    ("raise Exception('two\\nlines')\n", "failed to import: Exception: two lines"),
    ("", "registers no backend; call moeguard.register"),
    ("import moeguard as mg\nclass B(mg.Backend):\n    name = 'b'\n    def prepare(self, w, c): ...\nmg.register(B())\n",
     "failed to import: TypeError: .*run"),
    (f"import moeguard as mg\nclass B(mg.Backend):\n{METHODS}mg.register(B())\n", "B.name: None; allowed"),
    (f"import moeguard as mg\nclass B(mg.Backend):\n    name = 'B'\n{METHODS}mg.register(B())\n", "B.name: 'B'; allowed"),
])
def test_plugins_that_do_not_load(source: str, message: str, tmp_path: Path) -> None:
    path = plugin(tmp_path, source)
    with pytest.raises(PluginError, match=message) as error:
        registry.load_plugin(path)
    assert str(error.value).startswith(f"--plugin: {path}")
    assert "\n" not in str(error.value)
    path.write_text(f"import moeguard as mg\nclass B(mg.Backend):\n    name = 'mended'\n{METHODS}")
    assert registry.load_plugin(path) == ("mended",)


def test_paths_that_are_no_plugin(tmp_path: Path) -> None:
    for path in (tmp_path / "missing.py", tmp_path):
        with pytest.raises(PluginError, match="is not a file"):
            registry.load_plugin(path)
    with pytest.raises(PluginError, match="not a Python file"):
        registry.load_plugin(plugin(tmp_path, "", "plugin.txt"))


def test_entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    found = (EntryPoint("reference_again", "moeguard.backends.torch_reference:TorchReference", registry.ENTRY_POINT_GROUP),
             EntryPoint("gone", "no_such_module:Backend", registry.ENTRY_POINT_GROUP))
    monkeypatch.setattr(registry, "entry_points", lambda group: found)
    assert {"reference_again", "gone"} <= set(registry.names())
    assert isinstance(registry.get("reference_again"), Backend)
    with pytest.raises(PluginError, match="entry point 'gone' failed to load: ModuleNotFoundError"):
        registry.get("gone")


def test_the_protocol_has_the_documented_defaults() -> None:
    backend = Plain()
    assert backend.availability() == Availability.yes()
    assert backend.supports(CASE) == Support.yes()
    assert backend.traits(CASE) == Traits(deterministic=True, graph_safe=False, batch_invariant=False, invalid_ids="unsupported",
                                          duplicate_ids="supported", zero_tokens="supported")
    assert backend.numerics(CASE) == Numerics.of("bf16")
    assert backend.tactics(None, None) == ()  # type: ignore[arg-type]
    assert backend.tune(None, None) is None  # type: ignore[arg-type]
    assert backend.executed_tactic() is None
    assert backend.workspace_bytes(None, None) == 0  # type: ignore[arg-type]


def test_a_reason_is_kept() -> None:
    assert (Availability.no("why").available, Availability.no("why").reason) == (False, "why")
    assert (Support.no("why").supported, Support.no("why").reason) == (False, "why")


def test_errors_of_users_share_a_base() -> None:
    assert issubclass(PluginError, MoeguardError) and MoeguardError.exit_code == 2
