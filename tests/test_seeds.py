"""``make seeds``: what was tried is kept, and the page says which mutants live, and where the ice is thin."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from attrs import asdict
from click.testing import CliRunner

from rollproof.properties.evidence.thickness import LEAST
from rollproof.properties.gate.codes import reaches
from rollproof.properties.gate.trial import Verdict
from rollproof.properties.mutants import MUTANTS, Mutant
from rollproof.properties.mutants.once_passed import MUTANTS as ONCE_PASSED
from rollproof.spec.judge.catalogue import BY_ID
from rollproof.spec.judge.requests import Area
from tools import seeds

FIRST, SECOND = MUTANTS[0], ONCE_PASSED[0]


def verdict(mutant: Mutant, seed: int, profile: str, *, killed: bool = True) -> dict[str, Any]:
    fell = {mutant.invariant: 7} if killed else {}
    found = Verdict(mutant.name, mutant.invariant, "", "", fell, seed=seed, profile=profile)
    return {mutant.name: {**asdict(found), "killed": killed}}


def at(found: Any) -> seeds.Result:
    return {"day": "2026-01-02", "found": found}


def results(*, right: list[str], thin: int) -> Mapping[str, list[seeds.Result]]:
    mutants = [{**verdict(FIRST, seed, "ci"), **verdict(SECOND, seed, "quick")} for seed in range(3)]
    mutants.append(verdict(FIRST, 3, "ci", killed=False))
    return {
        "mutants": [at(found) for found in mutants],
        "right": [at({"dense-columns": []}), at({"dense-columns": right})],
        "thin": [at({FIRST.name: LEAST, "group: x": LEAST}), at({FIRST.name: thin, "group: x": 0})],
    }


def test_the_page_lists_what_lives_what_fell_and_what_is_thin() -> None:
    page = seeds.page(results(right=["GROUP-2 (seed 1)"], thin=1))
    assert "Measured 2026-01-02." in page
    assert "2 mutants at 4 seeds." in page
    assert "Of all trials, 42.86% in profile quick and 85.71% in profile ci" in page
    assert f"| {FIRST.name} | {FIRST.invariant} | 0 of 4 | 3 of 4 |" in page
    assert f"| {SECOND.name} | {SECOND.invariant} | 3 of 3 | 3 of 3 |" in page
    assert "Of 1 right variants, 0 held at each of 2 seeds" in page
    assert "| dense-columns | GROUP-2 (seed 1) |" in page
    assert f"| {FIRST.name} | 1 | 1 |" in page
    assert "| group: x | 0 | 1 |" in page


def test_the_page_says_that_nothing_lives_falls_or_is_thin() -> None:
    page = seeds.page(results(right=[], thin=LEAST))
    assert "Of 1 right variants, 1 held at each of 2 seeds" in page
    assert f"Of 1 mutants, 1 show on {LEAST} or more at each seed." in page


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, int]]:
    """Run with results kept in a folder of its own, and return the last one's."""
    monkeypatch.setattr(seeds, "FOLDER", tmp_path)

    def run(*arguments: str) -> dict[str, int]:
        done = CliRunner().invoke(seeds.main, ["run", "--part", "thin", *arguments])
        assert done.exit_code == 0, done.output
        found: dict[str, int] = seeds.kept("thin")[-1]["found"]
        return found

    return run


def test_what_was_tried_is_not_tried_again_but_for_what_is_new(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, list[str]]] = []

    def part(seed: int, jobs: int, names: list[str]) -> dict[str, int]:
        asked.append((seed, names))
        return dict.fromkeys(names, LEAST + seed)

    monkeypatch.setitem(seeds.PARTS, "thin", part)
    monkeypatch.setitem(seeds.NAMES, "thin", lambda: ["a"])
    run("--seeds", "1")
    assert run("--seeds", "2") == {"a": LEAST + 1}
    monkeypatch.setitem(seeds.NAMES, "thin", lambda: ["a", "b"])
    assert run("--seeds", "2") == {"a": LEAST + 1, "b": LEAST + 1}
    assert asked == [(0, ["a"]), (1, ["a"]), (0, ["b"]), (1, ["b"])]


def test_what_was_thin_is_tried_again_where_asked(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def part(seed: int, jobs: int, names: list[str]) -> dict[str, int]:
        asked.append(names)
        return {name: LEAST - (len(asked) == 1 and name == "b") for name in names}

    monkeypatch.setitem(seeds.PARTS, "thin", part)
    monkeypatch.setitem(seeds.NAMES, "thin", lambda: ["a", "b", "c"])
    assert run("--seeds", "1") == {"a": LEAST, "b": LEAST - 1, "c": LEAST}
    assert run("--seeds", "1", "--again") == {"a": LEAST, "b": LEAST, "c": LEAST}
    run("--seeds", "1", "--again")
    assert asked == [["a", "b", "c"], ["b"]]


def test_what_lived_or_fell_is_tried_again() -> None:
    assert not seeds.POOR["mutants"](verdict(FIRST, 0, "quick")[FIRST.name])
    assert seeds.POOR["mutants"](verdict(FIRST, 0, "ci")[FIRST.name])
    assert seeds.POOR["mutants"](verdict(FIRST, 0, "quick", killed=False)[FIRST.name])
    assert seeds.POOR["right"](["GROUP-2 (seed 0)"])
    assert not seeds.POOR["right"]([])


def test_every_mutant_and_code_of_an_area_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seeds, "Area", (Area.RETAINED,))
    names = {mutant.name for mutant in MUTANTS if BY_ID[mutant.invariant].area is Area.RETAINED}
    codes = {f"retained: {reach.name}" for reach in reaches(Area.RETAINED)}
    assert names | codes <= set(seeds.NAMES["thin"]())
    assert seeds.thin_at(1, 1, seeds.NAMES["thin"]()) == dict.fromkeys(names | codes, LEAST)
    one = min(names)
    assert seeds.thin_at(0, 1, [one]) == {one: LEAST}


def test_verdicts_and_what_fell_are_kept_by_name() -> None:
    assert seeds.mutants_at(0, 1, [FIRST.name])[FIRST.name]["killed"]
    assert seeds.right_at(0, 1, ["all-or-no-items"]) == {"all-or-no-items": []}
