"""A program in any language as an implementation: ``subprocess:COMMAND``.

The program speaks ``rollproof-oracle-1`` on its standard input and output. It is started when it is first asked, and
again after it died or said something that cannot be understood; both count as a crash on the request at hand. What the
wire cannot carry is left out, and the gate counts it.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from tempfile import TemporaryFile
from threading import Timer
from typing import IO, Any, Final

from attrs import define, field

from rollproof.properties.errors import InputError
from rollproof.properties.protocol import METHODS, Adapter, Refusal
from rollproof.properties.wire.messages import (
    CONVERTER,
    DESCRIBE,
    KINDS,
    PROTOCOL,
    Description,
    Mistake,
    read_answer,
    read_line,
    request_object,
)
from rollproof.properties.wire.values import WireError
from rollproof.spec.requests import Accepted, Area, LinearizeGrowth, Refused, Request

PATIENCE: Final = 30.0
"""Seconds for one answer, the program's start included."""
LONGEST_ANSWER: Final = 2**28
TAIL: Final = 120
"""Characters of the error stream that a message ends with."""


class ProgramError(Exception):
    """Not an answer of the contract's kind: the program died, took too long, or did not keep to the protocol."""


class ProgramDied(ProgramError):
    """It ended in place of an answer. The message has the end of its error stream."""


class TimedOut(ProgramError):
    """It took too long, and was ended."""


class MalformedAnswer(ProgramError):
    """Its answer is not what the protocol says."""


class ProgramCrashed(ProgramError):
    """It said itself that something else than an answer came of the request."""


@define
class Running:
    """A started program, and the file that its error stream goes to."""

    arguments: list[str]
    errors: IO[bytes] = field(factory=TemporaryFile)
    process: subprocess.Popen[bytes] = field(init=False)
    expired: bool = False
    """Whether it was ended for taking too long."""

    def __attrs_post_init__(self) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            self.arguments, stdin=pipe, stdout=pipe, stderr=self.errors, start_new_session=True
        )

    def end(self) -> None:
        """End the program and whatever it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.errors):
            with suppress(OSError):
                stream.close()  # type: ignore[union-attr]

    def expire(self) -> None:
        """End the program from another thread; whoever waits for it sees its output end."""
        self.expired = True
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def last_words(self) -> str:
        """How it ended, and the end of what it wrote to its error stream."""
        self.process.wait()
        self.errors.seek(0)
        text = " ".join(self.errors.read().decode(errors="replace").split())
        shown = text if len(text) <= TAIL else f"…{text[-TAIL:]}"
        return f"exit code {self.process.returncode}" + (f": {shown}" if shown else "")


class Program(Adapter):
    """A program behind a pipe. What it offers is what it says in answer to ``describe``.

    Raises ``InputError`` where it cannot be started or does not introduce itself.
    """

    def __init__(self, command: str, patience: float = PATIENCE) -> None:
        self.name = f"subprocess:{command}"  # type: ignore[misc]
        self.arguments = shlex.split(command)
        self.patience = patience
        self._running: list[Running] = []
        self._count = 0
        weakref.finalize(self, _end_all, self._running)
        try:
            answered = self._exchange({"operation": DESCRIBE, "protocol": PROTOCOL})
            described = CONVERTER.structure(answered.get("description"), Description)
        except (ProgramError, IndexError, OSError) as error:
            raise InputError(f"{self.name}: it does not introduce itself: {type(error).__name__}: {error}") from error
        except Exception as error:
            raise InputError(f"{self.name}: its answer to describe is no description: {answered!r:.200}") from error
        if described.protocol != PROTOCOL:
            raise InputError(f"{self.name}: it speaks {described.protocol!r}, expected {PROTOCOL!r}")
        known = {area.value: area for area in Area}
        self.areas = frozenset(known.get(area, area) for area in described.areas)  # type: ignore[misc, arg-type]
        self.offered = frozenset(KINDS[name] for name in described.operations if name in KINDS)

    def ask(self, request: Request) -> Any:
        """The program's value, or its refusal. Raises ``NotCarried``, and ``ProgramError`` for a crash."""
        content = self._exchange(request_object(request))
        if content.keys() & {"crashed", "error"}:
            raise ProgramCrashed(json.dumps(content.get("crashed", content.get("error"))))
        try:
            answer = read_answer(request, content)
        except WireError as error:
            raise MalformedAnswer(str(error)) from error
        if isinstance(answer, Refused):
            raise Refusal(answer.reason)
        assert isinstance(answer, Accepted)
        return answer.value

    def _exchange(self, content: Mapping[str, Any]) -> dict[str, Any]:
        """One line there, one line back."""
        self._count += 1
        line = json.dumps({"id": self._count, **content}, allow_nan=False).encode() + b"\n"
        if not self._running:
            self._running.append(Running(self.arguments))
        (running,) = self._running
        try:
            with self._watched(running):
                answered = _through(running.process, line)
            return self._read(answered, running)
        except BaseException:
            _end_all(self._running)
            raise

    def _read(self, line: bytes, running: Running) -> dict[str, Any]:
        if running.expired:
            raise TimedOut(f"no answer within {self.patience:g} s")
        if not line:
            raise ProgramDied(running.last_words())
        try:
            content = read_line(line.rstrip(b"\r\n"))
        except Mistake as mistake:
            raise MalformedAnswer(f"{mistake}: {line[:60]!r}") from mistake
        if content.pop("id", None) != self._count:
            raise MalformedAnswer(f"an answer to another id than {self._count}: {line[:60]!r}")
        return content

    @contextmanager
    def _watched(self, running: Running) -> Iterator[None]:
        timer = Timer(self.patience, running.expire)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


def _through(process: subprocess.Popen[bytes], line: bytes) -> bytes:
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(BrokenPipeError):
        process.stdin.write(line)
        process.stdin.flush()
    return process.stdout.readline(LONGEST_ANSWER)


def _end_all(running: list[Running]) -> None:
    while running:
        running.pop().end()


def _asked_as(kind: type) -> Callable[..., Any]:
    """A method that sends its arguments as a request of this kind."""

    def method(self: Program, *arguments: Any) -> Any:
        return self.ask(kind(*arguments))

    return method


for _kind, _name in METHODS.items():
    if _kind is not LinearizeGrowth:
        setattr(Program, _name, _asked_as(_kind))


@cache
def program(command: str) -> Program:
    """The program of a command; one for all that ask for it."""
    return Program(command)
