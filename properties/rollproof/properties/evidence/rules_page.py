"""The catalogue as text: ``rollproof rules`` and docs/rules.md are both made here."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from rollproof.properties.nemo_gym.captured import captured_row
from rollproof.spec.judge.catalogue import BY_ID, CATALOGUE
from rollproof.spec.judge.invariant import Invariant
from rollproof.spec.judge.requests import Area
from rollproof.spec.rejections import Code, Stage
from rollproof.spec.shadowed import HIDDEN_IN_ROLLOUT_BY, NEVER_IN_ROLLOUT, SHADOWED_BY

INTRODUCTION = """\
# Rules

Generated from the code by `make docs`: what must hold, and every way in which the contract refuses something.
Sections are those of the rollout-reassembly contract, version 1.

"""


def render_rules() -> str:
    """Return the whole catalogue as Markdown."""
    parts = [INTRODUCTION, "## Invariants\n"]
    for area in Area:
        items = [item for item in CATALOGUE if item.area is area]
        if items:
            rows = ((item.id, item.sentence, item.reason, item.section) for item in items)
            parts.append(f"\n### {area.value}\n\n" + table(("id", "must hold", "why", "section"), rows))
    parts.append("\n## Rejection codes\n\nA shadowed code is never the answer, because another rule fires first.\n")
    for stage in Stage:
        codes = [code for code in Code if code.stage is stage]
        if codes:
            entries = ((f"`{code.code}`", code.value.sentence, code.value.section, reach(code)) for code in codes)
            parts.append(f"\n### {stage.value}\n\n" + table(("code", "meaning", "section", "reached"), entries))
    return "".join(parts)


def reach(code: Code) -> str:
    """Return whether a code can be the answer, in words."""
    if code in SHADOWED_BY:
        return f"never: shadowed by {SHADOWED_BY[code]}"
    if code in HIDDEN_IN_ROLLOUT_BY:
        return f"in a direct call; in a rollout {HIDDEN_IN_ROLLOUT_BY[code]} comes first"
    if code in NEVER_IN_ROLLOUT:
        return f"in a direct call; in a rollout {NEVER_IN_ROLLOUT[code]}"
    return "yes"


def table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Return a Markdown table."""
    lines = [header, tuple("---" for _ in header), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def render_rule(name: str) -> str | None:
    """Return one invariant by id, or every code of that name; None where there is neither."""
    invariants = {**BY_ID, captured_row.id: captured_row}
    if name.upper() in invariants:
        return render_invariant(invariants[name.upper()])
    codes = [code for code in Code if code.code == name]
    return "".join(map(render_code, codes)) or None


def render_invariant(item: Invariant) -> str:
    """Return an invariant with the reason behind it."""
    asked = ", ".join(kind.__name__ for kind in item.requests)
    return (
        f"{item.id} ({item.area.value}, section {item.section})\n  {item.sentence}\n  {item.reason}\n  asked: {asked}\n"
    )


def render_code(code: Code) -> str:
    """Return a rejection code with its stage and reachability."""
    entry = code.value
    return f"{code.code} ({entry.stage.value}, section {entry.section})\n  {entry.sentence}\n  reached: {reach(code)}\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(render_rules(), encoding="utf-8")
