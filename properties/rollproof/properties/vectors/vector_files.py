"""Test vectors: requests with the contract's answers, in files that an implementation in any language can read.

The files follow the manner of C2SP Wycheproof. A test has an id, a comment, flags, its input and the expected outcome;
a note says of every flag which fault it looks for, and where that was seen. docs/vectors.md describes them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from attrs import asdict, field, frozen

from rollproof.properties.errors import InputError, reading
from rollproof.properties.gate.codes import normative, reason_of
from rollproof.properties.wire.bounds import read_json
from rollproof.properties.wire.messages import (
    OPERATIONS,
    PROTOCOL,
    REQUESTS,
    answer_object,
    read_answer,
    read_request,
    request_object,
)
from rollproof.properties.wire.schema import DIALECT, Definitions, operation_object, record, ref
from rollproof.spec.judge.area import PORTABLE
from rollproof.spec.judge.catalogue import of_area
from rollproof.spec.judge.requests import KIND_OF, Accepted, Answer, Area, Refused, Request, RolloutAnswer
from rollproof.spec.outcomes import GroupOutcome

SCHEMAS: Final = "schemas"
"""The folder of the schemas, beside the vectors."""
WIDTH: Final = 120
"""Containers that fit into so many characters are written on one line."""

BUG_TYPES: Final = {
    "Basic": "A plain case.",
    "Edge": "An input at the border of a rule.",
    "Rejection": "What must be refused, with this code.",
    "KnownFault": "A fault that public code had; the links say where.",
    "Deviation": "A public implementation differs here; docs/findings.md says how.",
    "Rule": "A fault that the contract's rule excludes.",
}


@frozen
class Note:
    """What a flag says about a test: which kind of fault it looks for, in a sentence, and where that was seen."""

    bugType: str
    description: str
    links: tuple[str, ...] = ()


@frozen
class Vector:
    """One test. ``expected`` is the contract's answer."""

    request: Request
    expected: Answer
    comment: str
    flags: tuple[str, ...]
    number: int = field(default=0, eq=False)

    @property
    def code(self) -> str | None:
        """The normative part of the reason with which the input is refused, or the failure that comes of it."""
        return expected_code(self.expected)


@frozen
class VectorFile:
    """The vectors of one area, and what their flags mean."""

    area: Area
    vectors: tuple[Vector, ...]
    notes: Mapping[str, Note]
    seed: int = 0


def expected_code(expected: Answer) -> str | None:
    """Return why an input is refused: null where it is not."""
    value = expected.value if isinstance(expected, Accepted) else None
    first = value[0] if isinstance(value, tuple) and value else value
    if isinstance(first, RolloutAnswer | GroupOutcome) and first.failure is not None:
        return first.failure.value
    reason = reason_of(expected)
    if reason is None:
        return None
    return normative(reason)


# ── files ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def file_content(file: VectorFile) -> dict[str, Any]:
    """Return a file as a JSON object, its tests grouped by operation and numbered."""
    groups: dict[str, list[dict[str, Any]]] = {
        name: [] for name in REQUESTS if any(OPERATIONS[type(vector.request)] == name for vector in file.vectors)
    }
    portable = file.area in PORTABLE
    for vector in file.vectors:
        code = None if portable else vector.code
        refused = "acceptable" if portable else "invalid"
        groups[OPERATIONS[type(vector.request)]].append(
            {
                "comment": vector.comment,
                "flags": list(vector.flags),
                "input": request_object(vector.request),
                "result": refused if isinstance(vector.expected, Refused) or code is not None else "valid",
                "code": code,
                "expected": answer_object(vector.request, vector.expected),
            }
        )
    numbered = iter(range(1, len(file.vectors) + 1))
    return {
        "area": file.area.value,
        "protocol": PROTOCOL,
        "generatorVersion": version("rollproof"),
        "seed": file.seed,
        "schema": f"{SCHEMAS}/{file.area}.json",
        "numberOfTests": len(file.vectors),
        **({"judgedBy": {item.id: item.sentence for item in of_area(file.area)}} if portable else {}),
        "notes": {
            flag: {name: value for name, value in asdict(note).items() if value}
            for flag, note in sorted(file.notes.items())
        },
        "testGroups": [
            {"operation": name, "tests": [{"tcId": next(numbered), **test} for test in tests]}
            for name, tests in groups.items()
        ],
    }


def read_file(path: Path) -> VectorFile:
    """Read the vectors in a file. Raises ``InputError``."""
    with reading(path, "a file of vectors"):
        content = read_json(path)
        if content["protocol"] != PROTOCOL:
            raise InputError(f"{path}: protocol {content['protocol']!r}, expected {PROTOCOL!r}")
        vectors = []
        for group in content["testGroups"]:
            for test in group["tests"]:
                request = read_request(test["input"])
                expected = read_answer(request, test["expected"])
                vectors.append(Vector(request, expected, test["comment"], tuple(test["flags"]), test["tcId"]))
        notes = {
            flag: Note(note["bugType"], note["description"], tuple(note.get("links", ())))
            for flag, note in content["notes"].items()
        }
        if content["numberOfTests"] != len(vectors):
            raise InputError(f"{path}: {len(vectors)} tests, but numberOfTests is {content['numberOfTests']}")
        return VectorFile(Area(content["area"]), tuple(vectors), notes, content["seed"])


def write_files(files: Iterable[VectorFile], folder: Path) -> None:
    """Write each file and its schema."""
    (folder / SCHEMAS).mkdir(parents=True, exist_ok=True)
    for file in files:
        content = file_content(file)
        (folder / f"{file.area}.json").write_text(pretty(content) + "\n", encoding="utf-8")
        operations = [group["operation"] for group in content["testGroups"]]
        schema = pretty(file_schema(file.area, operations)) + "\n"
        (folder / SCHEMAS / f"{file.area}.json").write_text(schema, encoding="utf-8")


def pretty(value: Any, indent: int = 0, key: str = "") -> str:
    """Return readable JSON: short containers on one line. ``key`` precedes the value there."""
    flat = key + json.dumps(value, ensure_ascii=True, allow_nan=False)
    if not isinstance(value, dict | list) or len(flat) + indent <= WIDTH or not value:
        return flat
    space, end = "\n" + " " * (indent + 1), "\n" + " " * indent
    if isinstance(value, list):
        return f"{key}[{space}" + f",{space}".join(pretty(item, indent + 1) for item in value) + f"{end}]"
    items = (pretty(item, indent + 1, f"{json.dumps(name)}: ") for name, item in value.items())
    return f"{key}{{{space}" + f",{space}".join(items) + f"{end}}}"


# ── their schema ────────────────────────────────────────────────────────────────────────────────────────────────────


def file_schema(area: Area, operations: Iterable[str]) -> dict[str, Any]:
    """Return the JSON Schema of an area's file."""
    inputs, answers = Definitions(strict=False, prefix="in:"), Definitions(strict=True, prefix="out:")
    text, texts = {"type": "string"}, {"type": "array", "items": {"type": "string"}}
    groups = []
    for name in operations:
        expected = {
            "anyOf": [
                record({"accepted": answers.of(KIND_OF[REQUESTS[name]].answer)}),
                record({"refused": ref("text")}),
            ]
        }
        test = {
            "tcId": {"type": "integer", "minimum": 1},
            "comment": text,
            "flags": texts,
            "input": operation_object(inputs, name, {}),
            "result": {"enum": ["valid", "acceptable" if area in PORTABLE else "invalid"]},
            "code": {"type": ["string", "null"]},
            "expected": expected,
        }
        groups.append(record({"operation": {"const": name}, "tests": {"type": "array", "items": record(test)}}))
    note = record({"bugType": {"enum": list(BUG_TYPES)}, "description": text, "links": texts},
                  ["bugType", "description"])  # fmt: skip
    properties = {
        "area": {"const": area.value},
        "protocol": {"const": PROTOCOL},
        "generatorVersion": text,
        "seed": {"type": "integer"},
        "schema": {"const": f"{SCHEMAS}/{area}.json"},
        "numberOfTests": {"type": "integer"},
        **({"judgedBy": {"type": "object", "additionalProperties": text}} if area in PORTABLE else {}),
        "notes": {"type": "object", "additionalProperties": note},
        "testGroups": {"type": "array", "items": {"anyOf": groups}},
    }
    definitions = {**inputs.content, **answers.content}
    return {"$schema": DIALECT, "title": f"rollproof vectors: {area}", **record(properties), "$defs": definitions}
