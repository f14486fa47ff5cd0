"""Rollouts and groups (sections 5 and 8): versions, keys, arguments, row shapes, and what is counted."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from rollproof.properties.symbolic.build import accepted, call_record, pick
from rollproof.properties.symbolic.rule import rule
from rollproof.spec.constants import MODE_TEXT, MODE_TOKEN_IN, ROUTED_EXPERTS
from rollproof.spec.group import argument_error, build_rows, sample_ids, sibling_prompt, weight_range
from rollproof.spec.metrics import longest_route_run, receipt_metrics, rollout_metrics, weight_version_falls
from rollproof.spec.outcomes import RolloutOutcome
from rollproof.spec.records import FinalizedRollout, GroupRequest, LinearizedRow, ReassemblerConfig, Receipt
from rollproof.spec.rollout import check_receipt_for, owned_keys, version_range
from rollproof.spec.tensor import Tensor

VERSIONS = "3 versions below 2**63"
DIRECT = ReassemblerConfig(router_replay_enabled=True)


def rollout(valid: bool = True, **fields: Any) -> FinalizedRollout:
    """A finalized rollout of a prompt token and a generated one, or a rejected one."""
    if not valid:
        return FinalizedRollout("r", False, "capture_poisoned", 0.0)
    content: dict[str, Any] = {"token_ids": (7, 8), "token_mask": (0.0, 1.0), "logprobs": (0.0, -0.5), "prompt_len": 1}
    return FinalizedRollout("r", True, None, 0.0, **{**content, "min_wv": 0, "max_wv": 0, **fields})


def request(count: int, **fields: Any) -> GroupRequest:
    """The arguments for a group g of ``count`` rollouts."""
    of_all = {
        "rollout_ids": tuple(f"g_g{index}" for index in range(count)),
        "receipts": (None,) * count,
        "rewards": (0.0,) * count,
        "mask_sample": (False,) * count,
    }
    return GroupRequest("g", **{**of_all, **fields})


def counted(rollouts: int, receipts: int, rewards: int, flags: int) -> GroupRequest:
    """The arguments for a group with 0 to 2 of each."""
    return request(
        pick(range(3), rollouts % 3),
        receipts=(None,) * pick(range(3), receipts % 3),
        rewards=(0.0,) * pick(range(3), rewards % 3),
        mask_sample=(False,) * pick(range(3), flags % 3),
    )


# ── one rollout ─────────────────────────────────────────────────────────────────────────────────────────────────────


@rule("5", "ROLLOUT-8", VERSIONS, (4, 3, 5))
def the_version_range_spans_the_manifest(first: int, second: int, third: int) -> bool:
    """The oldest and newest version are among the manifest's, and no call's lies outside, dead branches included.

    pre: 0 <= first < 2**63 and 0 <= second < 2**63 and 0 <= third < 2**63
    post: _
    """
    versions = first, second, third
    parents = (None, "a", "a")
    manifest = tuple(
        call_record(call, parent, weight_version=version)
        for call, parent, version in zip("abc", parents, versions, strict=True)
    )
    oldest, newest = version_range(Receipt("r", manifest, "b"))
    return oldest in versions and newest in versions and all(oldest <= version <= newest for version in versions)


@rule("8", ("GROUP-4", "ROUTE-16"), "keys of up to 3 characters", ("r/a",))
def only_own_keys_are_owned(key: str) -> bool:
    """A rollout owns a manifest's key iff it is its own id, a slash and the row's call id (decision D14).

    pre: 0 < len(key) <= 3
    post: _
    """
    receipt = Receipt("r", (call_record("a", None, staging_key=key),), "a")
    return owned_keys("r", receipt) == (("r/a",) if key == "r/a" else ())


@rule("5", "ROLLOUT-5", "2 rows with either of 2 keys and either of 2 call ids", (0, 1, 0, 1))
def a_manifest_names_each_row_once(key: int, next_key: int, call: int, next_call: int) -> bool:
    """A receipt whose rows share a key or a call id is rejected.

    pre: 0 <= key <= 1 and 0 <= next_key <= 1
    pre: 0 <= call <= 1 and 0 <= next_call <= 1
    post: _
    """
    rows = tuple(
        call_record(pick("ab", name), None, staging_key=pick(("r/a", "r/b"), place))
        for name, place in ((call, key), (next_call, next_key))
    )
    return accepted(check_receipt_for, "r", Receipt("r", rows, "a")) == (key != next_key and call != next_call)


# ── the arguments and the rows of a group ───────────────────────────────────────────────────────────────────────────


@rule("8", "GROUP-7", "0 to 2 rollouts, receipts, rewards and mask flags", (2, 2, 2, 2))
def arguments_have_one_length(rollouts: int, receipts: int, rewards: int, flags: int) -> bool:
    """Arguments are taken iff there is a rollout, and as many receipts, rewards and flags (decision D13).

    pre: 0 <= rollouts <= 2
    pre: 0 <= receipts <= 2
    pre: 0 <= rewards <= 2
    pre: 0 <= flags <= 2
    post: _
    """
    given = counted(rollouts, receipts, rewards, flags)
    return (argument_error(given) is None) == (rollouts == receipts == rewards == flags > 0)


@rule("8", ("GROUP-2", "GROUP-7"), "1 to 5 rollouts", (3,))
def sample_ids_count_the_rollouts(count: int) -> bool:
    """A group of N rollouts has N distinct sample ids, which are the default rollout ids.

    pre: 1 <= count <= 5
    post: _
    """
    given = request(pick(range(6), count))
    ids = sample_ids(given)
    return len(set(ids)) == len(ids) == count and argument_error(given) is None and ids == given.rollout_ids


@rule("8", "GROUP-9", "2 rollouts, each valid or not, versions and fallback below 2**63", (True, False, 3, 2, 9))
def the_group_range_is_that_of_valid_rows(first: bool, second: bool, older: int, newer: int, fallback: int) -> bool:
    """The weight-version range is that of the valid rows, and the fallback where there is none.

    pre: 0 <= older < 2**63 and 0 <= newer < 2**63 and 0 <= fallback < 2**63
    post: _
    """
    rollouts = [rollout(valid, min_wv=version, max_wv=version) for valid, version in ((first, older), (second, newer))]
    versions = ([older] if first else []) + ([newer] if second else []) or [fallback]
    return weight_range(request(2, fallback_weight_version=fallback), rollouts) == (min(versions), max(versions))


@rule("8", "GROUP-10", "2 rollouts, each valid or not, prompts of 0 to 2 tokens", (False, True, 1, 2))
def the_prompt_is_the_first_valid_rows(first: bool, second: bool, prompt: int, next_prompt: int) -> bool:
    """All rows carry the first valid row's prompt, and the pad token where that is empty or no row is valid.

    pre: 0 <= prompt <= 2
    pre: 0 <= next_prompt <= 2
    post: _
    """
    lengths = pick(range(3), prompt), pick(range(3), next_prompt)
    rows = [rollout(first, prompt_len=lengths[0]), rollout(second, prompt_len=lengths[1], token_ids=(5, 6))]
    chosen = (7, 8)[: lengths[0]] if first else (5, 6)[: lengths[1]] if second else ()
    return sibling_prompt(ReassemblerConfig(pad_token_id=3), rows) == (chosen or (3,))


@rule("8", "GROUP-14", "a row of 2 tokens, valid or not, limits up to 4", (True, 2))
def a_row_at_the_limit_is_truncated(valid: bool, limit: int) -> bool:
    """A row is marked truncated iff it is valid and at least max_seq_len tokens long (decision D12).

    pre: 0 <= limit <= 4
    post: _
    """
    config = ReassemblerConfig(max_seq_len=pick(range(5), limit))
    (row,) = build_rows(config, request(1), [RolloutOutcome(rollout(valid))], None)
    return row.columns["truncated"].values() == (valid and limit <= 2,)


@rule("8", ("GROUP-3", "GROUP-11", "ROUTE-11"), "valid and rejected rows, routes of up to 2 x 2", (False, 1, 2))
def a_row_has_one_value_per_token(valid: bool, layers: int, experts: int) -> bool:
    """Token columns and routes have one entry per token, and a placeholder has one token that trains nothing.

    pre: 1 <= layers <= 2
    pre: 1 <= experts <= 2
    post: _
    """
    dims = pick(range(3), layers), pick(range(3), experts)
    (row,) = build_rows(DIRECT, request(1), [RolloutOutcome(rollout(valid))], dims)
    length = 2 if valid else 1
    shapes = {name: row.columns[name].shape for name in ("input_ids", "token_mask", "generation_logprobs")}
    weights = row.columns["token_mask"].values(), row.columns["sample_mask"].values()
    routes = row.columns[ROUTED_EXPERTS]
    return (
        set(shapes.values()) == {(length,)}
        and row.columns["input_lengths"].values() == (length,)
        and weights == (((0.0, 1.0), (1.0,)) if valid else ((0.0,), (0.0,)))
        and routes.shape == (length, *dims)
        and set(routes.values()) == {-1}
    )


# ── counts ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@rule("8", "GROUP-13", "3 rollouts, each valid or not, with or without media", (True, False, True, False))
def rates_are_shares_of_rows(first: bool, second: bool, third: bool, with_media: bool) -> bool:
    """The rate of invalid rows is that of all rows, the rate of media rows that of valid ones; 0 where none is valid.

    post: _
    """
    flags = first, second, third
    fields = {"media": {"pixel_values": Tensor.of("float32", [0.0])}} if with_media else {}
    metrics = rollout_metrics([RolloutOutcome(rollout(valid, **fields)) for valid in flags])
    rates = metrics["finalize/invalid_row_rate"], metrics["finalize/media_row_rate"]
    return rates == (1.0 - flags.count(True) / 3, 1.0 if with_media and any(flags) else 0.0)


@rule("8", "GROUP-13", "2 manifest rows: token_in, text, without a mode, with another, or no object at all", (0, 4))
def every_manifest_row_is_counted_once(first: int, second: int) -> bool:
    """Calls are counted as token_in where they say so or say nothing, the others as text roots, and non-objects not.

    pre: 0 <= first <= 4
    pre: 0 <= second <= 4
    post: _
    """
    rows = [{"mode": MODE_TOKEN_IN}, {}, {"mode": MODE_TEXT}, {"mode": 7}, "row"]
    metrics = receipt_metrics([{"manifest": [pick(rows, first), pick(rows, second)]}])
    counts = metrics["finalize/token_in_calls"], metrics["finalize/text_root_calls"]
    return counts == (sum(row < 2 for row in (first, second)), sum(2 <= row < 4 for row in (first, second)))


@rule("8", "GROUP-13", VERSIONS, (4, 3, 5))
def falling_versions_are_counted(first: int, second: int, third: int) -> bool:
    """A call under an older version than the one before it is counted, once each.

    pre: 0 <= first < 2**63 and 0 <= second < 2**63 and 0 <= third < 2**63
    post: _
    """
    versions = first, second, third
    row = LinearizedRow("r", (), (), (), 0, ("a", "b", "c"), versions, (), (), ())
    falls = (1 if second < first else 0) + (1 if third < second else 0)
    return weight_version_falls(RolloutOutcome(rollout(), row=row)) == falls


def run_lengths(routes: Sequence[int]) -> list[int]:
    """How often each route that is not sentinel occurs in a row, run by run."""
    starts = [0, *(place for place in range(1, len(routes)) if routes[place] != routes[place - 1]), len(routes)]
    return [after - start for start, after in pairwise(starts) if routes[start] >= 0]


@rule("8", "ROUTE-18", "3 tokens of one route each, from sentinel to expert 1", (1, -1, 1))
def a_repeated_route_is_measured(first: int, second: int, third: int) -> bool:
    """The longest run of equal routes leaves sentinels out, and does not go on behind one.

    pre: -1 <= first <= 1 and -1 <= second <= 1
    pre: -1 <= third <= 1
    post: _
    """
    routes = [pick((-1, 0, 1), expert + 1) for expert in (first, second, third)]
    routed = rollout(routed_experts=Tensor.of("int16", routes, (3, 1, 1)))
    return longest_route_run(RolloutOutcome(routed)) == max(run_lengths(routes), default=0)
