"""Who may import whom, what the wheel holds, and that the README's commands are the ones that CI runs."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = {name: ROOT / name / "rollproof" / name for name in ("spec", "impl", "properties")}
SPEC_VOCABULARY = {"rollproof.spec.constants", "rollproof.spec.records", "rollproof.spec.rejections"}
"""What impl takes from the spec: words, never algorithms. Two independent derivations are what is compared."""
OPTIONAL = {"nemo_rl", "ray", "transfer_queue", "triton"}
"""What a module may need that a plain installation lacks."""

MODULE_NAME = re.compile(r"rollproof(\.\w+)+")
IMPORT_ALL = """
import importlib, json, pkgutil, sys
names, before = json.loads(sys.argv[1]), set(sys.modules)
for name in names:
    package = importlib.import_module(name)
    found = pkgutil.walk_packages(package.__path__, name + ".") if hasattr(package, "__path__") else ()
    for module in found:
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            if str(error.name).partition(".")[0] not in json.loads(sys.argv[2]):
                raise
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def imported(source: str) -> Iterator[str]:
    """Every module that the source names in an import, or as the whole of a string (for a dynamic import)."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative import"
            assert node.module is not None
            if node.module in {"rollproof", "rollproof.spec"}:
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
            else:
                yield node.module
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and MODULE_NAME.fullmatch(node.value):
            yield node.value


def spec_may_import(name: str) -> bool:
    if name.partition(".")[0] == "rollproof":
        return f"{name}.".startswith("rollproof.spec.")
    return name.partition(".")[0] in {*sys.stdlib_module_names, "attrs"}


def impl_may_import(name: str) -> bool:
    if name.partition(".")[0] == "rollproof":
        return f"{name}.".startswith("rollproof.impl.") or name in SPEC_VOCABULARY
    return True


MAY_IMPORT = {"spec": spec_may_import, "impl": impl_may_import}


def modules_loaded_by(*names: str) -> set[str]:
    """What a fresh interpreter loads for these modules, or packages with all that is in them."""
    arguments = [json.dumps(names), json.dumps(sorted(OPTIONAL))]
    result = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, *arguments], capture_output=True, text=True, check=False, cwd=ROOT / "tests"
    )
    assert result.returncode == 0, result.stderr
    return set(json.loads(result.stdout))


@pytest.mark.parametrize(
    ("package", "path"),
    [
        pytest.param(package, path, id=str(path.relative_to(ROOT)))
        for package in MAY_IMPORT
        for path in sorted(PACKAGES[package].rglob("*.py"))
    ],
)
def test_imports_go_one_way(package: str, path: Path) -> None:
    refused = {name for name in imported(path.read_text(encoding="utf-8")) if not MAY_IMPORT[package](name)}
    assert refused == set()


@pytest.mark.parametrize(
    ("package", "source"),
    [
        ("spec", "import numpy"),
        ("spec", "def late():\n    from torch import Tensor"),
        ("spec", "from rollproof import impl"),
        ("spec", "import rollproof.specification"),
        ("impl", "import rollproof"),
        ("impl", "from rollproof import properties"),
        ("impl", "from rollproof import spec"),
        ("impl", "from rollproof.spec import lineage"),
        ("impl", "from rollproof.spec.lineage import verify_chain"),
        ("impl", "import importlib\nimportlib.import_module('rollproof.spec.lineage')"),
        ("impl", "import rollproof.properties.cli as cli"),
    ],
)
def test_an_import_the_other_way_is_seen(package: str, source: str) -> None:
    assert not all(MAY_IMPORT[package](name) for name in imported(source))


@pytest.mark.parametrize(
    ("package", "source"),
    [
        ("spec", "import attrs, hashlib\nfrom rollproof.spec.rules import group\nfrom rollproof.spec import rules"),
        ("impl", "from rollproof.spec import records\nfrom rollproof.spec.records import Receipt\nimport torch"),
        ("impl", "'''Like rollproof.spec.lineage, but fast.'''"),
    ],
)
def test_an_import_the_right_way_is_allowed(package: str, source: str) -> None:
    assert all(MAY_IMPORT[package](name) for name in imported(source))


def test_importing_the_spec_loads_attrs_and_nothing_else() -> None:
    loaded = modules_loaded_by("rollproof.spec")
    assert len([name for name in loaded if name.startswith("rollproof.spec.")]) > 15
    foreign = {name.partition(".")[0] for name in loaded} - set(sys.stdlib_module_names)
    assert foreign == {"attr", "attrs", "rollproof"}
    assert not [name for name in loaded if name.startswith(("rollproof.impl", "rollproof.properties"))]


def test_importing_impl_loads_only_the_vocabulary_of_the_spec() -> None:
    def of_the_others(names: set[str]) -> set[str]:
        return {name for name in names if name.startswith(("rollproof.spec", "rollproof.properties"))}

    assert of_the_others(modules_loaded_by("rollproof.impl")) <= of_the_others(modules_loaded_by(*SPEC_VOCABULARY))


@pytest.mark.parametrize("package", PACKAGES)
def test_the_namespace_has_no_init_and_every_package_is_typed(package: str) -> None:
    assert not (PACKAGES[package].parent / "__init__.py").exists()
    assert (PACKAGES[package] / "__init__.py").is_file()
    assert (PACKAGES[package] / "py.typed").is_file()


def test_the_wheel_holds_every_file_of_the_three_packages(tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="the build backend is in the extra dev")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    expected = {
        path.relative_to(folder.parents[1]).as_posix()
        for folder in PACKAGES.values()
        for path in folder.rglob("*")
        if path.suffix in {".py", ".jinja", ".json"} or path.name == "py.typed"
    }
    assert packed == expected


def test_every_entry_point_names_something() -> None:
    found = entry_points(group="rollproof.implementations")
    assert {"impl", "nemo-gym"} <= set(found.names)
    assert all(callable(point.load()) for point in found if point.value.startswith("rollproof."))
    (script,) = entry_points(group="console_scripts", name="rollproof")
    assert callable(script.load())


def test_everything_that_setup_installs_is_pinned() -> None:
    def name(requirement: str) -> str:
        return re.split(r"[^\w.-]", requirement, maxsplit=1)[0].lower().replace("_", "-")

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    asked = [*project["dependencies"], *extras["dev"], *extras["docs"]]
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert [pin for pin in pins if not re.fullmatch(r"[\w.-]+==[\w.]+", pin)] == []
    assert {name(requirement) for requirement in asked} <= {name(pin) for pin in pins}


def test_ci_runs_the_test_command_of_the_readme() -> None:
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    commands = [line for line in lines if line and not line.startswith(("#", "set "))]
    assert commands == ["make test"]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert re.search(r"^make gate\b", readme, re.MULTILINE)
    assert re.search(r"^make test\b", readme, re.MULTILINE)


def test_modules_stay_readable() -> None:
    long = {
        str(path.relative_to(ROOT)): count
        for folder in PACKAGES.values()
        for path in sorted(folder.rglob("*.py"))
        if (count := len(path.read_text(encoding="utf-8").splitlines())) > 440
    }
    assert long == {}
