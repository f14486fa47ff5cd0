"""A program in any language as an implementation: ``subprocess:COMMAND``.

The program speaks ``rollproof-oracle-1`` on its standard input and output. It is started for the first request, and
again after it died or wrote something that cannot be parsed; both count as a crash on the current request. What the
wire cannot carry is left out, and the gate counts it.
"""

from __future__ import annotations

import json
import os
import selectors
import shlex
import subprocess
import sys
import time
import weakref
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, Final

from rollproof.properties.adapters.protocol import Adapter, Refusal, answers_by_asking
from rollproof.properties.errors import InputError
from rollproof.properties.wire.converter import WireError
from rollproof.properties.wire.messages import (
    CONVERTER,
    DESCRIBE,
    PROTOCOL,
    REQUESTS,
    Description,
    Mistake,
    read_answer,
    read_line,
    request_object,
)
from rollproof.spec.judge.requests import Accepted, Area, Refused, Request

PATIENCE: Final = 30.0
"""Seconds for one answer, the program's start included."""
LONGEST_ANSWER: Final = 2**28
CHUNK: Final = 2**16
ENDING: Final = 5.0
"""Seconds for a program to end, once it must."""
KEEPER: Final = Path(__file__).with_name("keeper.py")
TAIL: Final = 120
"""Characters of the error stream that a message ends with."""


class ProgramError(Exception):
    """Not an answer of the contract's kind: the program died, took too long, or broke the protocol."""


class ProgramDied(ProgramError):
    """The program ended instead of answering. The message has the end of its error stream."""


class TimedOut(ProgramError):
    """The program took too long, and was ended."""


class MalformedAnswer(ProgramError):
    """The program's answer is not what the protocol says."""


class ProgramCrashed(ProgramError):
    """The program itself reported something else than an answer."""


class Running:
    """A started program, the file that its error stream goes to, and what was read of its output.

    The program runs under ``keeper.py``, which ends it and all that it started once ``lifeline`` is closed.
    """

    def __init__(self, arguments: list[str]) -> None:
        self.errors: IO[bytes] = TemporaryFile()  # noqa: SIM115 - closed by end()
        self.read = bytearray()
        pipe = subprocess.PIPE
        far, self.lifeline = os.pipe()
        command = [sys.executable, "-I", "-S", str(KEEPER), str(far), *arguments]
        self.process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=self.errors, start_new_session=True, pass_fds=[far]
        )
        os.close(far)
        for stream in self.streams:
            os.set_blocking(stream.fileno(), False)

    @property
    def streams(self) -> tuple[IO[bytes], IO[bytes]]:
        """The program's standard input and output."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        return self.process.stdin, self.process.stdout

    def exchange(self, line: bytes, patience: float) -> bytes:
        """Write a line and return the next one, or what there was at the end of the output. Raises ``TimedOut``.

        Neither a program that does not read nor another process that holds its output open can make this wait longer.
        """
        deadline = time.monotonic() + patience
        source, sink = self.streams
        pending = memoryview(line)
        with selectors.DefaultSelector() as selector:
            selector.register(source, selectors.EVENT_WRITE)
            selector.register(sink, selectors.EVENT_READ)
            start = 0
            while (end := self.read.find(b"\n", start) + 1) == 0 and len(self.read) < LONGEST_ANSWER:
                start = len(self.read)
                left = deadline - time.monotonic()
                ready = selector.select(left) if left > 0 else []
                if not ready:
                    raise TimedOut(f"no answer within {patience:g} s")
                for key, _ in ready:
                    if key.fileobj is sink:
                        chunk = os.read(sink.fileno(), CHUNK)
                        self.read += chunk
                        if not chunk:
                            return bytes(self.read)
                    else:
                        try:
                            pending = pending[os.write(source.fileno(), pending[:CHUNK]) :]
                        except BrokenPipeError:
                            pending = pending[:0]
                        if not pending:
                            selector.unregister(source)
        answered = bytes(self.read[: end or LONGEST_ANSWER])
        del self.read[: len(answered)]
        return answered

    def end(self) -> None:
        """End the program and whatever it started."""
        with suppress(OSError):
            os.close(self.lifeline)
        try:
            self.process.wait(ENDING)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for stream in (*self.streams, self.errors):
            with suppress(OSError):
                stream.close()

    def last_words(self) -> str:
        """Return how it ended, and the end of what it wrote to its error stream."""
        try:
            ending = f"exit code {self.process.wait(ENDING)}"
        except subprocess.TimeoutExpired:
            ending = "it closed its output and is still running"
        self.errors.seek(0)
        text = " ".join(self.errors.read().decode(errors="replace").split())
        shown = text if len(text) <= TAIL else f"…{text[-TAIL:]}"
        return ending + (f": {shown}" if shown else "")


@answers_by_asking
class Program(Adapter):
    """A program behind a pipe. It offers what its answer to ``describe`` says.

    Raises ``InputError`` where it cannot be started or its handshake is not valid.
    """

    def __init__(self, command: str, patience: float = PATIENCE) -> None:
        self.name = f"subprocess:{command}"  # type: ignore[misc]
        self.arguments = shlex.split(command)
        self.patience = patience
        self._running: list[Running] = []
        self._count = 0
        weakref.finalize(self, _end_all, self._running)
        if not self.arguments:
            raise InputError(f"{self.name}: no valid handshake: the command is empty")
        try:
            answered = self._exchange({"operation": DESCRIBE, "protocol": PROTOCOL})
            described = CONVERTER.structure(answered.get("description"), Description)
        except (ProgramError, IndexError, OSError) as error:
            raise InputError(f"{self.name}: no valid handshake: {type(error).__name__}: {error}") from error
        except Exception as error:
            raise InputError(f"{self.name}: its answer to describe is not a description: {answered!r:.200}") from error
        if described.protocol != PROTOCOL:
            raise InputError(f"{self.name}: it speaks {described.protocol!r}, expected {PROTOCOL!r}")
        known = {area.value: area for area in Area}
        self.areas = frozenset(known.get(area, area) for area in described.areas)  # type: ignore[misc, arg-type]
        self.policies = frozenset(described.policies)  # type: ignore[misc]
        self.offered = frozenset(REQUESTS[name] for name in described.operations if name in REQUESTS)

    def ask(self, request: Request) -> Any:
        """Return the program's value, or raise its refusal. Raises ``NotCarried``, and ``ProgramError`` for a crash."""
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
        """Send one line, and return the line that comes back."""
        self._count += 1
        line = json.dumps({"id": self._count, **content}, allow_nan=False).encode() + b"\n"
        if not self._running:
            self._running.append(Running(self.arguments))
        (running,) = self._running
        try:
            return self._read(running.exchange(line, self.patience), running)
        except BaseException:
            _end_all(self._running)
            raise

    def _read(self, line: bytes, running: Running) -> dict[str, Any]:
        if not line:
            raise ProgramDied(running.last_words())
        try:
            content = read_line(line.rstrip(b"\r\n"))
        except Mistake as mistake:
            raise MalformedAnswer(f"{mistake}: {line[:60]!r}") from mistake
        if content.pop("id", None) != self._count:
            raise MalformedAnswer(f"an answer to another id than {self._count}: {line[:60]!r}")
        return content


def _end_all(running: list[Running]) -> None:
    while running:
        running.pop().end()


@cache
def program(command: str) -> Program:
    """Return the program of a command; one for all that request it."""
    return Program(command)
