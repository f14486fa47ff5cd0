"""The lines that an answer executed, and in which order: what the fuzzer learns from.

An arc is a pair of lines executed one after the other, as a number of 64 bits that is the same in every process. Only
Python code of a few packages is traced; an implementation in another language is known by what it answers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import CodeType, FrameType
from typing import Any, Final, TypeVar
from zlib import crc32

from rollproof.properties.gate.codes import reason_of
from rollproof.spec.judge.requests import Accepted, Answer, Crashed, Refused

T = TypeVar("T")

OURS: Final = ("rollproof.spec", "rollproof.impl")
_MIX: Final = 2654435761
_BITS: Final = 0xFFFFFFFF


def packages_of(implementation: Any) -> tuple[str, ...]:
    """Return the packages to trace: this project's, and those that the implementation names or is in."""
    home = type(implementation).__module__
    own: Sequence[str] = getattr(implementation, "packages", None) or (home.rpartition(".")[0] or home,)
    return (*OURS, *own)


class Tracer:
    """Collects the arcs of calls, in this thread."""

    def __init__(self, packages: Sequence[str]) -> None:
        self._packages = tuple(packages)
        self._prefixes = tuple(f"{name}." for name in packages)
        self._bases: dict[CodeType, int] = {}
        self._arcs: set[int] = set()
        self._last = 0

    def run(self, call: Callable[[], T]) -> tuple[T, set[int]]:
        """Return what ``call`` returns, and its arcs."""
        self._arcs, self._last = set(), 0
        previous = sys.gettrace()
        sys.settrace(self._enter)
        try:
            result = call()
        finally:
            sys.settrace(previous)
        return result, self._arcs

    def _enter(self, frame: FrameType, _event: str, _: Any) -> Any:
        code = frame.f_code
        base = self._bases.get(code)
        if base is None:
            base = self._bases[code] = self._base(frame)
        return self._line if base else None

    def _line(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            here = self._bases[frame.f_code] ^ (frame.f_lineno * _MIX & _BITS)
            self._arcs.add(self._last << 32 | here)
            self._last = here
        return self._line

    def _base(self, frame: FrameType) -> int:
        """Return a number for a module whose code is traced, 0 for any other."""
        name = frame.f_globals.get("__name__", "")
        traced = name in self._packages or name.startswith(self._prefixes)
        # A module's own lines run when it is imported, which happens once per process.
        return crc32(name.encode()) | 1 if traced and frame.f_code.co_name != "<module>" else 0


def shape(answer: Answer) -> str:
    """Return an answer in a word or two: how it ended, and with which code."""
    match answer:
        case Refused():
            return f"refused {answer.code}"
        case Crashed(error):
            return f"{error} escaped"
        case Accepted():
            reason = reason_of(answer)
            return "accepted" if reason is None else f"rejected {':'.join(reason.split(':')[:2])}"
    return type(answer).__name__


def features(name: str, *answers: Any) -> set[int]:
    """Return what a request's kind and its answers look like, as numbers beside the arcs."""
    shapes = [shape(answer) for answer in answers]
    texts = [f"{name} {at} {text}" for at, text in enumerate(shapes)]
    return {1 << 64 | crc32(text.encode()) for text in texts}
