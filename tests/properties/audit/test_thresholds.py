"""What an audit says beside right and wrong: advisories with their places, thresholds, and the ledger."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from attrs import evolve
from click.testing import CliRunner

from rollproof.impl.dataplane.memory import MemoryDataPlane
from rollproof.impl.reassembler import RolloutReassembler
from rollproof.properties.adapters.tensors import row_fields, stage_rows
from rollproof.properties.audit.recorder import Recorder
from rollproof.properties.audit.thresholds import NAMES
from rollproof.properties.cli import main
from rollproof.properties.strategies.rollouts.history import rehash
from rollproof.properties.strategies.rollouts.worked import WORKED_EXAMPLE

ARGUMENTS = {"partition_id": "train", "staging_partition": "staging", "pad_token_id": 0, "max_seq_len": 100}
HOSTILE = "<script>alert(1)<script>"


def silent(call):
    """Return the call as recorded by an engine that returns no log-probabilities."""
    logprobs = tuple(0.0 for _ in call.staged.generation_log_probs_delta)
    return evolve(call, staged=evolve(call.staged, generation_log_probs_delta=logprobs))


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """Return a function that records groups: ids to histories."""
    monkeypatch.chdir(tmp_path)

    def record(groups):
        plane = MemoryDataPlane()
        with Recorder("run.jsonl", plane) as recorder:
            reassembler = RolloutReassembler(recorder.client, **ARGUMENTS)
            recorder.watch(reassembler)
            for group_id, history in groups:
                own = rehash(history.renamed(f"{group_id}_g0"))
                for key, row in own.rows().items():
                    fields = row_fields(dict(row))
                    plane.put_samples(sample_ids=[key], partition_id="staging", fields=fields, tags=[{}])
                reassembler.finalize_group(
                    group_id, [f"{group_id}_g0"], [own.raw_receipt()], [1.0],
                    mask_sample=[False], fallback_weight_version=0, prompt_idx=0,
                )  # fmt: skip

    return record


def audit(*arguments):
    return CliRunner().invoke(main, ["audit", "run.jsonl", "--jobs", "1", "--report", "r.json", *arguments])


def report():
    return json.loads(Path("r.json").read_text(encoding="utf-8"))


@pytest.fixture
def odd(recorded):
    """Record two groups; in the second one, the last call of the only rollout has no log-probabilities."""
    calls = WORKED_EXAMPLE.calls
    history = evolve(WORKED_EXAMPLE, calls=(*calls[:-1], silent(calls[-1])))
    recorded([("fine", WORKED_EXAMPLE), (HOSTILE, history)])
    return calls[-1].staged.model_call_id


def test_an_advisory_is_listed_with_its_rollout_and_call(odd):
    result = audit("--html", "r.html")
    assert result.exit_code == 0, result.output
    (one,) = [one for one in report()["advisories"] if one["name"] == "zero_logprob_generations"]
    place = {"line": 2, "group_id": HOSTILE, "rollout_id": f"{HOSTILE}_g0", "call": odd, "count": 1}
    assert {name: one[name] for name in place} == place
    assert report()["total"]["advisories"]["advisory/zero_logprob_generations"] == 1
    assert f"rollout {HOSTILE}_g0, call {odd}: advisory/zero_logprob_generations 1" in result.output
    page = Path("r.html").read_text(encoding="utf-8")
    assert f"<td>{odd}</td><td>zero_logprob_generations</td>" in page
    assert HOSTILE not in page
    assert "&lt;script&gt;alert(1)&lt;script&gt;_g0" in page


def test_an_advisory_fails_the_audit_from_its_threshold_on(odd):
    name = "advisory/zero_logprob_generations"
    assert audit("--fail-on", name).exit_code == 1
    assert report()["exceeded"] == {name: 1}
    assert not report()["held"]
    assert audit("--fail-on", f"{name}=1", "--fail-on", "advisory/overlong_rows").exit_code == 1
    assert audit("--fail-on", f"{name}=2", "--fail-on", "advisory/overlong_rows").exit_code == 0
    assert report()["held"]


@pytest.mark.parametrize("given", ["zero_logprob_generations", "advisory/nothing", "advisory/overlong_rows=0",
                                   "advisory/overlong_rows=", "advisory/overlong_rows=x"])  # fmt: skip
def test_a_threshold_that_is_not_one_is_refused(odd, given):
    result = audit("--fail-on", given)
    assert result.exit_code == 2
    assert f"--fail-on {given}: " in result.output


def test_every_reported_advisory_can_be_a_threshold(odd):
    metrics = json.loads(Path("run.jsonl").read_text(encoding="utf-8").splitlines()[0])["result"]["metrics"]
    assert {name for name in metrics if name.startswith("advisory/")} <= set(NAMES)


def test_every_argument_of_an_advisory_is_recorded(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plane, history = MemoryDataPlane(), rehash(WORKED_EXAMPLE.renamed("g_g0"))
    stage_rows(plane, "staging", history.rows())
    own = {"publish_group_key": True, "least_plausible_logprob": -0.3, "stop_token_ids": [20]}
    with Recorder("run.jsonl", plane) as recorder:
        reassembler = RolloutReassembler(recorder.client, **ARGUMENTS, **own)
        recorder.watch(reassembler)
        reassembler.finalize_group(
            "g", ["g_g0"], [history.raw_receipt()], [1.0],
            mask_sample=[False], fallback_weight_version=0, prompt_idx=0, current_weight_version=3,
        )  # fmt: skip
    result = audit()
    assert result.exit_code == 0, result.output
    assert json.loads(Path("run.jsonl").read_text(encoding="utf-8"))["request"]["current_weight_version"] == 3
    first, second = (call.id for call in WORKED_EXAMPLE.calls)
    found = sorted((one["name"], one["call"], one["count"]) for one in report()["advisories"])
    assert found == [
        ("implausible_logprobs", second, 1),
        ("stop_token_not_trained", first, 1),
        ("version_above_current", first, 1),
        ("version_above_current", second, 1),
    ]


def other_prompt(history):
    """Return the history with another first token."""
    root, *rest = history.calls
    staged = evolve(root.staged, token_ids_delta=(9, *root.staged.token_ids_delta[1:]))
    return rehash(evolve(history, calls=(evolve(root, staged=staged), *rest)))


def test_groups_with_one_prompt_are_advised(recorded):
    recorded([("a", WORKED_EXAMPLE), ("b", other_prompt(WORKED_EXAMPLE)), ("c", WORKED_EXAMPLE), ("a", WORKED_EXAMPLE)])
    name = "advisory/prompt_shared_by_groups"
    assert audit("--skip", "RERUN", "--fail-on", f"{name}=2").exit_code == 0
    assert audit("--skip", "RERUN", "--fail-on", name, "--html", "r.html").exit_code == 1
    (one,) = [one for one in report()["advisories"] if one["name"] == "prompt_shared_by_groups"]
    assert (one["line"], one["group_id"], one["rollout_id"], one["call"]) == (3, "c", "c_g0", None)
    assert report()["exceeded"] == {name: 1}
    assert "<td>prompt_shared_by_groups</td>" in Path("r.html").read_text(encoding="utf-8")


# ── the ledger ──────────────────────────────────────────────────────────────────────────────────────────────────────


def against(*ids):
    Path("ledger").write_text("\n".join(ids), encoding="utf-8")
    return audit("--ledger", "ledger", "--html", "r.html", "--skip", "RERUN")


def test_every_dispatched_group_is_published_or_pending(recorded):
    recorded([("a", WORKED_EXAMPLE), ("b", WORKED_EXAMPLE)])
    result = against("a", "b", "c", "")
    assert result.exit_code == 0, result.output
    assert "ledger: 2 published, 0 dropped, 1 pending, 0 findings" in result.output
    counts = {"published": 2, "dropped": 0, "pending": 1}
    assert report()["ledger"] == {"counts": counts, "pending": ["c"], "findings": []}


LEDGERS = {
    "recorded, but never dispatched": (["a"], ["a", "b"]),
    "published 2 times": (["a", "b"], ["a", "b", "a"]),
    "dispatched 2 times": (["a", "b", "a"], ["a", "b"]),
}


@pytest.mark.parametrize("complaint", LEDGERS)
def test_ledger_disagreements_are_findings(recorded, complaint):
    dispatched, published = LEDGERS[complaint]
    recorded([(group_id, WORKED_EXAMPLE) for group_id in published])
    result = against(*dispatched)
    assert result.exit_code == 1, result.output
    (found,) = report()["ledger"]["findings"]
    assert found["complaint"] == complaint
    assert not report()["held"]
    assert complaint in Path("r.html").read_text(encoding="utf-8")


def test_a_ledger_that_cannot_be_read_is_one_line(recorded, tmp_path):
    recorded([("a", WORKED_EXAMPLE)])
    (tmp_path / "ledger").write_bytes(b"\xff")
    for name in ("ledger", "nowhere", "."):
        result = audit("--ledger", name)
        assert result.exit_code == 2
        assert result.output.count("\n") <= 4
        assert "Traceback" not in result.output
