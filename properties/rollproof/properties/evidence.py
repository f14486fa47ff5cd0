"""What speaks for every rule: streams, examples, mutants, proofs and vectors, as the page docs/evidence.md.

An invariant that no stream asks about, or that no mutant violates, is a wish. The page shows for each what there is,
and the tests fail where there is nothing.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from attrs import field, frozen

from rollproof.properties.counting import COUNTED_FILE, PROFILE, SEED, Counts, count_all, counted, render_counts
from rollproof.properties.gate.coverage import CARRIERS, STAGES, reachable
from rollproof.properties.mutants import MUTANTS
from rollproof.properties.mutants.known_faults import KNOWN_FAULTS, KnownFault
from rollproof.properties.protocol import METHODS
from rollproof.properties.rules import table
from rollproof.properties.symbolic import registry
from rollproof.spec.invariant import Invariant
from rollproof.spec.invariants import BY_ID, of_area
from rollproof.spec.rejections import Code
from rollproof.spec.requests import Area

INVARIANT_COLUMNS: Final = ("invariant", "section", "streams", "examples in CI", "mutants", "proved", "vectors")
CODE_COLUMNS: Final = ("code", "section", "stage", "streams", "driven in CI", "vectors")
SHADOW_TEST: Final = "tests/spec/test_shadowed.py"

INTRODUCTION: Final = f"""\
# Evidence

Generated from the code by `make docs`: what speaks for each rule of the [catalogue](rules.md), and how far it reaches.

- *Examples in CI* are requests of profile `{PROFILE.name}` with seed {SEED} on which the invariant is checked, counted
  by running the streams. A test compares them with the gate's own count.
- *Mutants* are wrong implementations which that very invariant must notice; `rollproof mutants` runs them all.
- *Proved* are rules on scalars that a solver confirmed over all paths; `rollproof prove` confirms them again.
- *Vectors* are entries of `vectors/` whose answer the invariant judges, and those that a code must be the answer of.

"""


@frozen
class Vectors:
    """How many vectors there are, by operation and by code, each with its area."""

    operations: Counter[tuple[str, str]] = field(factory=Counter)
    codes: Counter[tuple[str, str]] = field(factory=Counter)

    def judged(self, item: Invariant) -> int:
        """Those whose answer an invariant judges."""
        return sum(self.operations[item.area.value, METHODS[kind]] for kind in item.requests if kind in METHODS)


def read_vectors(folder: Path) -> Vectors:
    """The vectors of a folder; none where it does not exist."""
    found = Vectors()
    for path in sorted(folder.glob("*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        for group in content["testGroups"]:
            found.operations[content["area"], group["operation"]] += len(group["tests"])
            found.codes.update((content["area"], test["code"]) for test in group["tests"] if test["code"])
    return found


def proofs_of(invariant_id: str) -> list[str]:
    """The names of the proved rules that an invariant rests on."""
    return [rule.name for rule in registry.ITEMS if invariant_id in rule.invariants]


def asking(item: Invariant, counts: Iterable[Counts]) -> list[Counts]:
    """The streams that ask what an invariant is about."""
    return [each for each in counts if each.area is item.area and each.asked(item.requests)]


def driving(area: Area, code: str, counts: Iterable[Counts]) -> list[Counts]:
    """The streams whose requests must be answered with a code of an area."""
    return [each for each in counts if each.area is area and each.codes.get(code)]


def stream_names(streams: Sequence[Counts]) -> str:
    """The streams by name, those that drive one code each as a number."""
    single = [each for each in streams if each.stream.startswith("break:") and len(each.codes) == 1]
    few = single if len(single) <= 3 else []
    names = [each.stream for each in streams if each not in single or each in few]
    return " · ".join(names + ([f"{len(single)} of one code each"] if single and not few else []))


# ── the page ────────────────────────────────────────────────────────────────────────────────────────────────────────


def render_evidence(counts: Sequence[Counts], vectors: Vectors) -> str:
    """The page as Markdown."""
    parts = [INTRODUCTION, "## Invariants\n"]
    for area in Area:
        rows = [invariant_row(item, counts, vectors) for item in of_area(area)]
        parts.append(f"\n### Area {area.value}\n\n" + table(INVARIANT_COLUMNS, rows))
    parts.append(
        "\n## Rejection codes\n\nEvery code that an input can reach, in the area that asks for it. Each is driven in "
        "CI, and answered rightly every time by the spec and by our implementation.\n"
    )
    for area in (area for area in Area if area in STAGES):
        rows = [code_row(area, name, counts, vectors) for name in reachable(area)]
        parts.append(f"\n### Codes of area {area.value}\n\n" + table(CODE_COLUMNS, rows))
    parts.append(
        "\n## Codes that an earlier rule hides\n\nThey are never the answer, or never inside a rollout. "
        f"`{SHADOW_TEST}` feeds what each code describes through the public entry, and through the code's own "
        "function.\n\n"
    )
    hidden = [code for code in Code if code.value.shadowed_by or code.value.hidden_in_rollout_by]
    parts.append(table(("code", "section", "stage", "earlier", "shown by"), map(hidden_row, hidden)))
    parts.append("\n## Faults met in public\n\nEach is a mutant, and an invariant that kills it.\n\n")
    parts.append(table(("fault", "reported", "mutants and their invariants"), map(fault_row, KNOWN_FAULTS)))
    return "".join(parts)


def invariant_row(item: Invariant, counts: Sequence[Counts], vectors: Vectors) -> tuple[str, ...]:
    """One invariant with all that speaks for it."""
    streams = asking(item, counts)
    examples = sum(each.asked(item.requests) for each in streams)
    mutants = [mutant.name for mutant in MUTANTS if mutant.invariant == item.id]
    proofs = ", ".join(proofs_of(item.id)) or "-"
    judged = str(vectors.judged(item) or "-")
    killed = f"{len(mutants)}: {', '.join(mutants)}"
    return (item.id, item.section, stream_names(streams), f"{examples:,}", killed, proofs, judged)


def code_row(area: Area, name: str, counts: Sequence[Counts], vectors: Vectors) -> tuple[str, ...]:
    """One reachable code of an area."""
    code = code_of(area, name)
    streams = driving(area, name, counts)
    driven = sum(each.codes[name] for each in streams)
    held = vectors.codes[area.value, name]
    return (f"`{name}`", code.value.section, code.stage.value, stream_names(streams), f"{driven:,}", str(held or "-"))


def code_of(area: Area, name: str) -> Code:
    """The catalogue's entry for a reason as ``reachable`` writes it: the carried code where there is one."""
    carrier, _, carried = name.partition(":")
    stages = {CARRIERS[area][1]} if carried else STAGES[area]
    return next(code for code in Code if code.code == (carried or carrier) and code.stage in stages)


def hidden_row(code: Code) -> tuple[str, ...]:
    """A code that an earlier rule hides, everywhere or inside a rollout."""
    entry = code.value
    earlier = f"always: {entry.shadowed_by}" if entry.shadowed_by else f"in a rollout: {entry.hidden_in_rollout_by}"
    return (f"`{code.code}`", entry.section, entry.stage.value, earlier, f"`pytest {SHADOW_TEST} -k {code.name}`")


def fault_row(fault: KnownFault) -> tuple[str, ...]:
    """A fault with the mutants that have it."""
    return (fault.what, fault.reported, ", ".join(f"{mutant.name} ({mutant.invariant})" for mutant in fault.mutants))


# ── one rule ────────────────────────────────────────────────────────────────────────────────────────────────────────


def render_support(name: str) -> str:
    """What speaks for one invariant or code, for the command line; nothing for a name that is neither."""
    counts = counted()
    if name.upper() in BY_ID:
        item = BY_ID[name.upper()]
        _, _, streams, examples, mutants, proofs, _ = invariant_row(item, counts, Vectors())
        return f"  streams: {streams}\n  examples in CI: {examples}\n  mutants: {mutants}\n  proved: {proofs}\n"
    lines = []
    for area in (area for area in Area if area in STAGES):
        for reason in reachable(area):
            if name in reason.split(":"):
                _, _, _, streams, driven, _ = code_row(area, reason, counts, Vectors())
                lines.append(f"  driven in CI as {reason} in area {area.value}: {driven} times, by {streams}\n")
    return "".join(lines)


def main(page: Path) -> None:
    """Count anew, keep the counts, and write the page; vectors are those beside the page's folder."""
    counts = tuple(count_all())
    COUNTED_FILE.write_text(render_counts(counts), encoding="utf-8")
    vectors = read_vectors(page.resolve().parents[1] / "vectors")
    page.write_text(render_evidence(counts, vectors), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
