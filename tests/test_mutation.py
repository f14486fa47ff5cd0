"""Mutation testing: how mutants are made and named. The recorded ones are checked by ``make mutation``."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("cosmic_ray", reason="in the extra dev")

from tools.mutation_testing.mutants import Mutant, mutants_of, ranked
from tools.mutation_testing.reach import Reach
from tools.mutation_testing.records import complaints, find, records

MODULE = "rollproof.spec.sample"
SOURCE = '''
from typing import TypeAlias

Either: TypeAlias = int | str


def show(value: int) -> str:
    """Word a value for a message."""
    return str(value + 1)


def first_long(
    names: list[str] | None,
    *,
    least: int = 3,
) -> str:
    found = [name for name in names or [] if len(name) >= least]
    if not found:
        raise ValueError("none of at least " + show(least))
    best = found[0]
    for name in found[1:]:
        if len(name) > len(best) and name != "":
            best = name
    return best
'''


def row_of(line: str) -> int:
    """Return the number, from 1, of the row of ``SOURCE`` that holds ``line``."""
    (row,) = [index for index, text in enumerate(SOURCE.splitlines(), 1) if text.strip() == line]
    return row


@pytest.fixture(autouse=True)
def sample(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Put a module of our own where the spec's modules are looked for."""
    path = tmp_path.joinpath("spec", *MODULE.split(".")).with_suffix(".py")
    path.parent.mkdir(parents=True)
    path.write_text(SOURCE, encoding="utf-8")
    monkeypatch.setattr("tools.mutation_testing.mutants.ROOT", tmp_path)


def test_records_name_a_mutant_that_is_gone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stale = tmp_path / "survivors.toml"
    identity = ranked(mutants_of(MODULE), 0)[0].id
    monkeypatch.setattr("tools.mutation_testing.records.FILE", stale)
    stale.write_text(f'[[survivor]]\nid = "{MODULE} | no = 1 | NumberReplacer | 0"\nreason = "none"\n')
    assert records().kills == {}
    assert [text.partition(":")[0] for text in complaints()] == ["no such mutant"]
    stale.write_text(f"[[survivor]]\nid = '''{identity}'''\nreason = 'none'\n")
    assert records().reasons == {identity: "none"}
    assert list(complaints()) == []


def test_records_refuse_a_survivor_that_is_named_twice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    twice = tmp_path / "survivors.toml"
    twice.write_text('[[survivor]]\nid = "a"\nreason = "b"\n' * 2)
    monkeypatch.setattr("tools.mutation_testing.records.FILE", twice)
    with pytest.raises(ValueError, match="listed twice"):
        records()


def test_a_mutant_has_an_id_of_its_own_and_changes_its_line() -> None:
    mutants = mutants_of(MODULE)
    assert len({mutant.id for mutant in mutants}) == len(mutants) > 30
    changed = 0
    for mutant in ranked(mutants, 0)[:20]:
        if mutant.source() is not None:
            assert f"-{mutant.line}" in mutant.diff().replace("    ", "")
            assert find(mutant.id) == mutant
            changed += 1
    assert changed > 5


def test_a_mutant_changes_behaviour() -> None:
    lines = {mutant.line for mutant in mutants_of(MODULE)}
    assert {"best = found[0]", "if not found:", 'if len(name) > len(best) and name != "":', "least: int = 3,"} <= lines
    typing_and_wording = {
        "Either: TypeAlias = int | str",
        "return str(value + 1)",
        "names: list[str] | None,",
        "*,",
        'raise ValueError("none of at least " + show(least))',
    }
    assert lines.isdisjoint(typing_and_wording)


def test_a_sample_is_drawn_by_its_seed_and_survives_edits() -> None:
    mutants = mutants_of(MODULE)
    first = ranked(mutants, 0)
    assert ranked(mutants[::-1], 0) == first
    assert ranked(mutants, 1) != first
    without = [mutant for mutant in mutants if mutant != first[3]]
    assert ranked(without, 0)[:10] == [*first[:3], *first[4:11]]


def test_a_mutant_is_tried_on_what_reaches_its_line_the_quickest_first() -> None:
    inside, signature = row_of("best = found[0]"), row_of("least: int = 3,")
    seconds = {"stream slow": 3.0, "stream quick": 1.0, "tests/x.py::test": 0.1, "stream elsewhere": 0.1}
    lines = {
        inside: ("stream slow", "tests/x.py::test", "stream quick", "wrong one"),
        row_of("if not found:"): ("stream elsewhere",),
    }
    reach = Reach(seconds, {MODULE: lines})
    assert reach.units(Mutant(MODULE, "", "", 0, 0, inside)) == ["stream quick", "stream slow", "tests/x.py::test"]
    everybody = reach.units(Mutant(MODULE, "", "", 0, 0, signature))
    assert everybody == ["stream elsewhere", "stream quick", "stream slow", "tests/x.py::test"]
