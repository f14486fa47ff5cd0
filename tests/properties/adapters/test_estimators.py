"""A user's estimator alone is an implementation: the page's example holds, and one that is wrong falls."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rollproof.properties.adapters.asking import ask
from rollproof.properties.gate.load import load_implementation
from rollproof.properties.gate.profiles import PROFILES
from rollproof.properties.gate.run import Check
from rollproof.spec.judge.area import Area
from rollproof.spec.judge.portable import AdvantageRequest, Advantages
from rollproof.spec.judge.requests import Accepted
from rollproof.spec.portable import Policy, ScoredRow

PAGE = Path(__file__).parents[3] / "docs" / "contract" / "advantage.md"
BATCH = (ScoredRow("g", "r0", (1,), 0.0), ScoredRow("g", "r1", (1,), 1.0))
HEAD = "from rollproof.properties.adapters.protocol import Refusal\n"


@pytest.fixture
def load(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)

    def load(source):
        name = f"estimator_{abs(hash(source))}"
        (tmp_path / f"{name}.py").write_text(source, encoding="utf-8")
        return load_implementation(f"{name}:advantages")

    return load


def fallen(implementation):
    report = Check(implementation, (Area.ADVANTAGE,), PROFILES["quick"], 0, 6, shrink=False).run()
    return {finding.invariant_id for finding in report.falsified}


def test_the_example_of_the_page_is_held(load):
    (source,) = re.findall(r"estimator.py <<'EOF'\n(.*?)EOF\n", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    implementation = load(source)
    assert ask(implementation, AdvantageRequest(BATCH, BATCH[:1])) == Accepted(Advantages((-0.5, 0.5), (0.0,)))
    assert fallen(implementation) == set()


def test_an_estimator_that_counts_rows_falls_unless_it_says_so(load):
    source = (
        HEAD
        + """
from statistics import fmean

def advantages(batch):
    if not all(abs(row["reward"]) < float("inf") for row in batch):
        raise Refusal("reward")
    def siblings(row):
        return [other["reward"] for other in batch if other["group"] == row["group"] and other["trained"]]
    return [row["reward"] - fmean(siblings(row)) if row["trained"] else 0.0 for row in batch]
"""
    )
    assert fallen(load(source)) == {"ADV-5"}
    assert fallen(load(source + "\nadvantages.policies = {'rows-vote'}\n")) == set()
    assert load(source + "\nadvantages.policies = {'rows-vote'}\n").policies == {Policy.ROWS_VOTE}


def test_an_estimator_of_both_batches_is_asked_once(load):
    implementation = load(
        "def advantages(second, first):\n    return {'first': [0] * len(first), 'second': [len(second)]}"
    )
    assert ask(implementation, AdvantageRequest(BATCH, BATCH[:1])) == Accepted(Advantages((0.0, 0.0), (1.0,)))
