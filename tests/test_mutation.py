"""Mutation testing: how mutants are made and named, and that the recorded ones are what the records say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("cosmic_ray", reason="in the extra dev")

from mutation.mutants import Mutant, mutants_of, ranked
from mutation.reach import Reach
from mutation.records import complaints, find, records

ROOT = Path(__file__).parents[1]


def test_records_hold() -> None:
    """In a process of its own: a trial must load its module, so nothing of ours may be loaded before."""
    command = [sys.executable, "-m", "mutation", "confirm"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (0, ""), result.stderr


def test_a_record_of_a_mutant_that_is_gone_is_noticed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stale = tmp_path / "survivors.toml"
    stale.write_text('[[survivor]]\nid = "rollproof.spec.plan | no = 1 | NumberReplacer | 0"\nreason = "none"\n')
    monkeypatch.setattr("mutation.records.FILE", stale)
    assert records().kills == {}
    assert [text.partition(":")[0] for text in complaints()] == ["no such mutant"]


def test_every_mutant_has_a_name_of_its_own_and_changes_its_line() -> None:
    mutants = mutants_of("rollproof.spec.terminal")
    assert len({mutant.id for mutant in mutants}) == len(mutants) > 40
    for mutant in ranked(mutants, 0)[:20]:
        source = mutant.source()
        assert source is None or f"-{mutant.line}" in mutant.diff().replace("    ", "")
    assert find(mutants[0].id) == mutants[0]


@pytest.mark.parametrize(
    "module, line",
    [
        ("rollproof.spec.plane", "Effect: TypeAlias = Get | Put | Clear"),
        ("rollproof.spec.assembly", "*,"),
        ("rollproof.spec.values", 'return f"an integer of {value.bit_length()} bits"'),
        ("rollproof.spec.values", 'return shown if len(shown) <= 80 else shown[:77] + "..."'),
    ],
)
def test_what_is_no_behaviour_is_left_alone(module: str, line: str) -> None:
    assert line in (ROOT / "spec" / (module.replace(".", "/") + ".py")).read_text(encoding="utf-8")
    assert line not in {mutant.line for mutant in mutants_of(module)}


def test_a_sample_is_drawn_by_its_seed_and_survives_edits() -> None:
    mutants = mutants_of("rollproof.spec.terminal")
    first = ranked(mutants, 0)
    assert ranked(mutants[::-1], 0) == first
    assert ranked(mutants, 1) != first
    without = [mutant for mutant in mutants if mutant != first[3]]
    assert ranked(without, 0)[:10] == [*first[:3], *first[4:11]]


def test_a_mutant_is_tried_on_what_reaches_its_line_the_quickest_first() -> None:
    module = "rollproof.spec.terminal"
    rows = (ROOT / "spec/rollproof/spec/terminal.py").read_text(encoding="utf-8").splitlines()
    inside = next(index for index, row in enumerate(rows, 1) if "current = candidates[0]" in row)
    outside = next(index for index, row in enumerate(rows, 1) if row.startswith("def select_terminal"))
    seconds = {"stream slow": 3.0, "stream quick": 1.0, "tests/x.py::test": 0.1, "stream elsewhere": 0.1}
    lines = {
        inside: ("stream slow", "tests/x.py::test", "stream quick", "wrong one"),
        outside + 1: ("stream elsewhere",),
    }
    reach = Reach(seconds, {module: lines})
    assert reach.units(Mutant(module, "", "", 0, 0, inside)) == ["stream quick", "stream slow", "tests/x.py::test"]
    everybody = reach.units(Mutant(module, "", "", 0, 0, outside))
    assert everybody == ["stream elsewhere", "stream quick", "stream slow", "tests/x.py::test"]
