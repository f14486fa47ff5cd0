"""The review's sketch in the gate, and the streams of media and retained media."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings

from rollproof.properties.adapters.sketch import Sketch, sketched_digest
from rollproof.properties.asking import ask
from rollproof.properties.gate.coverage import reason_of
from rollproof.properties.gate.profiles import PROFILES
from rollproof.properties.gate.run import Check
from rollproof.properties.strategies.hostile import realize_request
from rollproof.properties.strategies.named_tensors import HARD_PAIRS
from rollproof.properties.strategies.requests import request_streams
from rollproof.spec.oracle import answer
from rollproof.spec.requests import Area

FAULTS = {
    "framing": "framing",
    "null": "null",
    "0-dimensional": "0-dimensional",
    "conjugated": "conjugated",
    "negated": "negated",
    "quantization": "quantization",
    "name that is no text": "name",
    "one strided element": "singleton-view",
    "dtype without a name": "other-dtype",
    "null entry": "unnamed",
}
"""The smallest input of each fault, and the deviation that it is."""


@pytest.mark.parametrize("pair", HARD_PAIRS)
def test_each_fault_is_one_deviation_and_the_rest_is_right(pair):
    request = HARD_PAIRS[pair]
    expected, actual = answer(request), ask(Sketch(), request)
    known = [known.id for known in Sketch.deviations if known.applies(request, expected, actual)]
    assert known == [FAULTS[pair]] if pair in FAULTS else expected == actual


def test_every_fault_shows_in_the_gate_and_nothing_else():
    report = Check(Sketch(), (Area.RETAINED,), PROFILES["ci"], seed=0, shrink=False).run()
    assert report.falsified == []
    assert report.silent_deviations == []
    assert set(report.deviations) == set(FAULTS.values())


def test_the_proposal_as_it_was_proposed():
    seven, nothing = torch.tensor([7], dtype=torch.uint8), torch.zeros(0, dtype=torch.uint8)
    assert sketched_digest({"a": nothing, "b": seven}) == sketched_digest({"a|torch.uint8|(0,)|b": seven})
    assert sketched_digest(None) == sketched_digest({})
    with pytest.raises(RuntimeError):
        sketched_digest({"a": torch.tensor(1.0)})


CODED = [stream for area in (Area.MEDIA, Area.RETAINED) for stream in request_streams(area) if stream.codes]


@pytest.mark.parametrize("stream", CODED, ids=lambda stream: stream.name)
def test_streams_drive_the_codes_that_they_name(stream):
    @settings(max_examples=8, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(stream.strategy)
    def check(request):
        assert (reason_of(answer(realize_request(request))) or "").partition(":")[0] in stream.codes

    check()
