"""What a published row says is enough for a consumer's baselines: by its group each of them is of one prompt group."""

from __future__ import annotations

import pytest

from rollproof.properties.adapters.asking import ask
from rollproof.properties.adapters.ours import Ours
from rollproof.properties.adapters.reference import Reference
from rollproof.properties.strategies.rollouts.worked import WORKED_EXAMPLE
from rollproof.spec.advantage import advantages
from rollproof.spec.constants import GROUP_KEY
from rollproof.spec.judge.catalogue import of_area
from rollproof.spec.judge.oracle import answer
from rollproof.spec.judge.portable import AdvantageRequest, Advantages
from rollproof.spec.judge.requests import Accepted, Area, FinalizeGroups, GroupStep
from rollproof.spec.judge.staging import Staging
from rollproof.spec.portable import ScoredRow
from rollproof.spec.records import GroupRequest, ReassemblerConfig


def published(implementation, rewards):
    """The rows of two groups whose rollouts all have one prompt; the last rollout of each has no receipt."""
    names = {group: tuple(f"{group}_g{index}" for index in range(3)) for group in ("g", "h")}
    histories = {name: WORKED_EXAMPLE.renamed(name) for group in names.values() for name in group[:2]}
    steps = tuple(
        GroupStep(
            GroupRequest(
                group,
                rollouts,
                tuple(histories[name].raw_receipt() if name in histories else None for name in rollouts),
                rewards[group],
                (True, True, True),
            )
        )
        for group, rollouts in names.items()
    )
    staging = Staging({key: row for history in histories.values() for key, row in history.rows().items()})
    found = ask(implementation, FinalizeGroups(ReassemblerConfig(publish_group_key=True), steps, staging))
    assert isinstance(found, Accepted), found
    return [row for outcome in found.value for row in outcome.rows]


BY = {
    "tag group_id": lambda row: row.tags["group_id"],
    "column group_key": lambda row: str(row.columns[GROUP_KEY].values()),
    "column prompt_ids_for_adv": lambda row: str(row.columns["prompt_ids_for_adv"].values()),
}
"""What a consumer may find the rows of a baseline by."""


def scored(rows, by):
    """The batch as an estimator sees it."""
    return tuple(
        ScoredRow(
            by(row),
            f"r{index}",
            tuple(row.columns["prompt_ids_for_adv"].values()),
            row.columns["total_reward"].values()[0],
            any(row.columns["token_mask"].values()),
        )
        for index, row in enumerate(rows)
    )


@pytest.mark.parametrize("implementation", [Reference(), Ours()], ids=lambda one: one.name)
@pytest.mark.parametrize(
    "by, held", [("tag group_id", True), ("column group_key", True), ("column prompt_ids_for_adv", False)]
)
def test_groups_with_one_prompt_are_told_apart_by_their_group_alone(implementation, by, held):
    batches = [
        published(implementation, {"g": (0.0, 1.0, 0.0), "h": rewards})
        for rewards in ((0.0, 0.0, 0.0), (1.0, 1.0, 0.0))
    ]
    assert len({str(row.columns["prompt_ids_for_adv"].values()) for row in batches[0]}) == 1
    assert [row.trained for row in scored(batches[0], BY[by])] == [True, True, False] * 2
    true_groups = [scored(rows, BY["tag group_id"]) for rows in batches]
    values = Advantages(*(advantages(scored(rows, BY[by])) for rows in batches))
    request = AdvantageRequest(*true_groups)
    fallen = [
        item.id
        for item in of_area(Area.ADVANTAGE)
        if item.check(request, answer(request), Accepted(values)) is not None
    ]
    assert ("ADV-1" not in fallen) is held
    assert values.first[:2] == ((-0.5, 0.5) if held else (-0.25, 0.75))
