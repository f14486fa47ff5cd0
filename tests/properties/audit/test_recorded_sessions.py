"""Recorded sessions: wrong rows are named by file, line and invariant; what cannot be read is said."""

from __future__ import annotations

import json

import pytest
from attrs import evolve
from click.testing import CliRunner

from rollproof.properties.adapters.functions import as_plain
from rollproof.properties.cli import main
from rollproof.properties.strategies.rollouts.sessions import listed_sessions
from rollproof.properties.strategies.streams.align import captured
from rollproof.spec.align import align_routes
from rollproof.spec.merge import merge_calls

FORK = listed_sessions()["fork"][0]


def line(request, value):
    answered = {"rows": as_plain(value)} if isinstance(value, tuple) else as_plain(value)
    return json.dumps({**as_plain(request), **answered})


@pytest.fixture
def audited(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(*lines, policies=()):
        (tmp_path / "s.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
        options = [part for policy in policies for part in ("--policy", policy)]
        return CliRunner().invoke(main, ["audit-sessions", "s.jsonl", *options])

    return run


def test_right_rows_are_right(audited):
    routes = captured(FORK.calls, 300)
    result = audited(line(FORK, merge_calls(FORK.calls)), line(routes, align_routes(routes.calls, routes.captures)),
                     policies=["sentinel"])  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "2 sessions, 4 rows: 0 wrong, 0 cannot be read" in result.output


def test_a_wrong_row_is_named(audited):
    merged = merge_calls(FORK.calls)
    lost = evolve(merged, rows=merged.rows[:1])
    result = audited(line(FORK, merged), line(FORK, lost))
    assert result.exit_code == 1
    assert "s.jsonl:2: position 3 of the context of call 2 is not trained" in result.output
    assert "MERGE-3" in result.output
    dropped = evolve(lost, dropped=((2, "drift"),))
    assert audited(line(FORK, dropped), policies=["drift"]).exit_code == 1, "nothing departs from the last call"


def test_advisories_are_listed_and_change_nothing(audited):
    extend = listed_sessions()["extend"][0]
    rows = tuple(row for call in extend.calls for row in merge_calls([call]).rows)
    result = audited(line(extend, evolve(merge_calls(extend.calls), rows=rows)))
    assert result.exit_code == 0, result.output
    assert "advisory MERGE-9" in result.output


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[]", "s.jsonl:1: got a list, expected an object with calls and rows"),
        ('{"calls": []}', "s.jsonl:1: no 'rows'"),
        ('{"calls": [{}], "rows": []}', "s.jsonl:1: calls[0]: no 'prompt_ids'"),
        ('{"calls": [], "captures": [null], "num_experts": 8, "rows": []}', "captures: got 1, expected 0"),
        ("{", "s.jsonl:1: "),
        ("", "0 sessions"),
    ],
)
def test_what_cannot_be_read_is_said(audited, text, says):
    result = audited(text)
    assert result.exit_code == 2
    assert says in result.output
    assert "Traceback" not in result.output
