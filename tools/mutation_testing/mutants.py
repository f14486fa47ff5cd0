"""Making mutants: one change of one operator of cosmic-ray at one place, where it changes behaviour.

What is not behaviour is left out: annotations and type aliases, ``TYPE_CHECKING`` blocks, the ``*`` between parameters,
and free error text, that is f-strings and arguments that only word a message. Docstrings and other plain strings have
no operator. So are changes that do not compile or that change nothing.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

from attrs import frozen
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.provider import OperatorProvider

from tools.mutation_testing import ROOT

Position = tuple[int, int]
"""A line, counted from 1, and a column, counted from 0."""

LEFT_OUT: Final = (
    "impl/rollproof/impl/dataplane/transfer_queue.py",
    "impl/rollproof/impl/pool.py",
    "impl/rollproof/impl/kernels/",
)
"""Modules that cannot run here: clients of Ray services, and code for a GPU."""

WORDING: Final = {"show", "describe", "__repr__", "__str__"}
"""Functions that only word a value for a message."""

COMPLAINTS: Final = ("rollproof.spec.judge.invariant", "rollproof.spec.judge.rules.")
"""Modules whose f-strings are complaints that people read."""

WORDED_BY: Final = {"expect": 1, "Rejected": 1, "Rejection": 2, "ValueError": 0, "TypeError": 0, "RuntimeError": 0}
"""Calls whose positional arguments from this one on word a message. A ``subject`` is a keyword, and normative."""


@frozen
class Mutant:
    """The ``occurrence``-th change that ``operator`` makes in a line with this content in the module, and its result.

    Those four identify it. ``number`` is what cosmic-ray calls the occurrence; it counts over the whole module.
    """

    module: str
    line: str
    operator: str
    occurrence: int
    number: int
    row: int

    @property
    def id(self) -> str:
        """One line that stays the same while the line it changes does."""
        return f"{self.module} | {self.line} | {self.operator} | {self.occurrence}"

    @property
    def path(self) -> Path:
        """The file of the module."""
        return path_of(self.module)

    def source(self) -> str | None:
        """Return the module with the change made; None where that does not compile, or is the same program."""
        original = self.path.read_text(encoding="utf-8")
        try:
            changed: str | None = mutate_code(original, operators()[self.operator], self.number)
            same = changed is None or ast.dump(ast.parse(changed)) == ast.dump(ast.parse(original))
        except SyntaxError:
            return None
        return None if same else changed

    def diff(self) -> str:
        """Return the lines that differ, with "-" and "+" before them."""
        original, changed = self.path.read_text(encoding="utf-8"), self.source() or ""
        lines = difflib.unified_diff(original.splitlines(), changed.splitlines(), lineterm="", n=0)
        return "\n".join(line for line in lines if line[:1] in "+-" and line[:3] not in ("---", "+++"))


@cache
def operators() -> dict[str, Any]:
    """Return every operator that needs no arguments, by name."""
    provider = OperatorProvider()
    return {name: provider[name]() for name in provider if not provider[name].arguments()}


def path_of(module: str) -> Path:
    """Return the file of a module of ours."""
    stem = ROOT.joinpath(module.split(".")[1], *module.split("."))
    return stem / "__init__.py" if stem.is_dir() else stem.with_suffix(".py")


def modules_of(root: str) -> list[str]:
    """Return the modules of a source root that are mutated."""
    paths = sorted((ROOT / root).rglob("*.py"))
    kept = [path for path in paths if not path.relative_to(ROOT).as_posix().startswith(LEFT_OUT)]
    parts = [path.relative_to(ROOT / root).with_suffix("").parts for path in kept]
    return [".".join(part for part in names if part != "__init__") for names in parts]


def mutants_of(module: str, only: frozenset[str] | None = None) -> list[Mutant]:
    """Return every mutant of a module, or those that some operators make; whether they compile is not yet known."""
    source = path_of(module).read_text(encoding="utf-8")
    lines, apart, tree = source.splitlines(), _Apart.of(module, source), get_ast(source)
    nodes = list(ast_nodes(tree))
    seen: Counter[tuple[str, str]] = Counter()
    found = []
    for name, operator in operators().items():
        if only is not None and name not in only:
            continue
        positions = (
            None if getattr(node.parent, "type", "") == "parameters" else start
            for node in nodes
            for start, _ in operator.mutation_positions(node)
        )
        for number, start in enumerate(positions):
            if start is None or start in apart:
                continue
            text = lines[start[0] - 1].strip()
            found.append(Mutant(module, text, name, seen[text, name], number, start[0]))
            seen[text, name] += 1
    return found


def ranked(mutants: list[Mutant], seed: int) -> list[Mutant]:
    """Return the mutants in an order drawn by ``seed``: its first n are a uniform sample, similar after an edit."""
    return sorted(mutants, key=lambda mutant: hashlib.sha256(f"{seed} {mutant.id}".encode()).digest())


def sample(root: str, count: int, seed: int) -> tuple[list[Mutant], int]:
    """Draw ``count`` mutants of a source root that compile, uniformly; return them and how many there were."""
    everything = [mutant for module in modules_of(root) for mutant in mutants_of(module)]
    drawn: list[Mutant] = []
    for mutant in ranked(everything, seed):
        if len(drawn) == count:
            break
        if mutant.source() is not None:
            drawn.append(mutant)
    return drawn, len(everything)


# ── what is not behaviour ──────────────────────────────────────────────────────────────────────────────────────────


@frozen
class _Apart:
    """The ranges of a source that are left out."""

    ranges: tuple[tuple[Position, Position], ...]

    def __contains__(self, position: Position) -> bool:
        return any(start <= position < end for start, end in self.ranges)

    @classmethod
    def of(cls, module: str, source: str) -> _Apart:
        lines = source.splitlines()
        complaints = module.startswith(COMPLAINTS)
        found = [node for top in ast.walk(ast.parse(source)) for node in _left_out(top, complaints)]
        return cls(tuple(_range(node, lines) for node in found))


def _range(node: Any, lines: list[str]) -> tuple[Position, Position]:
    """Return where a node starts and ends; ast counts columns in bytes."""

    def column(row: int, offset: int) -> int:
        return len(lines[row - 1].encode()[:offset].decode())

    return (
        (node.lineno, column(node.lineno, node.col_offset)),
        (node.end_lineno, column(node.end_lineno, node.end_col_offset)),
    )


def _left_out(node: ast.AST, complaints: bool) -> Iterator[ast.AST | None]:
    match node:
        case ast.AnnAssign(annotation=annotation, value=value):
            yield annotation
            if "TypeAlias" in ast.dump(annotation) and value is not None:
                yield value
        case ast.arg(annotation=ast.expr() as annotation):
            yield annotation
        case ast.FunctionDef(name=name):
            if node.returns is not None:
                yield node.returns
            if name in WORDING:
                yield from node.body
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            yield node
        case ast.JoinedStr() if complaints:
            yield node
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=arguments) if name in WORDED_BY:
            yield from arguments[WORDED_BY[name] :]
