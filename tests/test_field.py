"""``make field``: results in docs/field.json, docs/field.md made from them, and what two of them differ in."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from click.testing import CliRunner

from rollproof.properties.adapters.ours import Ours
from rollproof.properties.adapters.protocol import Refusal
from rollproof.properties.gate.results import Finding, InvariantTally, Report
from rollproof.properties.peers.manifest import Manifest, PeerFolder
from rollproof.spec.judge.portable import MergeCalls
from rollproof.spec.judge.requests import Area, Refused
from tools import field
from tools.field import DATA, PAGE, differing, entry_of, outcome, page_text, read

ROOT = Path(__file__).parents[1]
MANIFEST = Manifest("fake", ("fake",), "Apache-2.0", "https://example.org", {"digest": "fake.digest"}, in_process="x")


@pytest.fixture
def entry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    class Wrong(Ours):
        def prefix_digest(self, token_ids: tuple[int, ...]) -> str:
            return "0" * 64

        def chain_digest(self, parent_chain_hash: str | None, token_ids: tuple[int, ...]) -> str:
            raise Refusal("never")

    monkeypatch.setattr(field, "load_implementation", lambda name: Wrong())
    monkeypatch.setattr(PeerFolder, "version", "1.2")
    return entry_of(PeerFolder(tmp_path, MANIFEST), "quick", 0, setting_up=False)


def test_entry_of_a_peer_says_what_held_and_what_did_not(entry: dict[str, Any]) -> None:
    verdicts = {one["verdict"] for one in entry["invariants"].values()}
    assert {"held", "falsified"} <= verdicts
    falsified = [one for one in entry["invariants"].values() if one["verdict"] == "falsified"]
    assert all(one["complaint"] and one["input"] for one in falsified)
    assert any(one["refused"] for one in entry["invariants"].values())
    assert entry["not_run"] is None


def test_finding_of_an_advisory_invariant_is_not_a_fault() -> None:
    finding = Finding("MERGE-9", MergeCalls((), 0.0, None, 0, ()), Refused(""), Refused(""), "2 rows", "fork", 1)
    report = Report("fake", (Area.MERGE,), "quick", 0)
    assert outcome(report, "MERGE-9", InvariantTally(1, finding))["verdict"] == "advisory"
    assert outcome(report, "MERGE-2", InvariantTally(1, finding))["verdict"] == "falsified"
    assert outcome(report, "MERGE-2", InvariantTally(1, refused=1))["verdict"] == "refused"
    assert outcome(report, "MERGE-2", InvariantTally())["verdict"] == "not drawn"


def test_entry_of_a_peer_that_is_not_set_up_says_so(tmp_path: Path) -> None:
    entry = entry_of(PeerFolder(tmp_path, evolve(MANIFEST, in_process=None)), "quick", 0, setting_up=False)
    assert "no such peer" in entry["not_run"]
    assert entry["invariants"] == {}


def test_page_shows_every_peer_with_its_verdicts(entry: dict[str, Any]) -> None:
    absent = {**entry, "name": "absent", "not_run": "no wheel", "invariants": {}, "version": None}
    text = page_text({"format": field.FORMAT, "profile": "quick", "seed": 0, "peers": [entry, absent]})
    assert "| DIGEST-2 | **falsified** |" in text
    assert "Not run: no wheel." in text
    assert "## fake" in text


def test_comparison_names_versions_and_verdicts_that_changed(entry: dict[str, Any], tmp_path: Path) -> None:
    old = {"format": field.FORMAT, "profile": "quick", "seed": 0, "peers": [entry]}
    new = copy.deepcopy(old)
    new["peers"][0]["version"] = "1.3"  # type: ignore[index]
    new["peers"][0]["requests"] = 7  # type: ignore[index]
    new["peers"][0]["invariants"]["DIGEST-2"]["verdict"] = "held"  # type: ignore[index]
    assert differing(old, old) == []
    assert differing(old, new) == ["- fake: version: 1.2 → 1.3", "- fake: DIGEST-2: falsified → held"]
    paths = []
    for name, content in (("old", old), ("new", new)):
        paths.append(str(tmp_path / name))
        Path(paths[-1]).write_text(json.dumps(content), encoding="utf-8")
    assert CliRunner().invoke(field.main, ["compare", *paths]).exit_code == 1
    assert CliRunner().invoke(field.main, ["compare", paths[0], paths[0]]).exit_code == 0


def test_page_of_the_repository_is_the_one_of_its_results() -> None:
    assert (ROOT / PAGE).read_text(encoding="utf-8") == page_text(read(ROOT / DATA))
