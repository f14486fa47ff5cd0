"""The measurements at tiny sizes: their inputs are valid, the contestants agree, and the figures are figures."""

from __future__ import annotations

import gc
import math
import sys

import numpy as np
import pytest

pytest.importorskip("nemo_gym.token_id_capture.staging")

from benchmarks import Table, group, memory, scaling, slope
from benchmarks.inputs import PreparedPlane, chain_of, group_of, rollout_of, star_of
from rollproof.impl.records import read_receipt
from rollproof.properties.adapters.tensors import from_torch, named_columns
from rollproof.spec.lineage import linearize
from rollproof.spec.staged import decode_row

linux = pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for what a process holds, or for its cores")


@pytest.fixture(autouse=True)
def collected():
    """A measurement collects garbage before each run: let it not walk over all that the tests have loaded."""
    gc.freeze()
    yield
    gc.unfreeze()


def figures(table: Table) -> list[float]:
    return [value for row in table.rows for value in row if isinstance(value, int | float)]


@pytest.mark.parametrize("parents", [chain_of(1), chain_of(5), star_of(5), [-1, 0, 0, 2, 1, 3]])
def test_inputs_are_what_the_contract_accepts(parents):
    rollout = rollout_of(parents, 3)
    columns = {
        name: [from_torch(row.reshape(1, *row.shape)) for row in rows] for name, rows in named_columns(rollout.answer)
    }
    calls = [decode_row({name: rows[call] for name, rows in columns.items()}).call for call in range(len(parents))]
    row = linearize(read_receipt(rollout.receipt).record(), calls)
    assert row.model_call_ids == tuple(f"call-{call:04}" for call in rollout.chain)
    assert len(row.token_ids) == 3 * len(rollout.chain)


def test_what_must_be_hashed_is_counted():
    one, two = (rollout_of(chain_of(2), tokens) for tokens in (4, 5))
    assert sum(map(len, two.hashed)) - sum(map(len, one.hashed)) == 2 * (16 + 8 + 8)
    assert len(rollout_of(star_of(6), 4).hashed) == 6 + 2 + 1


def test_slopes():
    sizes = [10.0**power for power in range(6)]
    assert slope([(size, 3 * size**2) for size in sizes]) == pytest.approx(2)
    assert slope([(size, 500 + size) for size in sizes]) == pytest.approx(1, abs=0.1)
    assert slope([(1.0, 2.0)]) is None


def test_scaling():
    one = scaling.Series("tiny", "calls", (2, 8), lambda size: rollout_of(star_of(size), 4))
    table = scaling.grow(one, rounds=1)
    assert len(table.rows) == 2
    assert all(math.isfinite(value) and value > 0 for value in figures(table))
    assert {len(table.line(name)) for name in (scaling.OURS, scaling.THEIRS, scaling.SHA)} == {2}
    assert all(math.isfinite(row[2]) for row in scaling.slopes([(one, table)]).rows)


def test_a_peer_that_is_too_slow_stops_and_is_named():
    one = scaling.Series("tiny", "calls", (1, 4, 8), lambda size: rollout_of(chain_of(size), 4))
    table = scaling.grow(one, budget=0.0, rounds=1)
    assert [row[2] is None for row in table.rows] == [False, True, True]
    assert len(table.line(scaling.OURS)) == 3
    assert table.notes[0].startswith("nemo-gym stops before 4:")


def test_contestants_that_do_not_agree_are_noticed(monkeypatch):
    monkeypatch.setattr(scaling, "row_of", lambda row: None)
    with pytest.raises(AssertionError, match="do not agree"):
        scaling.measure(rollout_of(chain_of(2), 4), rounds=1)


@linux
def test_memory_that_is_used_and_freed_is_seen():
    grown = memory.growth(lambda: np.ones(2**23).sum())
    assert 0.95 * 2**26 < grown < 1.1 * 2**26


@linux
def test_memory_of_a_group():
    grown, published = memory.measure_here(memory.SHAPES["tiny"], fresh=True)
    prompt, routes = 50 * 8, 2 * 2 * 2
    assert published == 2 * (200 * (8 + 4 + 4 + routes) + prompt + 8 + 3 * 4 + 2 * 1) - 2 * 4
    assert 0 <= grown < 2**26


def test_a_prepared_plane_answers_copies_if_asked():
    staged = group_of(1, 2, 3)
    plane, fresh = PreparedPlane(staged), PreparedPlane(staged, fresh=True)
    (rollout,) = staged.rollouts
    ids = [
        one.get_samples(rollout.keys, "staging", ["token_ids_delta"]).get("token_ids_delta") for one in (plane, fresh)
    ]
    addresses = [found.values().data_ptr() for found in (rollout.answer.get("token_ids_delta"), *ids)]
    assert addresses[0] == addresses[1] != addresses[2]
    assert ids[0].values().equal(ids[1].values())


@linux
def test_groups_per_second():
    found = group.measure((1,), (2, 2, 8), groups=2, rounds=1)
    assert set(found) == {(group.PREPARED, 1), (group.MEMORY, 1), (group.SHA, 1)}
    assert all(len(seconds) == 1 and min(seconds) > 0 for seconds in found.values())
