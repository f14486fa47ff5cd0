"""A finding told by what differs from the plainest request, and its program: both make exactly the request again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from attrs import evolve
from click.testing import CliRunner
from hypothesis import Phase

from rollproof.properties.cli import main
from rollproof.properties.gate.plain import changed, changes, plainer, plainest
from rollproof.properties.gate.results import Finding
from rollproof.properties.gate.run import exercise
from rollproof.properties.gate.show import difference_rows
from rollproof.properties.gate.snippet import MOST_CHANGES, assert_holds, change_lines, program_text, source
from rollproof.properties.gate.streams import request_streams
from rollproof.properties.strategies.rollouts.recipes import realize_request
from rollproof.spec.judge.catalogue import CATALOGUE
from rollproof.spec.judge.invariant import difference
from rollproof.spec.judge.oracle import answer
from rollproof.spec.judge.requests import KINDS, Accepted, Area, Linearize, ParseReceipt, PrefixDigest, SelectTerminal

REQUESTS = tuple(kind.request for kind in KINDS)


@pytest.mark.parametrize("kind", REQUESTS, ids=lambda kind: kind.__name__)
def test_the_plainest_request_of_every_kind_is_accepted(kind):
    request = plainest()[kind]
    assert isinstance(answer(realize_request(request)), Accepted)
    assert changes(request) == {}
    assert changed(kind, {}) == request


@pytest.fixture
def run_program(monkeypatch):
    """Run a program's text; return the request that it is about."""

    def run(text):
        asked = []
        monkeypatch.setattr(
            "rollproof.properties.gate.snippet.assert_holds",
            lambda _name, request, _implementation: asked.append(request),
        )
        exec(compile(text, "finding.py", "exec"), {})
        (request,) = asked
        return request

    return run


def found(request, complaint="wrong"):
    item = next(item for item in CATALOGUE if item.covers(request))
    return Finding(item.id, request, Accepted(1), Accepted(2), complaint, "stream", 1)


@pytest.mark.parametrize("examples", [1, pytest.param(3, marks=pytest.mark.deep)])
@pytest.mark.parametrize("area", list(Area))
def test_changes_and_programs_make_every_request_again(area, run_program, examples):
    """Of every stream: valid, broken and hostile."""
    seen = []

    def body(request):
        seen.append(request)
        again = changed(type(request), changes(request))
        assert difference(again, request) is None
        assert difference(run_program(program_text(found(request), "mine")), request) is None

    for stream in request_streams(area):
        exercise(stream.strategy, body, examples, 0, (Phase.generate,))
    assert len(seen) > examples


def test_what_follows_from_the_tokens_is_not_told():
    plain = plainest()[Linearize]
    longer = changed(Linearize, {"calls[0].token_ids_delta": (7,)})
    assert longer.calls[0].digest != plain.calls[0].digest
    assert isinstance(answer(longer), Accepted)
    assert changes(longer) == {"calls[0].token_ids_delta": (7,)}
    forged = evolve(longer, calls=(evolve(longer.calls[0], digest="0" * 64),))
    assert changes(forged) == {"calls[0].token_ids_delta": (7,), "calls[0].digest": "0" * 64}


def test_a_path_that_a_request_lacks_is_refused():
    for path in ("calls[0].nothing", "calls[0", "nothing", "print(1)", "calls.__class__"):
        with pytest.raises(ValueError, match="not a path"):
            changed(Linearize, {path: 1})


def test_every_change_that_can_be_is_taken_back():
    told = {"len(records)": 3, "records[1].model_call_id": "c1", "records[2].weight_version": 4, "records[2].mode": "x"}
    request = changed(SelectTerminal, told)
    smaller = plainer(request, lambda one: len(one.records) == 3 and one.records[2].weight_version == 4)
    assert changes(smaller) == {"len(records)": 3, "records[2].weight_version": 4}


def test_every_item_that_can_go_goes():
    request = changed(SelectTerminal, {"len(records)": 6, "records[3].model_call_id": "c3"})
    smaller = plainer(request, lambda one: any(record.model_call_id == "c3" for record in one.records))
    assert [record.model_call_id for record in smaller.records] == ["c3"]


def test_items_that_can_only_go_together_go_together():
    told = {"len(records)": 6} | {f"records[{index}].model_call_id": f"c{index}" for index in range(6)}
    smaller = plainer(changed(SelectTerminal, told), lambda one: len(one.records) % 2 == 0 and one.records)
    assert len(smaller.records) == 2
    told = {"len(calls)": 4, "len(receipt.manifest)": 4}
    smaller = plainer(changed(Linearize, told), lambda one: len(one.calls) == len(one.receipt.manifest) > 0)
    assert changes(smaller) == {}


def test_a_doubt_that_raises_keeps_the_change():
    request = changed(SelectTerminal, {"len(records)": 2, "records[1].model_call_id": "c1"})
    assert (
        plainer(request, lambda one: 1 / (len(one.records) - 1) > 0 and one.records[1].model_call_id == "c1") == request
    )


def test_no_path_is_cut_and_digests_are_short():
    name = "a_field_of_a_receipt_whose_name_is_longer_than_all_eighty_columns_of_a_terminal_of_the_last_century"
    plain = plainest()
    value = {**plain[ParseReceipt].value, name: "x" * 10_000, "digest": "ab" * 32}
    lines = change_lines(ParseReceipt(value))
    assert any(line.startswith(f"value['{name}'] = 'xxx") and "10,002 characters" in line for line in lines)
    assert "value['digest'] = 'abababab…' (a digest)" in lines
    many = change_lines(ParseReceipt(value | {str(index): index for index in range(100)}))
    assert len(many) == MOST_CHANGES + 1


def test_rows_show_only_what_differs():
    request = plainest()[Linearize]
    row = answer(request).value
    wrong = Accepted(evolve(row, logprobs=(-1.0,), prompt_len=5))
    assert difference_rows(Accepted(row), wrong) == [("logprobs[0]", "-0.5", "-1.0"), ("prompt_len", "0", "5")]
    assert difference_rows(Accepted(row), Accepted(evolve(row))) is None


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        float("-inf"),
        pytest.param(10**5000, id="digits"),
        (1,),
        (),
        [()],
        {"a": b"\0"},
        "'\"\\\n\u2028\ud800",
        -0.0,
        True,
        None,
    ],
)
def test_source_makes_the_value_again(value):
    assert difference(value, eval(source(value))) is None


def test_a_complaint_never_becomes_code(run_program):
    hostile = (
        '"""\nraise SystemExit(9)\r\nraise SystemExit(9)\u2028raise SystemExit(9)\x0craise SystemExit(9)\x85raise 9'
    )
    assert run_program(program_text(found(PrefixDigest((1,)), hostile), "mine")) == PrefixDigest((1,))


ADAPTER = """
from rollproof.properties.adapters.reference import Reference
from rollproof.spec.judge.requests import Area


class Mine(Reference):
    name = "mine"
    areas = frozenset({Area.TERMINAL, Area.DIGEST})

    def prefix_digest(self, token_ids):
        return 'a' * 64 if BROKEN and token_ids else super().prefix_digest(token_ids)

    def select_terminal(self, records):
        return 'a' * 64 if BROKEN and len(records) > 1 else super().select_terminal(records)
"""


AREAS = ("--area", "digest", "--area", "terminal")


def test_a_program_fails_while_the_fault_is_there_and_no_longer(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")
    file = Path("adapter_of_a_program.py")
    file.write_text(ADAPTER.replace("BROKEN", "True"), encoding="utf-8")
    checked = CliRunner().invoke(
        main, ["check", "adapter_of_a_program:Mine", "--profile", "quick", "--jobs", "1", *AREAS]
    )
    assert checked.exit_code == 1
    programs = sorted(Path(".rollproof/replays").glob("*.py"))
    assert {path.stem.rpartition("Mine-")[2] for path in programs} >= {"DIGEST-2", "TERMINAL-1"}
    for path in programs:
        assert f"python {path}" in checked.output
        assert len(path.read_text(encoding="utf-8").splitlines()) < 20

    def run(path):
        return subprocess.run([sys.executable, path], capture_output=True, text=True, check=False)

    programs = [path for path in programs if path.stem.endswith("TERMINAL-1")]  # each takes seconds
    for path in programs:
        ended = run(path)
        assert ended.returncode == 1
        assert "AssertionError" in ended.stderr
    file.write_text(ADAPTER.replace("BROKEN", "False"), encoding="utf-8")
    assert [run(path).returncode for path in programs] == [0] * len(programs)


@pytest.mark.parametrize("name", ["impl", "spec", "rollproof.properties.adapters.reference:Reference"])
def test_a_program_asks_by_any_name(name):
    assert_holds("DIGEST-2", PrefixDigest((1,)), name)
