"""Groups with capabilities over a real TransferQueue, one by one and in a short soak."""

from __future__ import annotations

import random

import pytest
from attrs import asdict, evolve

from reliability.outages import stage
from reliability.soak import FLAWS, FLAWS_OF, columns_of, command, plans, rows_published
from rollproof.impl.policy import RoutePlanExecutor
from rollproof.impl.reassembler import RolloutReassembler
from rollproof.impl.recovery import run
from rollproof.properties.machine.model import STAGING, TRAIN, RolloutPlan, config_with, group_of
from rollproof.spec.constants import ROUTE_PLAN_TAG, ROUTED_EXPERTS, TOPK_COLUMNS
from rollproof.spec.judge.area import CAPABILITIES, Area

pytestmark = pytest.mark.xdist_group("ray")

OF_FINALIZERS = tuple(one for one in CAPABILITIES if one is not Area.CUTS)
CONFIG = config_with(OF_FINALIZERS)
CALLS = ((2, 3), (0, 1), (1, 2))
GROUP = group_of(
    950,
    [RolloutPlan(CALLS), RolloutPlan(CALLS, "no sidecar"), RolloutPlan(CALLS, "one candidate"), RolloutPlan(((3, 1),))],
    [],
    CONFIG,
)


@pytest.fixture
def staged(queue):
    stage(queue, GROUP)
    yield queue
    for partition in (STAGING, TRAIN):
        queue.clear_samples(None, partition)


def finalized(queue, **changes):
    return run(RolloutReassembler(queue, **asdict(evolve(CONFIG, **changes), recurse=False)), GROUP.request)


def test_sidecars_and_candidates_pass_through_a_queue(staged):
    group = finalized(staged)
    assert GROUP.valid(dict(GROUP.rows)) == {0, 3}
    assert group.valid_row_count == 2
    assert {"finalize/rejection_topk_value_range_count", "finalize/rejection_route_assembly_count"} <= set(
        group.metrics
    )
    assert {ROUTED_EXPERTS, *TOPK_COLUMNS} <= set(columns_of(CONFIG))
    assert rows_published(staged, GROUP) == GROUP.published(frozenset({0, 3}), dict(GROUP.rows))


def test_the_policy_repairs_from_a_queue_what_direct_mode_repairs(staged):
    group = finalized(staged, defer_routed_experts_to_policy=True)
    plans_of = [tag[ROUTE_PLAN_TAG] for tag in group.meta.tags]
    executor = RoutePlanExecutor(staged, dims=(1, 2), num_experts=8, route_boundary=CONFIG.route_boundary)
    batch = executor.replay(plans_of, group.meta.sequence_lengths)
    assert batch.failures == [None, "missing_fragment", None, None]
    rows = GROUP.published(frozenset({0, 3}), dict(GROUP.rows))
    for index in (0, 3):
        length = rows[index].columns[ROUTED_EXPERTS].shape[0]
        assert tuple(batch.routes[index][:length].flatten().tolist()) == rows[index].columns[ROUTED_EXPERTS].values()


def test_plans_have_the_flaws_of_the_capabilities():
    flaws = (*FLAWS, *FLAWS_OF.values())
    rng = random.Random(0)
    assert {plan.flaw for _ in range(200) for plan in plans(rng, flaws)} == {"", *flaws}
    assert set(FLAWS_OF) == set(OF_FINALIZERS)


@pytest.mark.deep
def test_a_short_soak_with_capabilities_ends_without_anything_wrong(tmp_path, capsys):
    report = tmp_path / "soak.md"
    given = ["--minutes", "0.2", "--capability", ",".join(OF_FINALIZERS), "--report", str(report)]
    assert command(given) == 0
    assert "with boundary and sampler" in report.read_text(encoding="utf-8")
    assert "| wrong rows, leaked keys, lost groups | 0 |" in capsys.readouterr().out
