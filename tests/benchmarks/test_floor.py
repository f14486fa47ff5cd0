"""The floor under a finalizer, at tiny sizes: it moves the same rows, and the parts of a run add up."""

from __future__ import annotations

import pytest

from benchmarks import floor
from benchmarks.inputs import STAGING, TRAIN, fill
from rollproof.impl.columns import column_rows

pytestmark = pytest.mark.xdist_group("ray")

TINY = (
    floor.Shape("tokens", 2, 3, 20, 1),
    floor.Shape("routes", 2, 3, 20, 1, routed_dims=(2, 2)),
    floor.Shape("media", 2, 3, 40, 1, image=64),
)


def published(queue, ids):
    answer = queue.get_samples(ids, TRAIN, ["input_ids", "token_mask", "routed_experts", "pixel_values"])
    return {name: [row.tolist() for row in column_rows(column)] for name, column in answer.items()}


@pytest.mark.parametrize("shape", TINY, ids=lambda shape: shape.title)
def test_floor_leaves_what_finalizing_leaves(queue, shape):
    group = shape.build()
    contestants = floor.contestants(shape, group, queue)
    ids = [rollout.receipt["rollout_id"] for rollout in group.rollouts]
    left = []
    for run in contestants.values():
        fill(queue, group)
        run()
        assert queue.sample_ids(STAGING) == []
        left.append(published(queue, ids))
        queue.clear_samples(None, TRAIN)
    assert len(left) == 4
    assert all(one == left[0] for one in left)
    assert ("pixel_values" in left[0], "routed_experts" in left[0]) == (
        shape.image is not None,
        shape.routed_dims is not None,
    )


def test_parts_of_a_run_add_up(queue):
    rows = list(floor.rows_of(TINY[0], floor.measure(TINY[0], queue)))
    assert [row[1] for row in rows] == [floor.FLOOR, floor.HASHED, floor.BY_ROLLOUT, floor.BY_GROUP]
    assert rows[0][3:5] == (1.0, 1.0)
    for row in rows:
        parts = [part for part in row[5:] if part is not None]
        assert min(parts) > 0
        assert sum(parts) < 1e3 / row[2]
