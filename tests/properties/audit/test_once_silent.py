"""What spec and implementation once accepted without a word: it has a code now, or an advisory that an audit lists."""

from __future__ import annotations

from hashlib import sha256

import pytest
from attrs import evolve
from hypothesis import HealthCheck, given, settings

from rollproof.properties.adapters.asking import ask
from rollproof.properties.adapters.ours import Ours
from rollproof.properties.audit.thresholds import NAMES
from rollproof.properties.strategies.breaks.media import (
    MEDIA,
    committed,
    expanded_twice,
    generated_placeholder,
    illustrated_chain,
    lost_pixels,
    no_list,
    other_size,
    overwritten,
    recounted,
    retokenized,
    spans_of,
    with_spans,
)
from rollproof.properties.strategies.rollouts.history import rehash
from rollproof.properties.strategies.rollouts.routed_histories import with_routes
from rollproof.properties.strategies.rollouts.worked import WORKED_EXAMPLE
from rollproof.properties.strategies.scalars import Bytes
from rollproof.properties.strategies.streams.between import FLAT, SQUARE, in_one_group, with_pictures
from rollproof.properties.strategies.streams.media import DEFERRED, DIMS, DIRECT
from rollproof.properties.strategies.streams.routes import routeless_beside_rejected
from rollproof.spec.advisories import find_advisories
from rollproof.spec.group import finalize_all
from rollproof.spec.judge.oracle import answer
from rollproof.spec.judge.requests import FinalizeGroups
from rollproof.spec.outcomes import Failure
from rollproof.spec.records import ReassemblerConfig
from rollproof.spec.tensor import Tensor

OURS = Ours()
FEW = settings(max_examples=4, derandomize=True, deadline=None, database=None,
               suppress_health_check=list(HealthCheck))  # fmt: skip
TWO_IMAGES = with_pictures("r", (((FLAT,), (FLAT,)), ((FLAT,),)), video=False, first_byte=1)


def code(request) -> str:
    """Return the code and subject with which a rollout is rejected, empty where it is valid; ours must agree."""
    reasons = [reply.value.rollout.rejection_reason for reply in (answer(request), ask(OURS, request))]
    found, ours = (":".join((reason or "").split(":")[:2]) for reason in reasons)
    assert ours == found
    return found


def advised(request: FinalizeGroups) -> dict[str, list[tuple[str, str | None, int]]]:
    """Return a group's advisories by name: rollout, call, count. Ours must count the same; each must be a threshold."""
    replies = answer(request).value[0], ask(OURS, request).value[0]
    counted, ours = (
        {name: count for name, count in reply.group.metrics.items() if name.startswith("advisory/")}
        for reply in replies
    )
    assert ours == counted
    assert set(counted) <= set(NAMES)
    outcomes: list = []
    group = request.steps[0].request
    finalize_all(request.config, group, request.staging.plane(), None, outcomes)
    listed: dict[str, list[tuple[str, str | None, int]]] = {}
    for one in find_advisories(request.config, outcomes, group.current_weight_version):
        listed.setdefault(one.name, []).append((one.rollout_id, one.call, one.count))
    assert {name for name, count in counted.items() if count} == {f"advisory/{name}" for name in listed}
    return listed


# ── media ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def respanned(edit):
    """Return an edit of a call that edits its spans."""

    def change(decide, call):
        spans = spans_of(call)
        edit(decide, spans)
        return with_spans(call, spans)

    return change


EDITS = {
    "image dropped": lost_pixels,
    "placeholders doubled": expanded_twice,
    "image token sampled": generated_placeholder,
    "other size": respanned(other_size),
    "spans malformed": respanned(no_list),
}


@pytest.mark.parametrize("edit", EDITS)
def test_media_of_routed_calls_are_checked_in_every_mode(edit):
    """Decision D35."""
    call = illustrated_chain(TWO_IMAGES)[-1]
    broken = committed(TWO_IMAGES, EDITS[edit](Bytes(b""), call))

    @FEW
    @given(with_routes(broken, DIMS, share=1.0))
    def check(history):
        found = {code(history.finalize(evolve(config, routed_dims=DIMS))) for config in (DIRECT, DEFERRED)}
        assert found == {f"media_placeholder_mismatch:{call.id}"} == {code(history.finalize(MEDIA))}

    check()


def forged(metadata: bytes, **columns):
    return {
        "extras_metadata_json": Tensor("uint8", (1, len(metadata)), metadata),
        "media_metadata_digest": Tensor("uint8", (1, 32), sha256(metadata).digest()),
        **columns,
    }


def test_media_that_were_forged_away_break_the_commitment():
    """Decision D36."""
    call = illustrated_chain(TWO_IMAGES)[-1]
    absent = {name: Tensor.of("bool", [False]) for name in ("media_present", "media_has_frames")}
    for columns in (forged(b"null", **absent), forged(b'{"media_spans":[]}')):
        assert code(overwritten(TWO_IMAGES, call, columns)) == f"media_commitment:{call.id}"


@pytest.mark.parametrize(("patches", "count"), [(FLAT, 64), (FLAT, 1), (SQUARE, 3), (SQUARE, 16)])
def test_placeholders_are_counted_against_pixels(patches, count):
    """Decision D37: the first call's image has one embedding per patch, and so must the second's."""
    history = with_pictures("r", (((FLAT,),), ((patches,),)), video=False, first_byte=1)
    call = illustrated_chain(history)[-1]
    assert code(history.finalize(MEDIA)) == ""
    assert code(committed(history, recounted(call, count)).finalize(MEDIA)) == f"media_placeholder_mismatch:{call.id}"
    config = evolve(MEDIA, patches_per_embedding=4)
    assert code(history.finalize(config)).startswith("media_placeholder_mismatch")


def test_placeholder_tokens_outside_items_are_listed():
    call = illustrated_chain(TWO_IMAGES)[-1]
    carry = call.staged.token_mask_delta.count(0.0)
    stray = committed(TWO_IMAGES, retokenized(call, carry, 0, [0, spans_of(call)[-1]["token_id"]]))
    found = advised(in_one_group(MEDIA, [stray.finalize(MEDIA)]))
    assert found["placeholder_token_outside_items"] == [("r", call.id, 1)]


# ── groups ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def changed(history, index, **columns):
    """Return the history with columns of one call exchanged."""
    calls = list(history.calls)
    calls[index] = evolve(calls[index], staged=evolve(calls[index].staged, **columns))
    return rehash(evolve(history, calls=tuple(calls)))


def worked(name: str, index: int = 0, **columns):
    return changed(WORKED_EXAMPLE.renamed(name), index, **columns).finalize(ReassemblerConfig())


def test_groups_with_one_prompt_have_two_keys():
    """Decision D39."""
    config = ReassemblerConfig(publish_group_key=True)
    request = in_one_group(config, [worked("a")])
    other = evolve(request.steps[0].request, group_id="h", canonical_sample_ids=("h_g0",))
    rows = [
        answer(one).value[0].rows[0].columns
        for one in (request, evolve(request, steps=(evolve(request.steps[0], request=other),)))
    ]
    assert rows[0]["prompt_ids_for_adv"] == rows[1]["prompt_ids_for_adv"]
    assert rows[0]["group_key"] != rows[1]["group_key"]
    assert ask(OURS, request).value[0].rows[0].columns["group_key"] == rows[0]["group_key"]


def test_a_group_of_different_problems_is_listed():
    """Decision D39."""
    request = in_one_group(ReassemblerConfig(), [worked("a"), worked("b", token_ids_delta=(9, 11, 12, 13))])
    assert advised(request)["mixed_prompts"] == [("b", None, 1)]


@FEW
@given(routeless_beside_rejected())
def test_valid_rows_beside_rejected_routes_are_published_where_their_shape_is_known(request):
    """Decision D40."""
    for outcome in (answer(request).value[0], ask(OURS, request).value[0]):
        if request.config.routed_dims is None:
            assert outcome.failure is Failure.ROUTES_UNKNOWN
        else:
            assert outcome.group.valid_row_count == 1
            assert {value for row in outcome.rows for value in row.columns["routed_experts"].values()} == {-1}


@pytest.mark.parametrize("name", ["fallback_weight_version", "current_weight_version"])
@pytest.mark.parametrize("value", [-1, 2**63, True, 1.5, "x", None])
def test_weight_versions_of_arguments_have_a_domain(name, value):
    """Decision D40; without a current weight version, nothing is compared with it."""
    request = in_one_group(ReassemblerConfig(), [worked("a")])
    (step,) = request.steps
    request = evolve(request, steps=(evolve(step, request=evolve(step.request, **{name: value})),))
    failure = None if (name, value) == ("current_weight_version", None) else Failure.CALLER
    assert [reply.value[0].failure for reply in (answer(request), ask(OURS, request))] == [failure] * 2


def test_calls_without_log_probabilities_are_listed():
    first, second = (call.id for call in WORKED_EXAMPLE.calls)
    zeros = worked("a", generation_log_probs_delta=(0.0, 0.0, 0.0, 0.0))
    low = worked("b", 1, generation_log_probs_delta=(0.0, -61.0, 0.0))
    found = advised(in_one_group(ReassemblerConfig(), [zeros, low]))
    assert found["zero_logprob_generations"] == [("a", first, 1)]
    assert found["zero_logprob_tokens"] == [("a", first, 2), ("b", second, 1)]
    assert found["implausible_logprobs"] == [("b", second, 1)]


def test_what_was_generated_and_is_not_trained_is_listed():
    first, second = (call.id for call in WORKED_EXAMPLE.calls)
    cut = evolve(WORKED_EXAMPLE.renamed("a"), terminal_call_id=first).finalize(ReassemblerConfig())
    config = ReassemblerConfig(stop_token_ids=(20,))
    request = in_one_group(config, [cut, worked("b")])
    (step,) = request.steps
    request = evolve(request, steps=(evolve(step, request=evolve(step.request, current_weight_version=3)),))
    found = advised(request)
    assert found["untrained_generated_tokens"] == [("a", second, 2)]
    assert found["stop_token_not_trained"] == [("b", first, 1)]
    assert found["version_above_current"] == [(name, call, 1) for name in "ab" for call in (first, second)]


def test_a_row_whose_first_position_is_trained_is_valid_and_listed():
    """Decision D41."""
    first = WORKED_EXAMPLE.calls[0].id
    request = worked("a", token_mask_delta=(1.0, 1.0, 1.0, 1.0), generation_log_probs_delta=(-0.5, -0.5, -0.5, -0.5))
    assert code(request) == ""
    assert advised(in_one_group(ReassemblerConfig(), [request]))["unpredicted_first_token"] == [("a", first, 1)]


def test_an_empty_answer_and_a_corrupt_digest_are_counted_apart():
    corrupt = worked("b")
    key = next(iter(corrupt.staging.rows))
    rows = dict(corrupt.staging.rows)
    rows[key] = {**rows[key], "token_ids_delta": Tensor.of("int64", [9, 11, 12, 13], (1, 4))}
    corrupt = evolve(corrupt, staging=evolve(corrupt.staging, rows=rows))
    empty = worked("a", token_mask_delta=(0.0,) * 4, generation_log_probs_delta=(0.0,) * 4)
    empty = evolve(empty, receipt={**empty.receipt, "terminal_model_call_id": WORKED_EXAMPLE.calls[0].id})
    request = in_one_group(ReassemblerConfig(), [empty, corrupt])
    for reply in (answer(request), ask(OURS, request)):
        metrics = reply.value[0].group.metrics
        assert metrics["finalize/rejection_rebuild_failed_count"] == 2.0
        assert metrics["finalize/rebuild_failed_empty_generation_count"] == 1.0
        assert metrics["finalize/rebuild_failed_corrupt_digest_count"] == 1.0
