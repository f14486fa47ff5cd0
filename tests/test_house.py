"""Who may import whom, and that the commands in the README are the ones that CI runs."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SPEC = ROOT / "spec" / "rollproof" / "spec"
IMPL = ROOT / "impl" / "rollproof" / "impl"
VOCABULARY = {"rollproof.spec.constants", "rollproof.spec.records", "rollproof.spec.rejections"}
"""What impl takes from the spec: words, never algorithms. Two independent derivations are what is compared."""


def imported_modules(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names.add(node.module)
            names |= {f"{node.module}.{alias.name}" for alias in node.names if node.module == "rollproof.spec"}
    return names


def files(folder: Path) -> list:
    return [pytest.param(path, id=str(path.relative_to(ROOT))) for path in sorted(folder.rglob("*.py"))]


@pytest.mark.parametrize("path", files(SPEC))
def test_spec_imports_the_standard_library_attrs_and_itself(path):
    for name in imported_modules(path):
        top = name.partition(".")[0]
        assert top in sys.stdlib_module_names or top == "attrs" or name.startswith("rollproof.spec"), name


@pytest.mark.parametrize("path", files(IMPL))
def test_impl_takes_only_vocabulary_from_spec(path):
    for name in imported_modules(path):
        assert not name.startswith("rollproof.properties"), name
        assert not name.startswith("rollproof.spec") or name in VOCABULARY, name


def test_importing_the_spec_loads_neither_torch_nor_numpy():
    script = (
        "import pkgutil, importlib, sys, rollproof.spec as spec\n"
        "names = [m.name for m in pkgutil.walk_packages(spec.__path__, 'rollproof.spec.')]\n"
        "[importlib.import_module(name) for name in names]\n"
        "assert len(names) > 15, names\n"
        "print(sorted({'torch', 'numpy', 'tensordict', 'hypothesis'} & sys.modules.keys()))\n"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"


def test_ci_runs_the_test_command_of_the_readme():
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    commands = [line for line in lines if line and not line.startswith(("#", "set "))]
    assert commands == ["make test"]
    assert "make test" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_modules_stay_readable():
    long = {
        str(path.relative_to(ROOT)): count
        for root in ("spec", "impl", "properties")
        for path in sorted((ROOT / root).rglob("*.py"))
        if (count := len(path.read_text(encoding="utf-8").splitlines())) > 440
    }
    assert long == {}
