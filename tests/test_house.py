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
from graphlib import CycleError, TopologicalSorter
from importlib.metadata import entry_points
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = {name: ROOT / name / "rollproof" / name for name in ("spec", "impl", "properties")}
SPEC_VOCABULARY = {f"rollproof.spec.{name}" for name in ("config", "constants", "cut_records", "records", "rejections")}
"""The vocabulary that impl takes from the spec, never algorithms: the gate compares two independent derivations."""
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
    """Yield every module that the source names in an import, or as the whole of a string (for a dynamic import)."""
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


def module_name(path: Path, package: Path) -> str:
    """The dotted name of a module of a package."""
    parts = path.relative_to(package.parents[1]).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path, folder): path for folder in PACKAGES.values() for path in sorted(folder.rglob("*.py"))}
CHAPTER_NAMES = {path.stem for path in PACKAGES["spec"].glob("*.py")} | {
    path.stem for path in PACKAGES["impl"].glob("*.py")
}
ROOM = re.compile(r"^- ``(\w+)``: ", re.MULTILINE)


def rooms() -> list[str]:
    """Return the rooms of properties in the order that its docstring declares."""
    tree = ast.parse(MODULES["rollproof.properties"].read_text(encoding="utf-8"))
    return ROOM.findall(ast.get_docstring(tree) or "")


def room_of(name: str) -> str | None:
    """Return the room of a module of properties; None for modules beside the rooms and outside of properties."""
    parts = name.split(".")
    return parts[2] if parts[:2] == ["rollproof", "properties"] and len(parts) > 2 and parts[2] in rooms() else None


def modules_imported(source: str, *, at_module_level: bool = False) -> set[str]:
    """Modules of ours that the source imports anywhere, or only while it is imported itself."""
    tree = ast.parse(source)
    if at_module_level:
        tree = WithoutFunctions().visit(tree)
    found = set(imported(ast.unparse(tree)))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names & MODULES.keys()
            if names <= MODULES.keys():
                found.discard(str(node.module))
    return found & MODULES.keys()


class WithoutFunctions(ast.NodeTransformer):
    """Drops what does not run while a module is imported."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST | None:
        return ast.Pass()

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST | None:
        return ast.Pass()


def runs_back_up(importer: str, name: str) -> bool:
    """Return whether an import goes from a room, or a module beside the rooms, to a later room."""
    source, target = room_of(importer), room_of(name)
    if importer == "rollproof.properties.cli":
        return False
    if name == "rollproof.properties.cli":
        return True
    if source is None:
        return target is not None
    return target is not None and rooms().index(target) > rooms().index(source)


def first_cycle(graph: dict[str, set[str]]) -> list[str]:
    """Return one circle of modules that import each other, empty where there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


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
        (
            "spec",
            "import attrs, hashlib\nfrom rollproof.spec.judge.rules import group\nfrom rollproof.spec import judge",
        ),
        ("impl", "from rollproof.spec import records\nfrom rollproof.spec.records import Receipt\nimport torch"),
        ("impl", "'''Like rollproof.spec.lineage, but fast.'''"),
    ],
)
def test_an_import_the_right_way_is_allowed(package: str, source: str) -> None:
    assert all(MAY_IMPORT[package](name) for name in imported(source))


def test_rooms_of_properties_are_all_declared() -> None:
    folders = {path.name for path in PACKAGES["properties"].iterdir() if (path / "__init__.py").is_file()}
    assert len(rooms()) == len(set(rooms()))
    assert set(rooms()) == folders


def test_rooms_of_properties_import_only_earlier_rooms() -> None:
    back_up = {
        (name, other)
        for name, path in MODULES.items()
        if name.startswith("rollproof.properties.")
        for other in modules_imported(path.read_text(encoding="utf-8"))
        if runs_back_up(name, other)
    }
    assert back_up == set()


@pytest.mark.parametrize(
    ("importer", "source"),
    [
        ("rollproof.properties.strategies.scalars", "from rollproof.properties.gate import run"),
        ("rollproof.properties.strategies.scalars", "def late():\n    import rollproof.properties.gate.run"),
        ("rollproof.properties.wire.codec", "load('rollproof.properties.commands.check')"),
        ("rollproof.properties.errors", "from rollproof.properties.gate.run import Check"),
        ("rollproof.properties.commands.check", "from rollproof.properties.cli import main"),
    ],
)
def test_an_import_of_a_later_room_is_seen(importer: str, source: str) -> None:
    assert any(runs_back_up(importer, name) for name in modules_imported(source))


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    graph = {
        name: modules_imported(path.read_text(encoding="utf-8"), at_module_level=True) - {name}
        for name, path in MODULES.items()
    }
    assert first_cycle(graph) == []
    graph["rollproof.spec.values"] |= {"rollproof.spec.digest"}
    graph["rollproof.spec.digest"] |= {"rollproof.spec.values"}
    assert set(first_cycle(graph)) == {"rollproof.spec.digest", "rollproof.spec.values"}


def test_chapters_of_the_spec_do_not_import_the_judge() -> None:
    judging = {
        name
        for name, path in MODULES.items()
        if name.startswith("rollproof.spec.") and not name.startswith("rollproof.spec.judge")
        for other in modules_imported(path.read_text(encoding="utf-8"))
        if other.startswith("rollproof.spec.judge")
    }
    assert judging == set()


def mirrored(path: Path) -> bool:
    """Tell whether a file of tests, given relative to ``tests``, is in the folder of something that there is."""
    root, *folders = path.parent.parts
    if root in PACKAGES:
        return PACKAGES[root].joinpath(*folders).is_dir()
    return not folders and (ROOT / root).is_dir()


def test_folders_of_tests_mirror_those_of_what_they_test() -> None:
    tests = ROOT / "tests"
    found = {path.relative_to(tests) for path in tests.rglob("test_*.py") if path.parent != tests}
    assert len(found) > 50
    assert {str(path) for path in found if not mirrored(path)} == set()
    strays = {path.name for path in tests.glob("properties/test_*.py")}
    beside = {f"test_{path.stem}.py" for path in PACKAGES["properties"].glob("*.py")}
    assert strays <= beside, "tests of properties are in the folder of their room"
    assert not mirrored(Path("properties/elsewhere/test_run.py"))
    assert not mirrored(Path("elsewhere/test_run.py"))


SAME_JOB = {"run"}
"""Module names beside those of chapters that rooms share because the modules do the same: run what the room is for."""


def test_modules_of_one_name_do_the_same() -> None:
    named: dict[str, list[str]] = {}
    for name, path in MODULES.items():
        if name.startswith("rollproof.properties.") and path.name != "__init__.py":
            named.setdefault(path.stem, []).append(name)
    shared = {stem: names for stem, names in named.items() if len(names) > 1}
    assert {stem: names for stem, names in shared.items() if stem not in CHAPTER_NAMES | SAME_JOB} == {}


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
    everything = [*project["dependencies"], *(one for requirements in extras.values() for one in requirements)]
    asked = [one for one in everything if name(one) not in {"rollproof", "nemo-gym"}]
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert [pin for pin in pins if not re.fullmatch(r"[\w.-]+==[\w.]+", pin)] == []
    assert {name(requirement) for requirement in asked} <= {name(pin) for pin in pins}


def test_ci_runs_the_test_commands_of_the_readme() -> None:
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    commands = [line for line in lines if line and not line.startswith(("#", "set "))]
    assert commands == ["make test", "make test-deep"]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for target in ("gate", "test", "test-deep"):
        assert re.search(rf"^make {target} ", readme, re.MULTILINE)


def test_modules_stay_readable() -> None:
    long = {
        str(path.relative_to(ROOT)): count
        for folder in (*PACKAGES.values(), ROOT / "tests")
        for path in sorted(folder.rglob("*.py"))
        if (count := len(path.read_text(encoding="utf-8").splitlines())) > 440
    }
    assert long == {}


def test_chapters_of_the_spec_are_short_and_in_the_reading_order() -> None:
    chapters = {path.stem: path.read_text(encoding="utf-8") for path in PACKAGES["spec"].glob("*.py")}
    order = chapters.pop("__init__")
    assert len(chapters) > 30
    assert {name for name in chapters if f"``{name}``" not in order} == set()
    assert {name: lines for name, text in chapters.items() if (lines := len(text.splitlines())) > 250} == {}


def test_the_page_on_the_architecture_has_the_rooms_in_their_order() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    (section,) = [text for text in page.split("\n## ") if text.startswith("properties\n")]
    named = [re.findall(r"`(\w+)/`", row.split("|")[1]) for row in section.splitlines() if row.startswith("| `")]
    assert [room for names in named for room in names] == rooms()
