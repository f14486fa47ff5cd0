"""Rollouts captured by nemo-gym's own core, and what spec and implementation make of them."""

from __future__ import annotations

import asyncio
import math
import random
import struct
from pathlib import Path

import pytest
from attrs import evolve
from hypothesis import HealthCheck, given, settings

pytest.importorskip("nemo_gym.token_id_capture.staging")

from nemo_gym.token_id_capture.lineage import FileLineageStore
from nemo_gym.token_id_capture.staging import CaptureAdmission, CaptureLedgerCommit, StagingSink, StagingSource

from rollproof.impl.dataplane.memory import MemoryDataPlane
from rollproof.impl.staging import StagingSink as OurSink
from rollproof.properties.adapters.asking import ask
from rollproof.properties.adapters.ours import Ours
from rollproof.properties.nemo_gym import captured as module
from rollproof.properties.nemo_gym.adapter import NemoGym
from rollproof.properties.nemo_gym.captured import (
    CapturedRollout,
    Gate,
    capture,
    captured,
    captured_rollouts,
    captured_row,
    streams,
)
from rollproof.properties.nemo_gym.conversations import (
    CAPTURED_ROLLOUT,
    Conversation,
    Layout,
    Outcome,
    Turn,
    conversations,
    history,
    said,
)
from rollproof.properties.nemo_gym.source import PARTITION, SnapshotSource
from rollproof.spec.digest import call_digest
from rollproof.spec.judge.oracle import answer
from rollproof.spec.judge.requests import Accepted, Area, Crashed, Refused
from rollproof.spec.staged import decode_row
from rollproof.spec.tensor import to_float32

LESS = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])

ASKED = Turn(None, (1, 2, 3), (4, 5), (-0.5, -0.25), weight_version=3, admitted_at=1.0)
TOOL = Turn(0, (6,), (7,), (-0.125,), weight_version=4, layout=Layout.MESSAGE, routes=True)
RETRY = Turn(0, (6,), (8, 9), (-1.0, -2.0), weight_version=4, routes=True)
LAST = Turn(2, (10,), (11,), (0.0,), weight_version=5, inline_prefix=True)
CONVERSATION = Conversation(CAPTURED_ROLLOUT, (ASKED, TOOL, RETRY, LAST))


@LESS
@given(captured_rollouts())
def test_spec_and_implementation_finalize_to_nemo_gyms_own_row(rollout: CapturedRollout) -> None:
    request = rollout.finalize()
    assert rollout.difference(answer(request)) is None
    assert rollout.difference(ask(Ours(), request)) is None


@pytest.mark.parametrize("count", [100, pytest.param(2_000, marks=[pytest.mark.deep, pytest.mark.untraced])])
def test_log_probs_of_any_engine_are_staged(count: int) -> None:
    """Engines hand out float64 values: what float32 makes of them is staged, and nemo-gym's digest holds."""
    rng = random.Random(count)
    staged = 0

    @settings(max_examples=count, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(conversations())
    def run(conversation: Conversation) -> None:
        nonlocal staged
        turns = tuple(evolve(turn, log_probs=any_log_probs(rng, len(turn.log_probs))) for turn in conversation.turns)
        rollout = captured(evolve(conversation, turns=turns))
        assert len(rollout.rows) >= len(rollout.calls)
        for call in rollout.calls:
            item = decode_row(rollout.rows[f"{call.rollout_id}/{call.model_call_id}"])
            assert item.call.digest == call_digest(item.call) == call.digest
        staged += len(rollout.calls)
        found = ask(Ours(), rollout.finalize())
        assert isinstance(found, Accepted)
        row = found.value.rollout
        assert row.valid == isinstance(rollout.answer, Accepted)
        if isinstance(rollout.answer, Accepted):
            assert row.token_ids == rollout.answer.value.token_ids
            assert row.logprobs == tuple(map(to_float32, rollout.answer.value.logprobs))

    run()
    assert staged > count


def any_log_probs(rng: random.Random, count: int) -> tuple[float, ...]:
    """Return finite float64 values whose float32 is finite: ordinary ones, and any bit pattern."""
    found: list[float] = []
    while len(found) < count:
        bits = struct.unpack("<d", rng.randbytes(8))[0]
        value = rng.choice([-0.2, -1 / 3, math.log(rng.random() or 1.0), -5e-324, bits])
        if abs(value) <= 3.4028234663852886e38:
            found.append(value)
    return tuple(found)


@LESS
@given(captured_rollouts())
def test_all_three_linearize_alike(rollout: CapturedRollout) -> None:
    request = rollout.linearize()
    found = [answer(request), ask(Ours(), request), ask(NemoGym(), request)]
    if isinstance(rollout.answer, Accepted):
        assert found == [rollout.answer] * 3
    else:
        assert isinstance(rollout.answer, Refused)
        assert {one.code for one in found if isinstance(one, Refused)} == {rollout.answer.code}


def test_a_branch_of_a_conversation() -> None:
    rollout = captured(CONVERSATION)
    assert rollout.receipt["terminal_model_call_id"] == "call-3"
    assert rollout.receipt["terminal_selection"] == "heuristic"
    assert isinstance(rollout.answer, Accepted)
    row = rollout.answer.value
    assert row.model_call_ids == ("call-0", "call-2", "call-3")
    assert row.token_ids == (1, 2, 3, 4, 5, 6, 8, 9, 10, 11)
    assert row.token_mask == (0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0)
    assert row.weight_versions == (3, 4, 5)
    assert set(rollout.rows) == {f"{CAPTURED_ROLLOUT}/call-{index}" for index in range(4)}


def test_the_harness_may_declare_the_call_it_kept() -> None:
    rollout = captured(evolve(CONVERSATION, declared=1))
    assert rollout.receipt["terminal_selection"] == "declared"
    assert isinstance(rollout.answer, Accepted)
    assert rollout.answer.value.model_call_ids == ("call-0", "call-1")


def test_both_encodings_of_a_prefix_stage_the_same_call() -> None:
    turns = CONVERSATION.turns
    named = captured(evolve(CONVERSATION, turns=(*turns[:3], evolve(LAST, inline_prefix=False))))
    assert named == captured(CONVERSATION)


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.UNREADABLE, Outcome.OTHER_PROMPT])
def test_a_call_that_was_not_captured_fails_the_rollout(outcome: Outcome) -> None:
    rollout = captured(Conversation(CAPTURED_ROLLOUT, (ASKED, evolve(TOOL, outcome=outcome), evolve(LAST, parent=1))))
    assert rollout.receipt["capture_poisoned"]
    assert len(rollout.receipt["manifest"]) == 1
    found = answer(rollout.finalize())
    assert rollout.difference(found) is None
    assert isinstance(found, Accepted)
    assert found.value.rollout.rejection_reason == "rollout_failed:worker_capture_failed"


def test_several_preferred_children_leave_no_terminal() -> None:
    rollout = captured(Conversation(CAPTURED_ROLLOUT, (ASKED, TOOL, evolve(TOOL, layout=Layout.LOGPROBS))))
    assert rollout.receipt["failure_reason"] == "ambiguous_terminal"


def test_a_difference_is_told() -> None:
    rollout = captured(CONVERSATION)
    request = rollout.finalize()
    right = answer(request)
    assert isinstance(right, Accepted)
    row = right.value.rollout
    wrong = [
        (evolve(row, token_ids=(*row.token_ids[:-1], 12)), "[0][9]"),
        (evolve(row, logprobs=(*row.logprobs[:-1], -0.0)), "[2][9]"),
        (evolve(row, valid=False, rejection_reason="invalid_reward"), "nemo-gym accepts it"),
    ]
    for value, words in wrong:
        told = captured_row.check(request, right, Accepted(evolve(right.value, rollout=value)))
        assert told is not None
        assert words in told
    assert captured_row.check(request, right, right) is None
    assert captured_row.check(request, right, Crashed("KeyError")) is not None
    failed = captured(Conversation(CAPTURED_ROLLOUT, (evolve(ASKED, outcome=Outcome.FAILED),)))
    assert failed.difference(right) == "nemo-gym refuses with rollout_failed, found accepted"
    assert captured_row.check(evolve(request, rollout_id="another"), right, Crashed("KeyError")) is None


def test_sink_and_source_are_what_nemo_gym_asks_for() -> None:
    plane = MemoryDataPlane()
    sink, source = OurSink(plane, PARTITION), SnapshotSource(plane)
    assert isinstance(sink, StagingSink)
    assert isinstance(source, StagingSource)
    rollout = capture(CONVERSATION, sink, source)
    keys = [row["staging_key"] for row in rollout.receipt["manifest"]]
    assert source.fetch(keys) == list(rollout.theirs[1])
    assert source.fetch([]) == []


def test_the_gate_has_captured_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [stream.name for area in Area for stream in streams(area)] == ["captured", "captured"]

    def missing() -> None:
        raise ImportError

    monkeypatch.setattr(module, "load_staging", missing)
    assert [*streams(Area.ROLLOUT)] == []


def test_admissions_and_manifest_are_those_of_nemo_gyms_own_gate(tmp_path: Path) -> None:
    """Its ledger resolves a parent from the echoed history; what it would admit is what we admitted."""
    plane = MemoryDataPlane()
    source = SnapshotSource(plane)
    gate = Gate(CONVERSATION, OurSink(plane, PARTITION), source)
    rollout = gate.run()
    histories = [history(CONVERSATION, position) for position in range(4)]

    async def through_its_gate() -> dict:
        ledger = FileLineageStore(tmp_path)
        for position, record in enumerate(gate.records):
            match = (await ledger.resolve(CAPTURED_ROLLOUT, histories[position])).match
            ours = gate.admissions[position]
            chain = () if match is None else match.staging_chain
            if match is None:
                theirs = CaptureAdmission(rollout_id=CAPTURED_ROLLOUT, model_call_id=record.model_call_id, mode="text")
            else:
                theirs = CaptureAdmission(
                    rollout_id=CAPTURED_ROLLOUT,
                    model_call_id=record.model_call_id,
                    parent_call_id=match.model_call_id,
                    prev_len=match.prev_len,
                    mode="token_in",
                    staging_chain=list(match.staging_chain),
                    parent_chain_hash=match.chain_hash,
                )
            inline = ours.required_prefix_token_ids
            if inline:
                assert inline == [token for one in source.fetch([*chain]) for token in one.token_ids_delta]
                theirs = theirs.model_copy(update={"staging_chain": [], "required_prefix_token_ids": inline})
            assert ours == theirs
            await ledger.record(
                CaptureLedgerCommit(
                    rollout_id=CAPTURED_ROLLOUT,
                    record=record,
                    staging_chain=(*chain, record.staging_key),
                    request_items=histories[position],
                    response_items=[said(position)],
                )
            )
        return await ledger.manifest(CAPTURED_ROLLOUT)

    manifest = asyncio.run(through_its_gate())
    assert manifest["failures"] == []
    assert manifest["records"] == rollout.receipt["manifest"]
