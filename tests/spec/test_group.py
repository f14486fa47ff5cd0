"""Rules of groups: arguments, sample ids, the prompt, and rows at their limits."""

from __future__ import annotations

import pytest
from cases import every

from rollproof.properties.symbolic.build import pick
from rollproof.properties.symbolic.group import counted, request, rollout
from rollproof.spec.constants import ROUTED_EXPERTS
from rollproof.spec.group import argument_error, sample_ids
from rollproof.spec.outcomes import RolloutOutcome
from rollproof.spec.records import GroupRequest, ReassemblerConfig
from rollproof.spec.rows import build_rows, sibling_prompt

DIRECT = ReassemblerConfig(router_replay_enabled=True)


@every(rollouts=range(3), receipts=range(3), rewards=range(3), flags=range(3))
def test_arguments_have_one_length(rollouts: int, receipts: int, rewards: int, flags: int) -> bool:
    """Arguments are taken iff there is a rollout, and as many receipts, rewards and flags (decision D13)."""
    given = counted(rollouts, receipts, rewards, flags)
    return (argument_error(given) is None) == (rollouts == receipts == rewards == flags > 0)


@every(count=range(1, 6))
def test_sample_ids_count_the_rollouts(count: int) -> bool:
    """A group of N rollouts has N distinct sample ids, which are the default rollout ids."""
    given = request(pick(range(6), count))
    ids = sample_ids(given)
    return len(set(ids)) == len(ids) == count and argument_error(given) is None and ids == given.rollout_ids


@every(first=(False, True), second=(False, True), prompt=range(3), next_prompt=range(3))
def test_the_prompt_is_the_first_valid_rows(first: bool, second: bool, prompt: int, next_prompt: int) -> bool:
    """All rows carry the first valid row's prompt, and the pad token where that is empty or no row is valid."""
    lengths = pick(range(3), prompt), pick(range(3), next_prompt)
    rows = [rollout(first, prompt_len=lengths[0]), rollout(second, prompt_len=lengths[1], token_ids=(5, 6))]
    chosen = (7, 8)[: lengths[0]] if first else (5, 6)[: lengths[1]] if second else ()
    return sibling_prompt(ReassemblerConfig(pad_token_id=3), rows) == (chosen or (3,))


@every(valid=(False, True), stopped=(False, True), limit=range(5))
def test_a_row_at_the_limit_is_truncated(valid: bool, stopped: bool, limit: int) -> bool:
    """A row is truncated iff it is valid, and max_seq_len tokens long or stopped for length (decisions D12, D38)."""
    config = ReassemblerConfig(max_seq_len=pick(range(5), limit))
    (row,) = build_rows(config, request(1), [RolloutOutcome(rollout(valid), stopped_for_length=stopped)], None)
    return row.columns["truncated"].values() == (valid and (stopped or limit <= 2),)


@every(valid=(False, True), layers=range(1, 3), experts=range(1, 3))
def test_a_row_has_one_value_per_token(valid: bool, layers: int, experts: int) -> bool:
    """Token columns and routes have one entry per token, and a placeholder has one token that trains nothing."""
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


def test_a_group_without_a_valid_row_falls_back_to_version_0() -> None:
    assert GroupRequest("g", ("g_g0",), ({},), (0.0,), (False,)).fallback_weight_version == 0


@pytest.mark.parametrize("ids", [("g_g0", "g_g0"), ("g_g1", "g_g1", "g_g2")])
def test_a_group_names_each_rollout_once(ids: tuple[str, ...]) -> None:
    request = GroupRequest("g", ids, ({},) * len(ids), (0.0,) * len(ids), (False,) * len(ids))
    assert argument_error(request) == "rollout_ids repeat"
