"""Modules that a framework imports and that its row-building functions never call: names without content.

A trainer's module imports its loggers and engines at the top. Where one of them cannot be installed without a GPU, or
would be installed for its import alone, an adapter names it here before it imports the framework:

    absent("wandb", "megatron")
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any


class Absent(ModuleType):
    """A module in which every public name is a class of its own that does nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = type(name, (), {"__module__": self.__name__})
        setattr(self, name, found)
        return found


class AbsentModules(MetaPathFinder, Loader):
    """Finds the modules of some top-level names, and whatever is in them."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = frozenset(names)

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        """Return a package for a name of ours."""
        return ModuleSpec(fullname, self, is_package=True) if fullname.partition(".")[0] in self.names else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module without content."""
        return Absent(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: there is nothing to run."""


def absent(*names: str) -> None:
    """Let ``import`` find top-level modules of these names where none is installed."""
    sys.meta_path.append(AbsentModules(names))


def unrun(name: str) -> None:
    """Let ``import`` find what is in a package of the framework without running the package's ``__init__``.

    For a package that imports a whole trainer at its top, where the adapter needs one module of it.
    """
    spec = find_spec(name)
    if spec is None or spec.submodule_search_locations is None:
        raise ImportError(f"{name}: no such package")
    package = ModuleType(name)
    package.__path__ = list(spec.submodule_search_locations)
    sys.modules[name] = package
