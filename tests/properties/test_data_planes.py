"""The gate over TransferQueue says what it says over the memory's data plane."""

from __future__ import annotations

import pytest
from attrs import evolve
from click.testing import CliRunner
from hypothesis import Phase

from rollproof.properties.adapters.ours import Ours
from rollproof.properties.asking import ask
from rollproof.properties.cli import main
from rollproof.properties.dataplanes import MEMORY, TRANSFER_QUEUE, OwnPartitions, QueuePartitions, over
from rollproof.properties.errors import InputError
from rollproof.properties.gate.load import load_implementation
from rollproof.properties.gate.profiles import PROFILES
from rollproof.properties.gate.run import Check, exercise, streams_for
from rollproof.properties.strategies.recipes import realize_request
from rollproof.spec.oracle import answer
from rollproof.spec.requests import Area, FinalizeRollout
from rollproof.spec.tensor import Tensor

pytestmark = pytest.mark.xdist_group("ray")


@pytest.fixture
def on_queue(queue):
    """Our implementation over the session's queue."""
    implementation = over(Ours(), TRANSFER_QUEUE)
    yield implementation
    implementation.make_plane.__self__.clear()


@pytest.mark.parametrize("area", [Area.ROLLOUT, Area.GROUP, Area.ROUTES, Area.MEDIA])
def test_the_verdicts_are_the_same(on_queue, area):
    reports = [Check(one, (area,), PROFILES["quick"], 3, max_examples=2).run() for one in (Ours(), on_queue)]
    memory, queued = ({str(code): (tally.driven, tally.right) for code, tally in one.codes.items()} for one in reports)
    assert all(report.held for report in reports), {
        name: str(one.finding) for name, one in reports[1].invariants.items()
    }
    assert queued == memory


def test_a_lost_row_is_found(on_queue, monkeypatch):
    """The gate sees what the queue does: one that answers the first row alone is caught."""
    read = OwnPartitions.get_samples
    monkeypatch.setattr(OwnPartitions, "get_samples", lambda self, ids, *rest: read(self, ids[:1], *rest))
    report = Check(on_queue, (Area.ROLLOUT,), PROFILES["quick"], 3, max_examples=2, shrink=False).run()
    assert not report.held


def a_rollout(count: int) -> FinalizeRollout:
    """A rollout of at least ``count`` staged calls that the contract accepts."""
    found: list[FinalizeRollout] = []

    def keep(request) -> None:
        if isinstance(request, FinalizeRollout) and not request.config.capture_media:
            realized = realize_request(request)
            rollout = getattr(getattr(answer(realized), "value", None), "rollout", None)
            if rollout is not None and rollout.valid and len(rollout.staging_keys) >= count:
                found.append(realized)

    for stream in streams_for([Area.ROLLOUT], Ours()):
        if not found:
            exercise(stream.strategy, keep, 30, 0, (Phase.generate,))
    return found[0]


@pytest.mark.parametrize("dtype", ["int32", "float32", "bool"])
def test_a_scalar_of_another_dtype_among_others_is_seen(on_queue, dtype):
    request = a_rollout(2)
    keys = list(request.staging.rows)
    assert ask(on_queue, request).value.rollout.valid
    row = request.staging.rows[keys[0]]
    changed = {**row, "schema_version": Tensor.of(dtype, [1])}
    other = evolve(request, staging=evolve(request.staging, rows={**request.staging.rows, keys[0]: changed}))
    assert answer(other).value.rollout.rejection_reason.startswith("invalid_staging_row")
    assert ask(on_queue, other).value.rollout.rejection_reason.startswith("invalid_staging_row")


def test_the_next_request_finds_nothing_of_the_last(queue):
    partitions = QueuePartitions(queue)
    first = partitions.fresh()
    first.put_samples(["a"], "p", None, [{"tag": 1}])
    name = f"{first.prefix}/p"
    assert queue.sample_ids(name) == ["a"]
    second = partitions.fresh()
    assert queue.sample_ids(name) == []
    assert second.prefix != first.prefix


def test_only_a_reassembler_has_a_data_plane():
    assert over(load_implementation("spec"), MEMORY).name == "spec"
    result = CliRunner().invoke(
        main, ["check", "spec", "--data-plane", "memory", "--area", "digest", "--max-examples", "1"]
    )
    assert result.exit_code == 0
    with pytest.raises(InputError, match="--data-plane does not apply"):
        over(load_implementation("spec"), TRANSFER_QUEUE)
