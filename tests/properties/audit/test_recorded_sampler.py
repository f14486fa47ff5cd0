"""Runs with sampler columns, recorded and audited (section 12): they are judged, and listed as uncommitted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from attrs import evolve
from click.testing import CliRunner
from recordings import NAMES

from rollproof.impl import sampler
from rollproof.impl.dataplane.memory import MemoryDataPlane
from rollproof.impl.reassembler import RolloutReassembler
from rollproof.properties.adapters.tensors import stage_rows
from rollproof.properties.audit.recorder import Recorder
from rollproof.properties.cli import main
from rollproof.properties.strategies.rollouts.history import rehash
from rollproof.properties.strategies.rollouts.worked import WORKED_EXAMPLE
from rollproof.spec.constants import TOPK_COLUMNS, TOPK_IDS, TOPK_LOGPROBS
from rollproof.spec.tensor import Tensor


@pytest.fixture
def audited(tmp_path, monkeypatch):
    """Record a group of two, the second without a receipt; return the audit's result and report."""
    monkeypatch.chdir(tmp_path)

    def audit(ids=(3, 4), **arguments):
        topk = {
            TOPK_IDS: Tensor.of("int32", [*ids] * 2, (1, 2, 2)),
            TOPK_LOGPROBS: Tensor.of("float32", [-0.5, -1.0] * 2, (1, 2, 2)),
        }
        history = rehash(WORKED_EXAMPLE.renamed("g_g0"))
        history = evolve(history, calls=tuple(evolve(call, topk=topk) for call in history.calls))
        plane = MemoryDataPlane()
        stage_rows(plane, "staging", history.rows())
        with Recorder("run.jsonl", plane) as recorder:
            reassembler = RolloutReassembler(recorder.client, **NAMES, **arguments)
            recorder.watch(reassembler)
            receipts = [history.raw_receipt(), None]
            reassembler.finalize_group(
                "g", ["g_g0", "g_g1"], receipts, [1.0, 0.0],
                mask_sample=[False] * 2, fallback_weight_version=0, prompt_idx=0,
            )  # fmt: skip
        command = ["audit", "run.jsonl", "--report", "report.json", "--html", "report.html", "--jobs", "1"]
        return CliRunner().invoke(main, command), json.loads(Path("report.json").read_text(encoding="utf-8"))

    return audit


def test_recorded_candidates_hold_and_are_uncommitted(audited):
    result, report = audited(top_logprobs=2)
    assert result.exit_code == 0, result.output
    assert report["total"]["uncommitted"] == dict.fromkeys(TOPK_COLUMNS, 1)
    assert json.loads(Path("run.jsonl").read_text(encoding="utf-8"))["config"]["top_logprobs"] == 2
    page = Path("report.html").read_text(encoding="utf-8")
    for name in TOPK_COLUMNS:
        assert f"uncommitted: no digest covers {name} of 1 rows" in result.output
        assert f"<td>{name}</td><td>1</td>" in page


def test_without_candidates_nothing_is_uncommitted(audited):
    result, report = audited()
    assert result.exit_code == 0, result.output
    assert report["total"]["uncommitted"] == {}
    assert "uncommitted" not in result.output


def test_candidates_that_were_changed_on_the_way_are_found(audited, monkeypatch):
    right = sampler.chain_topk

    def shifted(*arguments):
        found = right(*arguments)
        found.ids[:] = found.ids.repeat(2, axis=0)[: len(found.ids)]
        return found

    monkeypatch.setattr("rollproof.impl.rollout.chain_topk", shifted)
    result, report = audited(top_logprobs=2)
    assert result.exit_code == 1
    assert {"SAMPLER-1", "SAMPLER-2"} <= {one["id"] for one in report["invariants"]}


def test_candidates_that_break_a_rule_are_a_placeholder(audited):
    result, report = audited(ids=(3, 3), top_logprobs=2)
    assert result.exit_code == 0, result.output
    assert (report["total"]["placeholders"], report["total"]["uncommitted"]) == (2, {})
