"""Strings that every format of a report shares: answers, names of files, and what any reader accepts."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from attrs import fields, has

from rollproof.properties.gate.load import is_installed
from rollproof.spec.judge.requests import Accepted, Answer, Crashed, Refused

LONGEST_NAME: Final = 80
"""Characters of a part of a file name; two parts and an ending fit into any file system's 255 bytes."""
LONGEST_VALUE: Final = 400
"""Characters of one value of an answer that are shown."""
MOST_ITEMS: Final = 12
"""Fields, items or differences that are shown one below the other."""


def printable(text: str) -> str:
    """Return the string with every control character and surrogate escaped: no file, terminal or XML refuses it."""
    return "".join(char if char.isprintable() or char in "\n\t" else ascii(char)[1:-1] for char in text)


def safe(name: str) -> str:
    """Return a file name that is valid everywhere; a long one is cut, and told from others by a digest of the whole."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name)
    if len(plain) <= LONGEST_NAME:
        return plain
    digest = hashlib.sha256(name.encode("utf-8", "backslashreplace")).hexdigest()[:16]
    return f"{plain[: LONGEST_NAME - len(digest) - 1]}-{digest}"


def replay_path(folder: Path, implementation: str, name: str) -> Path:
    """Return the path of the replay file of an invariant's or a deviation's finding."""
    return folder / f"{safe(implementation)}-{safe(name)}.json"


def repeated(command: str, file: Path | str, implementation: str) -> str:
    """Return the command line that asks again; a name that files may not hold is part of it."""
    words = [*command.split(), str(file), *([] if is_installed(implementation) else [implementation])]
    return printable(shlex.join(words))


def replay_commands(file: Path | str, implementation: str) -> list[str]:
    """Return the command lines that show a finding again: by its replay file, and by its program."""
    return [
        repeated("rollproof replay", file, implementation),
        f"python {shlex.quote(str(Path(file).with_suffix('.py')))}",
    ]


def value_lines(value: Any) -> Iterator[str]:
    """Yield a value over several lines: a record by its fields, records by their place, and numbers on one line.

    Fields that have their default are left out.
    """
    named: list[tuple[str, Any]] = []
    if has(type(value)):
        known = [(one.name, getattr(value, one.name), one.default) for one in fields(type(value))]
        named = [(name, held) for name, held, default in known if held is not default and held != default]
    elif isinstance(value, Mapping):
        named = [(repr(key), item) for key, item in value.items()]
    elif isinstance(value, list | tuple) and any(has(type(item)) for item in value):
        named = [(f"[{place}]", item) for place, item in enumerate(value)]
    if not named:
        whole = repr(value)
        yield whole if len(whole) <= LONGEST_VALUE else f"{whole[:LONGEST_VALUE]} …"
    for name, held in named[:MOST_ITEMS]:
        first, *below = value_lines(held)
        if below or has(type(held)):
            yield f"{name}:"
            yield from (f"  {line}" for line in (first, *below))
        else:
            yield f"{name} = {first}"
    if len(named) > MOST_ITEMS:
        yield f"and {len(named) - MOST_ITEMS} more"


def answer_text(answer: Answer) -> str:
    """Return an answer as one string."""
    match answer:
        case Accepted(value):
            return f"accepted: {value!r}"
        case Refused(reason):
            return f"refused: {reason}"
        case Crashed(error, message):
            return f"{error} escaped: {message}"


def readable(answer: Answer) -> str:
    """Return an answer over several lines, for a terminal or a page."""
    return printable("\n".join(value_lines(answer.value)) if isinstance(answer, Accepted) else answer_text(answer))
