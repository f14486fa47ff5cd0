"""The review's sketch in the gate, and the streams of media and retained media."""

from __future__ import annotations

import pytest
import torch
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings

from rollproof.properties.adapters.asking import ask
from rollproof.properties.adapters.sketch import Sketch, sketched_digest
from rollproof.properties.cli import main
from rollproof.properties.gate.codes import reason_of
from rollproof.properties.gate.streams import request_streams
from rollproof.properties.strategies.hostile import realize_request
from rollproof.properties.strategies.named_tensors import HARD_PAIRS
from rollproof.spec.judge.catalogue import of_area
from rollproof.spec.judge.oracle import answer
from rollproof.spec.judge.requests import Area

FAULTS = {
    "framing",
    "null",
    "0-dimensional",
    "conjugated",
    "negated",
    "quantization",
    "name that is not a string",
    "one strided element",
    "dtype without a name",
    "null entry",
}
"""The pairs that it gets wrong."""


@pytest.mark.parametrize("pair", HARD_PAIRS)
def test_each_fault_is_a_finding_and_the_rest_is_right(pair):
    request = HARD_PAIRS[pair]
    expected, actual = answer(request), ask(Sketch(), request)
    complaints = [item.check(request, expected, actual) for item in of_area(Area.RETAINED) if item.covers(request)]
    assert any(complaints) == (pair in FAULTS)


def test_nothing_is_declared_so_its_check_fails(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, ["check", "sketch", "--profile", "quick"])
    assert result.exit_code == 1
    assert "falsified: RETAINED-1" in result.output


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
