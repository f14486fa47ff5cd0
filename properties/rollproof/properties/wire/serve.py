"""An oracle: any implementation behind a pipe, one answer per line, whatever the line holds."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout, suppress
from typing import Any, BinaryIO, Final

from attrs import asdict

from rollproof.properties.adapters.asking import ask, policies_of
from rollproof.properties.adapters.protocol import offers
from rollproof.properties.errors import message_of
from rollproof.properties.wire.messages import (
    DESCRIBE,
    ERROR,
    OPERATIONS,
    Description,
    Mistake,
    answer_object,
    as_utf8,
    operation_of,
    read_line,
    read_request,
)
from rollproof.spec.judge.requests import Area

MAX_LINE: Final = 2**26
"""Bytes of a request line, its end included; a longer one is skipped."""


def serve(implementation: Any, source: BinaryIO, sink: BinaryIO) -> None:
    """Answer every line of ``source`` until it ends, or ``sink`` is closed.

    What an implementation prints goes to the error stream: the output holds answers alone.
    """
    with redirect_stdout(sys.stderr), suppress(BrokenPipeError):
        for line in lines(source):
            sink.write(json.dumps(reply(implementation, line), allow_nan=False).encode() + b"\n")
            sink.flush()


def lines(source: BinaryIO) -> Iterator[bytes | None]:
    """Yield the lines of a stream without their ends; None for one that is too long."""
    while line := source.readline(MAX_LINE + 1):
        whole = len(line) <= MAX_LINE
        yield line.rstrip(b"\r\n") if whole else None
        while not whole and not line.endswith(b"\n") and line:
            line = source.readline(MAX_LINE)


def reply(implementation: Any, line: bytes | None) -> dict[str, Any]:
    """Return the answer to one line, as an object."""
    id = None
    try:
        if line is None:
            raise Mistake("too_long", f"a line of more than {MAX_LINE} bytes")
        content = read_line(line)
        id = content.get("id")
        if operation_of(content) == DESCRIBE:
            return {"id": id, "description": asdict(describe(implementation))}
        request = read_request(content)
        if not offers(implementation, type(request)):
            raise Mistake("not_offered", f"{implementation.name} does not offer {content['operation']}", id)
        return {"id": id, **answer_object(request, ask(implementation, request))}
    except Mistake as mistake:
        return {"id": mistake.id, ERROR: {"code": mistake.code, "message": as_utf8(str(mistake))}}
    except Exception as error:
        return {
            "id": id,
            ERROR: {"code": "internal", "message": as_utf8(f"{type(error).__name__}: {message_of(error)}"[:300])},
        }


def describe(implementation: Any) -> Description:
    """Return what an implementation offers over the wire."""
    return Description(
        name=implementation.name,
        areas=tuple(area.value for area in Area if area in implementation.areas),
        operations=tuple(name for kind, name in OPERATIONS.items() if offers(implementation, kind)),
        policies=tuple(sorted(policies_of(implementation))),
    )
