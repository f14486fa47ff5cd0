"""The gate over TransferQueue says what it says over the memory's data plane."""

from __future__ import annotations

import pytest
from attrs import evolve
from click.testing import CliRunner
from hypothesis import Phase

from rollproof.properties.adapters.asking import ask
from rollproof.properties.adapters.data_planes import MEMORY, TRANSFER_QUEUE, over
from rollproof.properties.adapters.ours import Ours
from rollproof.properties.adapters.queue_planes import OwnPartitions, QueuePartitions
from rollproof.properties.cli import main
from rollproof.properties.errors import InputError
from rollproof.properties.gate.load import load_implementation
from rollproof.properties.gate.profiles import PROFILES
from rollproof.properties.gate.run import DECLARED, Check, both_answers, exercise, streams_for
from rollproof.properties.gate.streams import request_streams
from rollproof.properties.strategies.rollouts.recipes import realize_request
from rollproof.spec.judge.oracle import answer
from rollproof.spec.judge.requests import Accepted, Area, Crashed, FinalizeRollout
from rollproof.spec.plane import Put
from rollproof.spec.tensor import Tensor

pytestmark = pytest.mark.xdist_group("ray")


@pytest.fixture
def on_queue(queue):
    """Return our implementation over the session's queue."""
    implementation = over(Ours(), TRANSFER_QUEUE)
    yield implementation
    implementation.make_plane.__self__.clear()


@pytest.fixture
def few_streams(monkeypatch):
    """Let a check run what a plane can answer otherwise, and little else."""
    few = [stream for stream in request_streams(Area.ROLLOUT) if stream.name in {"valid", "outage", "hostile:rows"}]
    assert len(few) == 3
    monkeypatch.setattr("rollproof.properties.gate.run.request_streams", lambda _: few)


def test_the_verdicts_of_a_few_streams_are_the_same(on_queue, few_streams):
    same_verdicts(on_queue, Area.ROLLOUT)


@pytest.mark.deep
@pytest.mark.parametrize("area", [Area.GROUP, Area.ROLLOUT, Area.ROUTES, Area.MEDIA])
def test_the_verdicts_are_the_same(on_queue, area):
    same_verdicts(on_queue, area)


def same_verdicts(on_queue, area):
    reports = [Check(one, (area,), PROFILES["quick"], 3, max_examples=2).run() for one in (Ours(), on_queue)]
    memory, queued = ({str(code): (tally.driven, tally.right) for code, tally in one.codes.items()} for one in reports)
    assert all(report.held for report in reports), {
        name: str(one.finding) for name, one in reports[1].invariants.items()
    }
    assert queued == memory


def test_a_lost_row_is_found(on_queue, few_streams, monkeypatch):
    """The gate sees what the queue does: one that answers the first row alone is caught."""
    read = OwnPartitions.get_samples
    monkeypatch.setattr(OwnPartitions, "get_samples", lambda self, ids, *rest: read(self, ids[:1], *rest))
    report = Check(on_queue, (Area.ROLLOUT,), PROFILES["quick"], 3, max_examples=2, shrink=False).run()
    assert not report.held


def test_what_the_queue_forgets_is_declared_and_shows(on_queue):
    """Staged so by another client, a group's columns are gone once those of another dtype are cleared."""
    check = Check(on_queue, (Area.MEDIA,), PROFILES["quick"], 0)
    (stream,) = (one for one in streams_for([Area.MEDIA], on_queue) if one.name == DECLARED)
    findings = [
        finding
        for request in stream.every
        for finding in check.record(stream, request, *both_answers(on_queue, request), 0)
    ]
    assert findings
    assert {finding.deviation for finding in findings} == {"transfer-queue-forgets-columns"}


def test_nothing_else_is_excused(on_queue):
    """Not the same answer without the cause, and not a row that trains wrongly with it."""
    (forgets,) = (one for one in on_queue.deviations if one.area is Area.MEDIA)
    request = forgets.examples[0]
    expected = answer(realize_request(request))
    nothing = Accepted(tuple(evolve(step, effects=()) for step in expected.value))
    assert forgets.explains(request, expected, nothing)
    alike = evolve(request.staging, rows={key: {} for key in request.staging.rows})
    assert not forgets.explains(evolve(request, staging=alike), expected, nothing)
    assert not forgets.explains(request, expected, Crashed("KeyError"))
    wrong = [evolve(step, effects=tuple(map(with_other_tokens, step.effects))) for step in expected.value]
    assert not forgets.explains(request, expected, Accepted(tuple(wrong)))


def with_other_tokens(effect):
    """Return a publication whose rows have another token."""
    if not isinstance(effect, Put):
        return effect
    changed = Tensor.of("int64", [12345])
    return evolve(effect, rows=tuple(evolve(row, columns={**row.columns, "input_ids": changed}) for row in effect.rows))


def a_rollout(count: int) -> FinalizeRollout:
    """Return a rollout of at least ``count`` staged calls that the contract accepts."""
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
