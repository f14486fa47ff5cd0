"""``rollproof oracle``: one answer per line, whatever the line holds."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from jsonschema import Draft202012Validator

from rollproof.properties.adapters.protocol import Adapter
from rollproof.properties.adapters.reference import Reference
from rollproof.properties.cli import main
from rollproof.properties.wire import serve as serving
from rollproof.properties.wire.messages import PROTOCOL, REQUESTS, request_object
from rollproof.properties.wire.schema import protocol_schema
from rollproof.properties.wire.serve import serve
from rollproof.spec.judge.requests import Area
from rollproof.spec.judge.rules.records import GOLDEN

ROOT = Path(__file__).parents[3]
GOOD = {"id": 1, "operation": "prefix_digest", "token_ids": [1, 2]}
ENCODE = {"id": 1, "operation": "encode_routes"}
DIGEST = "84a16cc398b4ae27ec099417ac60388905246558670c64015a95ec040e3b77c3"


def served(*lines, implementation=None):
    """Return the answers to some lines, each an object or bytes."""
    written = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
    sink = io.BytesIO()
    serve(implementation or Reference(), io.BytesIO(b"\n".join(written)), sink)
    return [json.loads(line) for line in sink.getvalue().splitlines()]


def test_describe_then_golden_values():
    described, *answers = served({"operation": "describe"}, *(request_object(golden, 7) for golden, _ in GOLDEN))
    assert described["description"]["protocol"] == PROTOCOL
    assert described["description"]["areas"] == [area.value for area in Area]
    assert described["description"]["operations"] == list(REQUESTS)
    assert answers == [{"id": 7, "accepted": digest} for _, digest in GOLDEN]


@pytest.mark.parametrize(
    ("line", "code", "id"),
    [
        (b"", "bad_json", None),
        (b"nonsense", "bad_json", None),
        (b"\xff", "bad_json", None),
        (b"[]", "bad_json", None),
        (b'{"id": NaN}', "bad_json", None),
        (b'{"id": 1e999}', "bad_json", None),
        (b"[" * 1_000_000, "too_deep", None),
        (b'{"id": 3, "operation": "extras_digest", "extras": ' + b"[" * 100 + b"]" * 100 + b"}", "too_deep", 3),
        ({"id": "a"}, "bad_request", "a"),
        ({"id": "a", "operation": 5}, "bad_request", "a"),
        ({"id": [1], "operation": "nonsense"}, "unknown_operation", [1]),
        ({"id": 1, "operation": "linearize_growth"}, "unknown_operation", 1),
        ({"operation": "describe", "protocol": "rollproof-oracle-2"}, "unsupported_protocol", None),
        ({"id": 1, "operation": "prefix_digest"}, "bad_request", 1),
        ({**GOOD, "token_ids": "12"}, "bad_request", 1),
        ({**GOOD, "token_ids": [2**53]}, "bad_request", 1),
        ({**GOOD, "more": 1}, "bad_request", 1),
        ({**ENCODE, "routes": {"dtype": "int8", "shape": [1], "data": "AA"}}, "bad_request", 1),
        ({**ENCODE, "routes": {"dtype": "int8", "shape": [2], "data": "AA=="}}, "bad_request", 1),
        ({**ENCODE, "routes": []}, "bad_request", 1),
    ],
)  # fmt: skip
def test_a_bad_line_gets_an_error_and_the_next_is_served(line, code, id):
    error, good = served(line, GOOD)
    assert error["error"]["code"] == code, error
    assert error["id"] == id
    assert error["error"]["message"]
    assert good == {"id": 1, "accepted": DIGEST}


def test_a_line_that_is_too_long_is_skipped(monkeypatch):
    monkeypatch.setattr(serving, "MAX_LINE", 100)
    error, good = served(b'"' + b"x" * 1000, GOOD)
    assert error["error"]["code"] == "too_long"
    assert good["accepted"] == DIGEST
    exact = json.dumps(GOOD).encode().ljust(99)
    assert served(exact, exact) == [good, good]


class Broken(Adapter):
    """One operation, which prints and crashes."""

    name = "broken"
    areas = frozenset({Area.DIGEST})

    def prefix_digest(self, token_ids):
        print("noise")
        raise RuntimeError(f"\ud800{token_ids}")


def test_other_implementations_crash_and_offer_less(capsys):
    described, crashed, absent = served(
        {"operation": "describe"}, GOOD, {"operation": "extras_digest", "extras": None}, implementation=Broken()
    )
    assert described["description"]["operations"] == ["prefix_digest"]
    assert crashed["crashed"]["error"] == "RuntimeError"
    assert crashed["crashed"]["message"].encode()
    assert absent["error"]["code"] == "not_offered"
    assert "noise" in capsys.readouterr().err


def test_the_command_ends_with_its_input():
    lines = "".join(json.dumps(line) + "\n" for line in (GOOD, {"operation": "x"}, GOOD))
    command = [Path(sys.executable).with_name("rollproof"), "oracle"]
    result = subprocess.run(command, input=lines, capture_output=True, text=True, check=True)
    assert [json.loads(line).get("accepted") for line in result.stdout.splitlines()] == [DIGEST, None, DIGEST]
    assert result.stderr == ""


def test_the_command_prints_its_schemas():
    runner = CliRunner()
    schemas = json.loads(runner.invoke(main, ["oracle", "--schema"]).output)
    assert schemas == json.loads(json.dumps(protocol_schema()))
    for schema in schemas.values():
        Draft202012Validator.check_schema(schema)
    assert runner.invoke(main, ["oracle", "nonsense"]).exit_code == 2


def test_the_page_describes_every_operation_by_an_example_that_is_true():
    page = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
    examples = re.findall(r"```json\n(\{.*\})\n(\{.*\})\n```", page)
    pairs = [(json.loads(asked), json.loads(answered)) for asked, answered in examples]
    shown = {asked.get("operation") for asked, _ in pairs}
    assert shown >= {"describe", *REQUESTS}
    schemas = {name: Draft202012Validator(schema) for name, schema in protocol_schema().items()}
    for asked, answered in pairs:
        assert served(asked) == [answered]
        schemas["answer"].validate(answered)
        if "error" not in answered:
            schemas["request"].validate(asked)
