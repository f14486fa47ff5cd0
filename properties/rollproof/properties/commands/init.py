"""``rollproof init``: write the skeleton of an adapter."""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final

import click
from attrs import fields

from rollproof.properties.errors import InputError
from rollproof.spec.judge.requests import KINDS, Area, Kind
from rollproof.spec.records import CAPABILITY

DOTTED: Final = re.compile(r"\b((?:\w+\.)+)(\w+)")
"""A name with its module, as in the representation of a type."""
WORD: Final = re.compile(r"\b[A-Za-z_]\w*")
WIDTH: Final = 120

Imports = defaultdict[str, set[str]]
"""Names by module."""


@click.command("init")
@click.argument("areas", nargs=-1, required=True, metavar="AREA...", type=click.Choice([area.value for area in Area]))
@click.option(
    "--file", type=click.Path(dir_okay=False, path_type=Path), default=Path("my_adapter.py"), show_default=True,
    help="Where to write it; must not exist.",
)  # fmt: skip
@click.option("--class", "name", default="Mine", show_default=True, help="Name of the adapter's class.")
def command(areas: tuple[str, ...], file: Path, name: str) -> None:
    """Write an adapter for the AREAs that your implementation offers, with every method of theirs.

    Each method raises NotImplementedError until you call your code there, so the first check fails.
    """
    if not name.isidentifier():
        raise InputError(f"--class {name}: expected a name of a Python class")
    kinds = [kind for kind in KINDS if kind.area.value in areas and not kind.measured]
    try:
        with file.open("x", encoding="utf-8") as opened:
            opened.write(skeleton(name, areas, kinds, f"{file.stem}:{name}"))
    except OSError as error:
        raise InputError(f"{file}: {error.strerror}") from error
    where = "" if file.parent == Path() else f"cd {file.parent} && "
    click.echo(f"{file}: {len(kinds)} method{'' if len(kinds) == 1 else 's'} to fill in, or to delete. Then:")
    click.echo(f"  {where}rollproof check {file.stem}:{name} --profile quick")


def skeleton(name: str, areas: Sequence[str], kinds: Sequence[Kind], target: str) -> str:
    """Return the source of an adapter that offers areas, with a method for each of ``kinds``."""
    imports: Imports = defaultdict(set)
    imports["rollproof.properties.adapters.protocol"].add("Adapter")
    imports["rollproof.spec.judge.requests"].add("Area")
    methods = "\n".join(method(kind, imports) for kind in kinds)
    named = [f"Area.{area.name}" for area in Area if area.value in areas]
    offered = f"    areas = frozenset({{{', '.join(named)}}})"
    if len(offered) > WIDTH:
        offered = f"    areas = frozenset(\n{in_lines('        {', named, '}')}\n    )"
    lines = [
        f'"""How rollproof calls the implementation under test: rollproof check {target}"""\n',
        "from __future__ import annotations\n",
        *import_lines(imports),
        "",
        f"class {name}(Adapter):",
        '    """To refuse, raise Refusal(reason), from where Adapter comes from; any other exception is a crash."""\n',
        f'    name = "{name.lower()}"',
        f"{offered}\n",
    ]
    return "\n".join(lines) + f"\n{methods}"


def method(kind: Kind, imports: Imports) -> str:
    """Return the source of the method for a kind of request, and add what it imports."""
    module = kind.request.__module__
    arguments = []
    for field in fields(kind.request):
        if field.metadata == CAPABILITY:
            continue
        written = annotation(kind.request, field.name)
        for word in WORD.findall(written):
            if word in origins(module):
                imports[origins(module)[word]].add(word)
        arguments.append(f"{field.name}: {written}")
    head = f"    def {kind.method}(self, {', '.join(arguments)}) -> {returned(kind, imports)}:"
    if len(head) > WIDTH:
        head = head.replace("(self, ", "(\n        self,\n        ").replace(") ->", ",\n    ) ->")
        for argument in arguments[1:]:
            head = head.replace(f", {argument}", f",\n        {argument}")
    what = textwrap.indent(inspect.cleandoc(kind.request.__doc__ or ""), " " * 8).strip()
    text = f'"""{what}"""' if "\n" not in what else f'"""{what}\n        """'
    return f'{head}\n        {text}\n        raise NotImplementedError("{kind.method}: call your implementation")\n'


def annotation(request: type, name: str) -> str:
    """Return a field's type as its class writes it: the class's own fields hold types once cattrs has used it."""
    written = [inspect.get_annotations(cls) for cls in request.__mro__]
    return next(str(types[name]) for types in written if name in types)


def returned(kind: Kind, imports: Imports) -> str:
    """Return a kind's type of answer as source, and add what it imports."""

    def bare(match: re.Match[str]) -> str:
        imports[match[1].rstrip(".")].add(match[2])
        return match[2]

    text = inspect.formatannotation(kind.answer)
    if isinstance(kind.answer, type) and kind.answer.__module__ != "builtins":
        text = f"{kind.answer.__module__}.{kind.answer.__qualname__}"
    if re.search(r"(?<![\w.])Any\b", text):
        imports["typing"].add("Any")
    return DOTTED.sub(bare, text)


@cache
def origins(module: str) -> dict[str, str]:
    """Return for every name that a module of the spec imports or defines where it comes from."""
    found: dict[str, str] = {}
    for node in ast.parse(inspect.getsource(sys.modules[module])).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            found.update((alias.name, node.module) for alias in node.names)
        elif isinstance(node, ast.ClassDef):
            found[node.name] = module
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found[node.target.id] = module
    return found


def import_lines(imports: Imports) -> list[str]:
    """Return the import statements: the standard library's, then ours."""
    ours = {module for module in imports if module.startswith("rollproof.")}
    blocks = []
    for modules in (imports.keys() - ours, ours):
        block = [one_import(module, sorted(imports[module])) for module in sorted(modules)]
        if block:
            blocks.append("\n".join(block) + "\n")
    return blocks


def one_import(module: str, names: Sequence[str]) -> str:
    """Return one import statement, in parentheses where it is long."""
    line = f"from {module} import {', '.join(names)}"
    return line if len(line) <= WIDTH else in_lines(f"from {module} import (", names, ")")


def in_lines(head: str, items: Sequence[str], tail: str) -> str:
    """Return items between head and tail, one a line where they are too long for one line."""
    line = f"{head}{', '.join(items)}{tail}"
    if len(line) <= WIDTH:
        return line
    margin = " " * (len(head) - len(head.lstrip()))
    return f"{head}\n" + "".join(f"{margin}    {item},\n" for item in items) + f"{margin}{tail}"
