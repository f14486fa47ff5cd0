"""A finding as a program: it builds the request, asks the implementation, and fails while the fault is there.

It is written beside the replay file, is short enough to read, and can be pasted into a test. The replay file has the
same request whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any, Final

from attrs import NOTHING, Factory, fields, has

from rollproof.properties.gate.load import load_implementation
from rollproof.properties.gate.plain import changes
from rollproof.properties.gate.results import Finding
from rollproof.properties.gate.run import both_answers, complaint_of
from rollproof.properties.gate.text import printable
from rollproof.properties.strategies.rollouts.recipes import realize_request
from rollproof.spec.judge.catalogue import BY_ID
from rollproof.spec.judge.invariant import ABSENT, shortened, value_text
from rollproof.spec.judge.requests import Request
from rollproof.spec.tensor import READABLE, Tensor

LONGEST_LINE: Final = 110
"""Characters of a request that is written as one call."""
LONGEST_CHANGE: Final = 120
"""Characters of a value in a printed change."""
MOST_CHANGES: Final = 24
"""Printed; the program has all of them."""
LONGEST_COMPLAINT: Final = 600


def assert_holds(invariant_id: str, request: Request, implementation: str) -> None:
    """Ask an implementation, by the name that ``rollproof check`` takes; the answer must satisfy the invariant.

    Raises ``AssertionError`` with what is wrong, and ``InputError`` where the implementation cannot be loaded.
    """
    expected, actual = both_answers(load_implementation(implementation), request)
    complaint = complaint_of(BY_ID[invariant_id], realize_request(request), expected, actual)
    if complaint is not None:
        raise AssertionError(f"{invariant_id}: {printable(complaint)}")


def input_title(request: Request) -> str:
    """Return the title above the changes."""
    kind = type(request).__name__
    return f"input: {kind}, the plainest one except for" if changes(request) else f"input: the plainest {kind}"


def change_lines(request: Request) -> list[str]:
    """Return what differs from the plainest request of its kind, a line for each field."""
    found = [f"{path} = {change_text(value)}" for path, value in changes(request).items()]
    if len(found) > MOST_CHANGES:
        found[MOST_CHANGES:] = [f"and {len(found) - MOST_CHANGES} more"]
    return [printable(line) for line in found]


def change_text(value: Any) -> str:
    """Return a value for reading: a digest by its beginning, which is all that tells it from others."""
    if isinstance(value, str) and len(value) == 64 and set(value) <= set("0123456789abcdef"):
        return f"'{value[:8]}…' (a digest)"
    return value_text(value, LONGEST_CHANGE)


def program_text(finding: Finding, implementation: str) -> str:
    """Return the finding's program: ``python FILE`` exits with 0 once the fault is gone."""
    item, kind = finding.invariant, type(finding.request)
    words = [f"{item.id}: {item.sentence}", *printable(shortened(finding.complaint, LONGEST_COMPLAINT)).split("\n")]
    request, used = source(finding.request), {*classes(finding.request)}
    imports = ["from rollproof.properties.gate.snippet import assert_holds"]
    if len(request) > LONGEST_LINE:
        told = changes(finding.request)
        used = {kind}.union(*(classes(value) for value in told.values()))
        pairs = "".join(f"    {path!r}: {source(value)},\n" for path, value in told.items())
        request = f"changed({kind.__name__}, {{\n{pairs}}})"
        imports.append("from rollproof.properties.gate.plain import changed")
        if any(value is ABSENT for value in told.values()):
            imports.append("from rollproof.spec.judge.invariant import ABSENT")
    imports += [f"from {one.__module__} import {one.__name__}" for one in used]
    lines = [
        *(f"# {line}" for line in words),
        *sorted(imports),
        "",
        f"request = {request}",
        f"assert_holds({item.id!r}, request, {implementation!r})",
    ]
    return "\n".join(lines) + "\n"


def source(value: Any) -> str:
    """Return Python that makes the value, and that names only classes of ``classes``."""
    kind = type(value)
    if value is ABSENT:
        return "ABSENT"
    if kind is Tensor:
        numbers = source(list(value.values())) if value.dtype in READABLE else "nan"
        if "nan" not in numbers:  # of many bit patterns, so only bytes tell which
            return f"Tensor.of({value.dtype!r}, {numbers}, {value.shape!r})"
        return f"Tensor({value.dtype!r}, {value.shape!r}, {value.data!r})"
    if has(kind):
        given = [one for one in fields(kind) if one.init and not _is_default(one.default, getattr(value, one.name))]
        return f"{kind.__name__}({', '.join(f'{one.name}={source(getattr(value, one.name))}' for one in given)})"
    if isinstance(value, Enum):
        return f"{kind.__name__}.{value.name}"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{source(key)}: {source(item)}' for key, item in value.items())}}}"
    if kind is list:
        return f"[{', '.join(map(source, value))}]"
    if kind is tuple:
        return f"({', '.join(map(source, value))}{',' if len(value) == 1 else ''})"
    if kind is float and not math.isfinite(value):
        return f"float({str(value)!r})"
    if kind is int and value.bit_length() > 128:
        return hex(value)
    return repr(value)


def classes(value: Any) -> Iterator[type]:
    """Yield the classes that ``source`` names."""
    kind = type(value)
    if has(kind):
        yield kind
        if kind is not Tensor:
            for one in fields(kind):
                if one.init:
                    yield from classes(getattr(value, one.name))
    elif isinstance(value, Enum):
        yield kind
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from classes(key)
            yield from classes(item)
    elif kind in (list, tuple):
        for item in value:
            yield from classes(item)


def _is_default(default: Any, value: Any) -> bool:
    if default is NOTHING:
        return False
    wanted = default.factory() if isinstance(default, Factory) else default  # type: ignore[arg-type]
    return type(wanted) is type(value) and source(wanted) == source(value)
