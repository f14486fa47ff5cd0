"""The scalar rules are confirmed over all paths, and wrong ones are not."""

from __future__ import annotations

import inspect
import os
import re
from pathlib import Path

import pytest
from attrs import evolve
from click.testing import CliRunner

pytest.importorskip("crosshair", reason="the solver is in the extra dev")

from crosshair.condition_parser import Pep316Parser
from crosshair.fnutil import FunctionInfo

from rollproof.impl import plan as impl_plan
from rollproof.impl import route_boundary as impl_route_boundary
from rollproof.impl import terminal as impl_terminal
from rollproof.properties.cli import main
from rollproof.properties.symbolic import boundary, group, lineage, media, retained, routes, terminal, values
from rollproof.properties.symbolic.proofs import Status, as_table
from rollproof.properties.symbolic.prover import prove
from rollproof.properties.symbolic.proving import prove_all
from rollproof.properties.symbolic.registry import CHAPTERS, ITEMS, PAIRS, RULES
from rollproof.properties.symbolic.rule import rule
from rollproof.spec.judge.catalogue import BY_ID
from rollproof.spec.records import TerminalSelection

PAGE = Path(__file__).parents[3] / "docs" / "evidence" / "proofs.md"


@pytest.mark.deep
def test_everything_is_proved_as_the_page_of_proofs_says():
    """One test, so that parallel runs prove everything once."""
    proofs = prove_all(ITEMS, timeout=120, jobs=min(2, os.cpu_count() or 1))
    assert [proof for proof in proofs if not proof.status.is_proved] == []
    assert [proof.name for proof in proofs] == [item.name for item in ITEMS]
    assert len(RULES) >= 20
    assert PAGE.read_text(encoding="utf-8") == as_table(ITEMS, proofs), (
        "rollproof prove --table docs/evidence/proofs.md"
    )


def test_names_are_distinct_and_invariants_exist():
    names = [item.name for item in ITEMS] + [item.module for item in RULES]
    assert len({item.name for item in ITEMS}) == len(ITEMS)
    assert set(names[: len(ITEMS)]).isdisjoint(names[len(ITEMS) :])
    assert {invariant for item in ITEMS for invariant in item.invariants} <= set(BY_ID)
    assert all(item.sentence.endswith(".") and item.bounds for item in ITEMS)


def test_the_command_names_every_chapter():
    shown = CliRunner().invoke(main, ["prove", "--help"]).output
    assert set(re.findall(r"\w+", shown)) >= {chapter.__name__.rpartition(".")[2] for chapter in CHAPTERS}


@pytest.mark.parametrize("item", RULES, ids=lambda item: item.name)
def test_a_rule_has_a_witness_within_its_bounds(item):
    conditions = Pep316Parser().get_fn_conditions(FunctionInfo.from_fn(item.statement))
    arguments = inspect.signature(item.statement).bind(*item.witness).arguments
    assert all(condition.evaluate(arguments) for condition in conditions.pre)
    assert item.statement(*item.witness) is True


@pytest.mark.parametrize("item", PAIRS, ids=lambda item: item.name)
def test_both_sides_of_a_pair_take_its_witness(item):
    assert inspect.signature(item.spec).parameters.keys() == inspect.signature(item.impl).parameters.keys()
    assert item.spec(*item.witness) == item.impl(*item.witness)


def off_by_one(right):
    """Return the right function with one more in the middle of its answer, where that is not 0."""

    def wrong(*lengths):
        leading, first, used = right(*lengths)
        return leading, first + (1 if first else 0), used

    return wrong


def int64_sum(right):
    """Sum the pixels in int64: beyond 2**63 they come out negative (decision D18)."""
    return lambda sizes, patch: ((sum(height * width for height, width in sizes) + 2**63) % 2**64 - 2**63) // patch**2


WRONG = [
    ("a bool for an int", values.a_bool_is_no_length, "is_length", lambda right: lambda value: 0 <= value < 2**63),
    ("64 bits", values.a_length_has_63_bits, "is_length", lambda right: lambda value: 0 <= value < 2**64),
    ("no slash", values.a_key_names_one_call, "owned_key", lambda right: lambda rollout, call: rollout + call),
    (
        "the first root",
        terminal.the_earliest_root_wins,
        "select_terminal",
        lambda right: lambda records: TerminalSelection(records[0].model_call_id, "selected"),
    ),
    (
        "one carry more",
        lineage.the_carry_is_every_token_before_generation,
        "carry_length",
        lambda right: lambda call: right(call) + 1,
    ),
    ("past the fragment", routes.used_rows_lie_inside_the_fragment, "fragment_use", off_by_one),
    ("a wrapped sum", media.patches_add_up_exactly, "patch_count", int64_sum),
    ("touching runs", media.embedding_runs_are_inside_and_apart, "check_runs", lambda right: lambda item: None),
    (
        "the newest version",
        retained.a_restored_call_is_as_old_as_its_oldest_part,
        "restored_weight_version",
        lambda right: max,
    ),
    ("counts alone", retained.a_generation_begins_with_its_prefix, "faults", lambda right: lambda *given: []),
    (
        "the first version",
        group.the_version_range_spans_the_manifest,
        "version_range",
        lambda right: lambda receipt: (receipt.manifest[0].weight_version, right(receipt)[1]),
    ),
    (
        "an index one token late",
        boundary.an_index_is_the_token_before_its_span,
        "check_boundary",
        lambda right: lambda span, position, previous: right(span, position + 1, previous),
    ),
    (
        "a repair of a tool token",
        boundary.a_repair_is_between_two_generations,
        "check_boundary",
        lambda right: lambda span, position, previous: right(span, position, evolve(previous, generation_len=1)),
    ),
    (
        "a sidecar on the root",
        boundary.a_first_span_has_no_sidecar,
        "check_boundary",
        lambda right: lambda span, position, previous: right(span, max(1, position), previous),
    ),
    (
        "any schema",
        boundary.a_plan_has_one_schema,
        "check_fields",
        lambda right: lambda plan: right(evolve(plan, schema_version=boundary.plan_schema(plan.spans))),
    ),
    (
        "boundaries unchecked",
        boundary.a_valid_plan_repairs_the_end_of_a_generation,
        "check_fields",
        lambda right: lambda plan: [boundary.check_boundary(span, 0, None) for span in plan.spans[:1]],
    ),
    (
        "without the last token",
        boundary.what_nobody_repairs_is_the_end_of_a_generation,
        "unrepaired_positions",
        lambda right: lambda plan: right(plan)[:-1],
    ),
    (
        "aligned by their number",
        boundary.rows_end_at_the_last_token,
        "align_engine_rows",
        lambda right: lambda rows, start, tokens: right(rows, tokens - 1 - rows.shape[0], tokens),
    ),
]


SLOW = {"a wrapped sum"}


@pytest.mark.parametrize(
    ("fault", "item", "name", "replace"),
    [pytest.param(*case, id=case[0], marks=[pytest.mark.deep] * (case[0] in SLOW)) for case in WRONG],
)
def test_a_wrong_spec_is_refuted(monkeypatch, fault, item, name, replace):
    module = inspect.getmodule(item.statement)
    monkeypatch.setattr(module, name, replace(getattr(module, name)))
    proof = prove(item, timeout=60)
    assert proof.status is Status.REFUTED
    assert item.name in proof.detail


@pytest.mark.parametrize(
    ("name", "module", "function", "wrong"),
    [
        (
            "span_classification",
            impl_plan,
            "classify",
            lambda carry, generation, staged: "full" if staged == carry + generation else "tail",
        ),
        ("boundary_validity", impl_plan, "_boundary_fault", lambda span, position, previous: None),
        ("unrepaired_positions", impl_route_boundary, "unrepaired_positions", lambda plan: []),
        ("terminal_root", impl_terminal, "select_terminal", lambda records: TerminalSelection("a", "selected")),
    ],
)
def test_a_wrong_implementation_differs(monkeypatch, name, module, function, wrong):
    monkeypatch.setattr(module, function, wrong)
    proof = prove(next(item for item in PAIRS if item.name == name), timeout=60)
    assert proof.status is Status.REFUTED
    assert proof.detail.startswith("given ")


def test_a_rule_without_arguments_in_its_bounds_is_refuted():
    @rule("1", "RECEIPT-2", "none", (1,))
    def nothing(value: int) -> bool:
        """Whatever holds of nothing.

        pre: value < 0 < value
        post: _
        """
        return False

    assert prove(nothing, timeout=10).status is Status.REFUTED


def test_a_rule_that_takes_too_long_stays_open():
    @rule("1", "RECEIPT-2", "all integers", (3,))
    def written_out(value: int) -> bool:
        """A number is written with digits.

        pre: value > 0
        post: _
        """
        return f"{value:d}".isdigit()

    assert prove(written_out, timeout=1).status is Status.OPEN


def test_a_pair_that_takes_too_long_stays_open():
    item = next(item for item in PAIRS if item.name == "base64_length")
    assert prove(item, timeout=60).status is Status.SAME
    assert prove(next(item for item in PAIRS if item.name == "terminal_choice"), timeout=0.05).status is Status.OPEN
