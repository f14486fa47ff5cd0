"""Results: their fields, and that they are frozen. That they travel between processes is in test_drop_in.py."""

from __future__ import annotations

import dataclasses

import pytest

from rollproof.impl import plan as plans
from rollproof.impl.outcomes import FinalizedGroup, FinalizedRollout
from rollproof.impl.plan import RouteAssemblyPlan, RouteSpan


@pytest.mark.parametrize("kind", [FinalizedGroup, FinalizedRollout, RouteAssemblyPlan, RouteSpan])
def test_results_are_frozen(kind):
    names = [field.name for field in dataclasses.fields(kind)]
    made = kind(*names)
    assert [getattr(made, name) for name in names] == names
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(made, names[0], None)


def test_fields_have_upstreams_names_and_order():
    """Of NeMo RL's reference page and its route plan; callers pass them by position."""
    order = {
        FinalizedRollout: (
            "rollout_id valid rejection_reason token_ids token_mask logprobs prompt_len reward staging_keys "
            "min_wv max_wv routed_experts route_plan media"
        ),
        FinalizedGroup: (
            "meta group_min_wv group_max_wv staging_keys canonical_output_tokens metrics dropped drop_reason "
            "valid_row_count total_row_count"
        ),
        RouteAssemblyPlan: "schema_version staging_partition spans cleanup_staging_keys expected_token_length",
        RouteSpan: (
            "staging_key carry_len generation_len staged_route_len extras_digest_version extras_digest "
            "boundary_token_index repair_previous_token"
        ),
    }
    for kind, names in order.items():
        assert [field.name for field in dataclasses.fields(kind)] == names.split()
    span = RouteSpan("r/c", 0, 1, 0, 1, "0" * 64)
    plan = RouteAssemblyPlan(2, "s", (span,), ("r/c",), 1)
    assert plans.decode_plan(plans.encode_plan(plan)) == plan


def test_finalized_group_is_empty_by_default() -> None:
    group = FinalizedGroup(None, 0, 0, [])
    assert (group.canonical_output_tokens, group.valid_row_count, group.total_row_count) == (0, 0, 0)
    assert (group.metrics, group.dropped, group.drop_reason) == ({}, False, None)
