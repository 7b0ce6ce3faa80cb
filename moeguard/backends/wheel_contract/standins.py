"""Modules that stand in for nvidia-cutlass-dsl and cuda-python, so that FlashInfer's own modules import without them.

Names of a stand-in are classes that do nothing: they can be base classes, annotations and decorators (which return the function
that they are given). What FlashInfer defines around them keeps its real signature. Nothing of a kernel can be run.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Iterator, Sequence
from typing import Any

#: Top-level modules of the distributions that may be missing.
ROOTS = {"cutlass": "nvidia-cutlass-dsl", "cuda": "cuda-python"}


class _Nothing(type):
    """The class of every stand-in."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__") and "mlir" not in name:  # Python's own protocols are not there; __extract_mlir_values__ is
            raise AttributeError(name)
        made = _make(name)
        setattr(cls, name, made)
        return made

    def __call__(cls, *args: Any, **named: Any) -> Any:
        if cls.__module__ != __name__:
            return super().__call__(*args, **named)
        if len(args) == 1 and not named:
            only = args[0]
            if isinstance(only, int) or (callable(only) and not isinstance(only, _Nothing)):
                return only  # a number of its type, or a function that is decorated
        return _make("result")

    def __getitem__(cls, key: Any) -> Any:
        return cls

    def __iter__(cls) -> Iterator[Any]:
        return iter(())

    def _same(cls, *others: Any) -> Any:
        return cls

    def _no(cls, other: Any) -> bool:
        return False

    __or__ = __ror__ = __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __floordiv__ = __mod__ = _same
    __and__ = __rand__ = __lshift__ = __rshift__ = __neg__ = __invert__ = _same
    __lt__ = __le__ = __gt__ = __ge__ = _no


def _make(name: str) -> Any:
    return _Nothing(name, (), {"__module__": __name__})


class _Module(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = _make(name)
        setattr(self, name, made)
        return made


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, roots: Sequence[str]) -> None:
        self._roots = frozenset(roots)

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if fullname.split(".", 1)[0] not in self._roots:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def install() -> list[str]:
    """Stand in for what is missing here, for the rest of this process. Returns what was stood in for, in words.

    The properties of device 0 are made up as well where there is no GPU: 0.6.11 reads their number of multiprocessors when it is
    imported beside nvidia-cutlass-dsl.
    """
    import torch

    missing = [root for root in ROOTS if importlib.util.find_spec(root) is None]
    if missing:
        sys.meta_path.append(_Finder(missing))
    done = [ROOTS[root] for root in missing]
    if not torch.cuda.is_available():
        made_up = types.SimpleNamespace(multi_processor_count=1, major=0, minor=0, name="none", total_memory=0)
        torch.cuda.get_device_properties = lambda device=None: made_up  # type: ignore[assignment, return-value]
        done.append("the properties of device 0")
    return done
