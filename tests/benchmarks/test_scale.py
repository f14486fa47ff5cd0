"""The queueing network against closed forms, the fit against a known model, and the measurement at a tiny size."""

from __future__ import annotations

import itertools
import json

import attrs
import pytest

from benchmarks import report, scale, sizing
from benchmarks.inputs import STAGING, TRAIN
from benchmarks.queueing import Station, rates, rates_on, with_thinkers
from benchmarks.sizing import COUNTS, FINALIZE, KINDS, PHASES, READ, STAGE, Model, Point

pytestmark = pytest.mark.xdist_group("ray")

CORES = 2
KNOWN = Model(
    {
        (phase, kind): (scaled * fixed, scaled * fixed / 4e5, scaled * fixed / 20)
        for phase, scaled in zip(PHASES, (2.0, 1.0, 0.25), strict=True)
        for kind, fixed in zip(KINDS, (0.04, 0.02, 0.01), strict=True)
    },
    latency=0.004,
    share=0.8,
)


def points_of(model: Model) -> list[Point]:
    """Return the points that a machine of this model would give."""
    found = []
    for phase, units, finalizers, tokens in itertools.product(PHASES, COUNTS, COUNTS, (scale.SHORT, scale.LONG)):
        if phase == FINALIZE or finalizers == 1:
            point = Point(phase, units, finalizers, tokens, 1.0, model.cost(phase, units, tokens))
            found.append(attrs.evolve(point, rate=model.rate(point, CORES)))
    return found


# ── the network ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_one_customer_waits_for_nobody():
    assert rates([Station(0.1), Station(0.25)], 1, 0.15) == pytest.approx([2.0])
    assert rates_on(4, 0.1, 1, 0.1) == pytest.approx([5.0])


def test_balanced_stations_have_a_closed_form():
    # K equal stations: n customers make n / (n + K - 1) / D per second.
    for stations in (1, 2, 5):
        expected = [count / (count + stations - 1) / 0.1 for count in range(1, 9)]
        assert rates([Station(0.1)] * stations, 8) == pytest.approx(expected)


def test_one_server_and_thinkers_are_the_same_by_both_ways():
    for customers in (1, 3, 20):
        assert with_thinkers([10.0], customers, 0.3) == pytest.approx(rates([Station(0.1)], customers, 0.3)[-1])
    # As many servers as customers: nobody waits.
    assert with_thinkers([10.0 * count for count in range(1, 8)], 7, 0.3) == pytest.approx(7 / 0.4)
    assert with_thinkers([10.0, 20.0], 10_000, 0.3) == pytest.approx(20.0)


def test_side_by_side_the_last_server_counts():
    (rate,) = rates([Station(0.1, 3)], 1)
    assert rate == pytest.approx(1 / (0.1 * (1 + 1 / 2 + 1 / 3)))
    assert rates([Station(0.1, 3)], 500)[-1] == pytest.approx(10, rel=0.01)


def test_cores_bound_all_work():
    found = rates_on(2, 0.1, 60)
    assert found == pytest.approx(sorted(found))
    assert found[-1] == pytest.approx(20)


# ── the model ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_fit_finds_the_model_that_made_the_points():
    points = points_of(KNOWN)
    fitted = [point for point in points if point.fitted]
    assert 0 < len(fitted) < len(points)
    model = sizing.fit(fitted, CORES)
    for phase, kind in KNOWN.costs:
        assert model.costs[phase, kind] == pytest.approx(KNOWN.costs[phase, kind], rel=1e-6)
    assert (model.latency, model.share) == pytest.approx((KNOWN.latency, KNOWN.share), abs=0.01)
    assert model.error(points, CORES)[1] < 2


def test_no_cost_is_negative():
    falls = attrs.evolve(KNOWN, costs={key: (fixed, 0.0, -fixed / 20) for key, (fixed, *_) in KNOWN.costs.items()})
    model = sizing.fit(points_of(falls), CORES)
    assert min(itertools.chain(*model.costs.values())) >= 0


@pytest.mark.parametrize("tokens", [scale.SHORT, scale.LONG])
def test_a_plan_keeps_everything_below_its_bound(tokens):
    before = (0, 0, 0)
    for demand in (0.5, 2, 8, 40):
        queues, units, finalizers, reached = sizing.plan(KNOWN, demand, tokens, network=0.001)
        _, storage, controller = KNOWN.whole(units, tokens)
        assert demand / queues * max(storage / units, controller) <= sizing.BUSY
        assert demand / queues * KNOWN.cost(FINALIZE, units, tokens)[0] <= sizing.BUSY * finalizers
        assert 0.8 * demand < reached <= demand
        needed = (queues, queues * units, queues * finalizers)
        assert all(more >= less for more, less in zip(needed, before, strict=True))
        before = needed


def test_a_network_that_is_full_takes_more_units():
    narrow, wide = (sizing.plan(KNOWN, 1, scale.LONG, network) for network in (2.0, 0.001))
    assert narrow[1] > wide[1]


# ── the page, and the measurement ───────────────────────────────────────────────────────────────────────────────────


def test_the_section_says_what_is_full_first_and_marks_what_is_estimated(tmp_path, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(CORES)), raising=False)
    tables = list(scale.main(points_of(KNOWN)))
    assert [table.estimate for table in tables] == [False, False, True, True]
    stored = {"measured": "2026-01-02T03:04:05Z", "machine": {"cpus": CORES}, "tables": list(map(attrs.asdict, tables))}
    (tmp_path / "scale.json").write_text(json.dumps(stored))
    page = report.write(tmp_path, tmp_path / "speed.md")[0].read_text()
    assert "## How many finalizers and storage units does a training run need" in page
    assert page.count("An estimate, not a measurement") == 2
    assert "40,000 tokens, one of each: a storage unit is full first" in page
    assert "serves 1,000 trainers" in page


def test_points_over_a_queue(queue, monkeypatch):
    ray = pytest.importorskip("ray")
    monkeypatch.setattr(scale, "AT_LEAST", 1)
    monkeypatch.setattr(scale, "IDLE_S", 0.1)
    groups = scale.groups_of("tiny", 2 * sizing.ROWS, 3)
    finalizers = scale.finalizers_of(1)
    try:
        farm = scale.Farm(queue, 2, finalizers)
        points = [*farm.life(groups[:1]), farm.grid(1, groups)]
        idle = farm.resting().idle
    finally:
        ray.kill(finalizers[0])
    assert [point.phase for point in points] == [STAGE, READ, FINALIZE]
    assert all(point.tokens == 2 * sizing.ROWS and point.rate > 0 and min(point.seconds) > 0 for point in points)
    assert len(idle) == 4
    assert min(idle) > 0
    assert queue.sample_ids(STAGING) == queue.sample_ids(TRAIN) == []
