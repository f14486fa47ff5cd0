"""``make seeds``: what was tried is kept, and the page says which mutants live, and where the ice is thin."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rollproof.properties.evidence.thickness import LEAST
from rollproof.properties.mutants import MUTANTS
from rollproof.properties.mutants.once_passed import MUTANTS as ONCE_PASSED
from rollproof.spec.judge.catalogue import BY_ID
from rollproof.spec.judge.requests import Area
from tools import seeds

FIRST, SECOND = MUTANTS[0], ONCE_PASSED[0]


def verdict(name: str, invariant: str, seed: int, profile: str, *, killed: bool = True) -> dict[str, Any]:
    fell = {invariant: 7} if killed else {}
    return {
        "mutant": name,
        "invariant": invariant,
        "origin": "",
        "sentence": "",
        "fell": fell,
        "requests": 7,
        "seconds": 0.1,
        "seed": seed,
        "profile": profile,
        "killed": killed,
    }


def at(found: Any) -> dict[str, Any]:
    return {"day": "2026-01-02", "found": found}


def results(*, right: list[str], thin: int) -> Mapping[str, list[dict[str, Any]]]:
    mutants = [
        {
            "mutants": [
                verdict(FIRST.name, FIRST.invariant, seed, "ci"),
                verdict(SECOND.name, SECOND.invariant, seed, "quick"),
            ]
        }
        for seed in range(3)
    ]
    mutants.append({"mutants": [verdict(FIRST.name, FIRST.invariant, 3, "ci", killed=False)]})
    return {
        "mutants": [at(found) for found in mutants],
        "right": [at({"dense-columns": []}), at({"dense-columns": right})],
        "thin": [
            at({"mutants": {FIRST.name: LEAST}, "codes": {"group: x": LEAST}}),
            at({"mutants": {FIRST.name: thin}, "codes": {"group: x": 0}}),
        ],
    }


def test_the_page_lists_what_lives_what_fell_and_what_is_thin() -> None:
    page = seeds.page(results(right=["GROUP-2 (seed 1)"], thin=1))
    assert "Measured 2026-01-02." in page
    assert "2 mutants at 4 seeds: 42.86% in profile quick and 85.71% in profile ci" in page
    assert f"| {FIRST.name} | {FIRST.invariant} | 0 of 4 | 3 of 4 |" in page
    assert f"| {SECOND.name} | {SECOND.invariant} | 3 of 3 | 3 of 3 |" in page
    assert "Of 1 right variants, 0 held at 2 seeds" in page
    assert "| dense-columns | GROUP-2 (seed 1) |" in page
    assert f"| {FIRST.name} | 1 | 1 |" in page
    assert "| group: x | 0 | 1 |" in page


def test_the_page_says_that_nothing_lives_falls_or_is_thin() -> None:
    page = seeds.page(results(right=[], thin=LEAST))
    assert "Of 1 right variants, 1 held at 2 seeds" in page
    assert f"Of 1 mutants, 1 show on {LEAST} or more at each seed." in page


def test_what_was_tried_is_not_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def part(seed: int, jobs: int) -> dict[str, int]:
        asked.append(seed)
        return {"jobs": jobs}

    monkeypatch.setattr(seeds, "FOLDER", tmp_path)
    monkeypatch.setattr(seeds, "PARTS", {"thin": part})
    for count in (1, 3):
        done = CliRunner().invoke(seeds.main, ["run", "--seeds", str(count)])
        assert done.exit_code == 0, done.output
    assert asked == [0, 1, 2]
    assert json.loads((tmp_path / "thin-2.json").read_text(encoding="utf-8"))["found"] == {"jobs": 1}
    assert [result["found"] for result in seeds.kept("thin")] == [{"jobs": 1}] * 3


def test_every_mutant_and_code_of_an_area_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seeds, "Area", (Area.RETAINED,))
    found = [seeds.thin_at(seed, 1) for seed in (0, 1)]
    names = {mutant.name for mutant in MUTANTS if BY_ID[mutant.invariant].area is Area.RETAINED}
    for one in found:
        assert set(one["mutants"]) == names
        assert set(one["mutants"].values()) == {LEAST}
        assert set(one["codes"].values()) == {LEAST}
