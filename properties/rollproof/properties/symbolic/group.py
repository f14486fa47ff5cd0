"""Rollouts and groups (sections 5 and 8): versions, keys, arguments, row shapes, and what is counted."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from rollproof.properties.strategies.rollouts.staged_calls import bare_record
from rollproof.properties.symbolic.build import accepted, pick
from rollproof.properties.symbolic.rule import rule
from rollproof.spec.advisories import longest_route_run, weight_version_falls
from rollproof.spec.outcomes import RolloutOutcome
from rollproof.spec.records import FinalizedRollout, GroupRequest, LinearizedRow, Receipt
from rollproof.spec.rollout import check_identity, owned_keys, version_range
from rollproof.spec.rows import weight_range
from rollproof.spec.tensor import Tensor

VERSIONS = "3 versions below 2**63"


def rollout(valid: bool = True, **fields: Any) -> FinalizedRollout:
    """Return a finalized rollout of a prompt token and a generated one, or a rejected one."""
    if not valid:
        return FinalizedRollout("r", False, "capture_poisoned", 0.0)
    content: dict[str, Any] = {"token_ids": (7, 8), "token_mask": (0.0, 1.0), "logprobs": (0.0, -0.5), "prompt_len": 1}
    return FinalizedRollout("r", True, None, 0.0, **{**content, "min_wv": 0, "max_wv": 0, **fields})


def request(count: int, **fields: Any) -> GroupRequest:
    """Return the arguments for a group g of ``count`` rollouts."""
    of_all = {
        "rollout_ids": tuple(f"g_g{index}" for index in range(count)),
        "receipts": (None,) * count,
        "rewards": (0.0,) * count,
        "mask_sample": (False,) * count,
    }
    return GroupRequest("g", **{**of_all, **fields})


def counted(rollouts: int, receipts: int, rewards: int, flags: int) -> GroupRequest:
    """Return the arguments for a group with 0 to 2 of each."""
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
        bare_record(call, parent, weight_version=version)
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
    receipt = {"manifest": [{"staging_key": key, "model_call_id": "a"}]}
    return owned_keys("r", receipt) == (("r/a",) if key == "r/a" else ())


@rule("5", "ROLLOUT-5", "2 rows with either of 2 keys and either of 2 call ids", (0, 1, 0, 1))
def a_manifest_names_each_row_once(key: int, next_key: int, call: int, next_call: int) -> bool:
    """A receipt whose rows share a key or a call id is rejected.

    pre: 0 <= key <= 1 and 0 <= next_key <= 1
    pre: 0 <= call <= 1 and 0 <= next_call <= 1
    post: _
    """
    rows = tuple(
        bare_record(pick("ab", name), None, staging_key=pick(("r/a", "r/b"), place))
        for name, place in ((call, key), (next_call, next_key))
    )
    return accepted(check_identity, "r", Receipt("r", rows, "a")) == (key != next_key and call != next_call)


# ── the arguments and the rows of a group ───────────────────────────────────────────────────────────────────────────


@rule("8", "GROUP-9", "2 rollouts, each valid or not, versions and fallback below 2**63", (True, False, 3, 2, 9))
def the_group_range_is_that_of_valid_rows(first: bool, second: bool, older: int, newer: int, fallback: int) -> bool:
    """The weight-version range is that of the valid rows, and the fallback where there is none.

    pre: 0 <= older < 2**63 and 0 <= newer < 2**63 and 0 <= fallback < 2**63
    post: _
    """
    rollouts = [rollout(valid, min_wv=version, max_wv=version) for valid, version in ((first, older), (second, newer))]
    versions = ([older] if first else []) + ([newer] if second else []) or [fallback]
    return weight_range(request(2, fallback_weight_version=fallback), rollouts) == (min(versions), max(versions))


# ── counts ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@rule("8", "GROUP-13", VERSIONS, (4, 3, 5))
def falling_versions_are_counted(first: int, second: int, third: int) -> bool:
    """A call under an older version than the one before it is counted, once each.

    pre: 0 <= first < 2**63 and 0 <= second < 2**63 and 0 <= third < 2**63
    post: _
    """
    versions = first, second, third
    row = LinearizedRow("r", (), (), (), 0, ("a", "b", "c"), versions, (), (), ())
    falls = (1 if second < first else 0) + (1 if third < second else 0)
    return len(list(weight_version_falls(row))) == falls


def run_lengths(routes: Sequence[int]) -> list[int]:
    """Return how often each route that is not sentinel occurs in a row, run by run."""
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
    return longest_route_run(RolloutOutcome(routed))[1] == max(run_lengths(routes), default=0)
