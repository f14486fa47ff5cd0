"""``rollproof prove``: what it prints and how it exits."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

pytest.importorskip("crosshair", reason="the solver is in the extra dev")

from rollproof.properties.cli import main
from rollproof.properties.symbolic import proving
from rollproof.properties.symbolic.proofs import Proof, Status


def prove(*arguments):
    return CliRunner().invoke(main, ["prove", "--jobs", "1", *arguments])


def test_a_proved_rule_and_a_pair_end_with_0(tmp_path):
    report, table = tmp_path / "proofs.json", tmp_path / "proofs.md"
    result = prove("base64_length", "full_covers_every_token", "--json", str(report), "--table", str(table))
    assert result.exit_code == 0, result.output
    assert "full_covers_every_token: confirmed over all paths" in result.output
    assert "base64_length: same behaviour over all paths" in result.output
    written = json.loads(report.read_text(encoding="utf-8"))
    assert written["proved"] is True
    assert [proof["name"] for proof in written["proofs"]] == ["full_covers_every_token", "base64_length"]
    assert written["proofs"][0]["invariants"] == ["ROUTE-4"]
    assert table.read_text(encoding="utf-8").count("\n| `") == 2


@pytest.mark.parametrize(("status", "code"), [(Status.REFUTED, 1), (Status.OPEN, 0), (Status.CONFIRMED, 0)])
def test_only_a_refutation_ends_with_1(monkeypatch, status, code):
    def pretend(items, timeout, jobs, done):
        proofs = [Proof(item.name, status, "when calling it with [3]", 0.1) for item in items]
        for proof in proofs:
            done(proof)
        return proofs

    monkeypatch.setattr(proving, "prove_all", pretend)
    result = prove("media")
    assert result.exit_code == code
    assert "when calling it with [3]" in result.output
    assert result.output.splitlines()[-1] == f"7 {status.value}"


def test_an_unknown_rule_ends_with_2():
    result = prove("no_such_rule")
    assert result.exit_code == 2
    assert "no_such_rule: no such rule or chapter" in result.output
