"""The adapter's side of the pipe: requests in, answers out, by the protocol of docs/protocol.md.

An adapter runs in the environment of the framework that it asks, so this module needs the standard library alone. An
adapter names its areas and gives a function for each operation that it answers:

    serve("verl", {"merge": {"merge_calls": merge_calls}})

The function takes the request's fields by keyword, decoded, and returns the operation's value as JSON would hold it:
dicts by field name, lists, numbers. It raises ``Refusal`` to refuse. Any other exception is a crash, and is reported
with its type and message. What the framework prints goes to the error stream.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

PROTOCOL = "rollproof-oracle-1"
SAFE_INTEGER = 2**53 - 1


class Refusal(Exception):
    """A refusal; its message reads ``code[: free text]``."""


def decode(value: Any) -> Any:
    """Return a value of a request without the tags of the wire."""
    if isinstance(value, list):
        return [decode(item) for item in value]
    if isinstance(value, float):
        return value
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((tag, content),) = value.items()
        if tag == "$int":
            return int(content, 16)
        if tag == "$float":
            return float(content)
        if tag == "$text":
            return "".join(map(chr, content))
        if tag == "$tuple":
            return tuple(decode(item) for item in content)
        if tag == "$dict":
            return {decode(key): decode(item) for key, item in content}
    return {key: decode(item) for key, item in value.items()}


def encode(value: Any) -> Any:
    """Return a value as the wire has it: numbers that JSON parsers read differently get a tag."""
    if isinstance(value, Mapping):
        return {key: encode(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [encode(item) for item in value]
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return value
    if isinstance(value, int):
        return value if abs(value) <= SAFE_INTEGER else {"$int": hex(value)}
    if isinstance(value, float):
        plain = math.isfinite(value) and not (value == 0 and math.copysign(1, value) < 0)
        return value if plain else {"$float": repr(value)}
    raise TypeError(f"cannot write a {type(value).__name__}: expected dicts, lists, numbers and strings")


def serve(name: str, areas: Mapping[str, Mapping[str, Callable[..., Any]]]) -> None:
    """Answer lines from standard input until it ends. ``areas`` maps an area to its operations and their functions."""
    sink = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    functions = {operation: function for area in areas.values() for operation, function in area.items()}
    for line in sys.stdin.buffer:
        request = json.loads(line)
        sink.write(json.dumps({"id": request.get("id"), **answer(name, list(areas), functions, request)}) + "\n")
        sink.flush()


def answer(
    name: str, areas: list[str], functions: Mapping[str, Callable[..., Any]], request: dict[str, Any]
) -> dict[str, Any]:
    """Return the answer to one request."""
    operation = request["operation"]
    if operation == "describe":
        offered = {"name": name, "areas": areas, "operations": list(functions), "protocol": PROTOCOL}
        return {"description": offered}
    if operation not in functions:
        return {"error": {"code": "not_offered", "message": f"{name} does not offer {operation}"}}
    fields = {key: decode(value) for key, value in request.items() if key not in {"id", "operation", "protocol"}}
    try:
        return {"accepted": encode(functions[operation](**fields))}
    except Refusal as refusal:
        return {"refused": str(refusal)}
    except Exception as error:
        return {"crashed": {"error": type(error).__name__, "message": str(error)[:300]}}
