"""Runs with boundary repair, recorded and judged (section 10)."""

from __future__ import annotations

import json

import pytest
from recordings import NAMES

from rollproof.impl.dataplane.memory import MemoryDataPlane
from rollproof.impl.reassembler import RolloutReassembler
from rollproof.properties.adapters.tensors import stage_rows
from rollproof.properties.audit.judge import judge
from rollproof.properties.audit.reading import read_line
from rollproof.properties.audit.recorder import Recorder
from rollproof.properties.strategies.rollouts.route_boundary import EXAMPLE
from rollproof.spec.constants import ROUTE_BOUNDARY, ROUTE_BOUNDARY_CHOICES


def recorded(path, **arguments):
    """Record the contract's example, finalized as a group of one, and return the audit's verdict."""
    plane = MemoryDataPlane()
    stage_rows(plane, "staging", EXAMPLE.rows)
    with Recorder(path, plane) as recorder:
        reassembler = RolloutReassembler(recorder.client, **NAMES, router_replay_enabled=True, **arguments)
        recorder.watch(reassembler)
        reassembler.finalize_group(
            "g", ["g_g0"], [EXAMPLE.receipt], [1.0], mask_sample=[False], fallback_weight_version=0, prompt_idx=0
        )
    (line,) = path.read_bytes().splitlines()
    return line, judge(read_line(line, path))


@pytest.mark.parametrize("deferred", [False, True])
@pytest.mark.parametrize("choice", ROUTE_BOUNDARY_CHOICES)
def test_a_recorded_repair_holds(tmp_path, choice, deferred):
    arguments = {"route_boundary": choice, "defer_routed_experts_to_policy": deferred}
    line, verdict = recorded(tmp_path / "run.jsonl", **arguments)
    assert verdict.broken == ()
    assert [(one.name, one.call, one.count) for one in verdict.advisories if "boundary" in one.name] == [
        ("unrepaired_boundary_tokens", "c2", 1)
    ]
    assert (ROUTE_BOUNDARY.encode() in line.split(b'"effects"')[1]) or deferred
    assert json.loads(line)["config"]["route_boundary"] == choice


def test_a_row_that_kept_its_placeholder_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr("rollproof.impl.assembly.repaired_positions", lambda _: ())
    _, verdict = recorded(tmp_path / "run.jsonl", route_boundary="as_staged")
    assert "BOUNDARY-12" in {name for name, _ in verdict.broken}
