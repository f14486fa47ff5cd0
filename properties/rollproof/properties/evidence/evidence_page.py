"""The evidence for every rule: streams, examples, mutants, proofs and vectors, as the page docs/evidence.md.

An invariant that no stream covers, or that no mutant violates, is unsupported. The page shows for each what there is,
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

from rollproof.properties.evidence.counts import COUNTS_FILE, PROFILE, SEED, Counts, count_all, counted, render_counts
from rollproof.properties.evidence.rules_page import table
from rollproof.properties.evidence.thickness import (
    BY_NATURE,
    ENOUGH,
    LEAST,
    THICKNESS_FILE,
    measure_all,
    render_thickness,
    thickness,
)
from rollproof.properties.gate.codes import ALONE, AREAS, Reach, reaches
from rollproof.properties.mutants import MUTANTS
from rollproof.properties.mutants.known_faults import KNOWN_FAULTS, KnownFault
from rollproof.properties.symbolic import registry
from rollproof.spec.judge.catalogue import BY_ID, of_area
from rollproof.spec.judge.invariant import Invariant
from rollproof.spec.judge.requests import KIND_OF, Area
from rollproof.spec.rejections import Code, Stage
from rollproof.spec.shadowed import HIDDEN_IN_ROLLOUT_BY, NEVER_IN_ROLLOUT, SHADOWED_BY, of_rollouts

INVARIANT_COLUMNS: Final = (
    "invariant",
    "section",
    "streams",
    "examples in CI",
    "shown by",
    "mutants",
    "proved",
    "vectors",
)
THIN_COLUMNS: Final = ("requests", "invariant", "mutant")
THINNEST: Final = 10
"""Mutants and codes that show on at most so many requests are listed."""
CODE_COLUMNS: Final = ("code", "section", "stage", "streams", "reached in CI", "vectors")
SHADOW_TEST: Final = "tests/spec/test_rejections.py"

INTRODUCTION: Final = f"""\
# Evidence

Generated from the code by `make docs`: the evidence for each rule of the [catalogue](rules.md), and the extent of it.

- *Examples in CI* are requests of profile `{PROFILE.name}` with seed {SEED} on which the invariant is checked, counted
  by running the streams. A test compares them with the gate's own count.
- *Shown by* is how thick the ice is: the fewest of these requests that show one of the invariant's mutants, counted
  up to {ENOUGH}. Where few requests show a mutant, a fault like it can slip past: see [the thinnest](#the-thinnest).
- *Mutants* are wrong implementations which that very invariant must notice; `rollproof mutants` runs them all.
- *Proved* are rules on scalars that a solver confirmed over all paths; `rollproof prove` confirms them again.
- *Vectors* are entries of `vectors/` whose answer the invariant judges, and those that a code must be the answer of.

"""


@frozen
class Vectors:
    """The number of vectors, by operation and by code, each with its area."""

    operations: Counter[tuple[str, str]] = field(factory=Counter)
    codes: Counter[tuple[str, str]] = field(factory=Counter)

    def judged(self, item: Invariant) -> int:
        """Return the number of vectors whose answer an invariant judges."""
        return sum(self.operations[item.area.value, KIND_OF[kind].method] for kind in item.requests)


def read_vectors(folder: Path) -> Vectors:
    """Return the vectors of a folder; none where it does not exist."""
    found = Vectors()
    for path in sorted(folder.glob("*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        for group in content["testGroups"]:
            found.operations[content["area"], group["operation"]] += len(group["tests"])
            found.codes.update((content["area"], test["code"]) for test in group["tests"] if test["code"])
    return found


def proofs_of(invariant_id: str) -> list[str]:
    """Return the names of the proved rules that an invariant rests on."""
    return [rule.name for rule in registry.ITEMS if invariant_id in rule.invariants]


def asking(item: Invariant, counts: Iterable[Counts]) -> list[Counts]:
    """Return the streams with requests that an invariant is about."""
    return [each for each in counts if each.area is item.area and each.asked(item.requests)]


def driving(area: Area, code: str, counts: Iterable[Counts]) -> list[Counts]:
    """Return the streams whose requests must be answered with a code of an area."""
    return [each for each in counts if each.area is area and each.codes.get(code)]


def stream_names(streams: Sequence[Counts]) -> str:
    """Return the streams' names, those for one code each as a number."""
    single = [each for each in streams if len(each.codes) == 1 and {"break", "beside"} & set(each.stream.split(":"))]
    few = single if len(single) <= 3 else []
    names = [each.stream for each in streams if each not in single or each in few]
    return " · ".join(names + ([f"{len(single)} of one code each"] if single and not few else []))


# ── the page ────────────────────────────────────────────────────────────────────────────────────────────────────────


def render_evidence(counts: Sequence[Counts], vectors: Vectors) -> str:
    """Return the page as Markdown."""
    parts = [INTRODUCTION, render_thinnest(counts), "\n## Invariants\n"]
    for area in Area:
        rows = [invariant_row(item, counts, vectors) for item in of_area(area)]
        parts.append(f"\n### Area {area.value}\n\n" + table(INVARIANT_COLUMNS, rows))
    parts.append(
        "\n## Rejection codes\n\nEvery code that an input can reach, in the areas and at the places that have it. Each "
        "is reached in CI, and answered correctly every time by the spec and by our implementation. In a group it is "
        "the code of a rollout between two accepted ones.\n"
    )
    for area in AREAS:
        rows = [code_row(reach, counts, vectors) for reach in reaches(area)]
        parts.append(f"\n### Codes of area {area.value}\n\n" + table(CODE_COLUMNS, rows))
    parts.append(
        "\n## Codes that an earlier rule hides\n\nThey are never the answer, or never inside a rollout. "
        f"`{SHADOW_TEST}` feeds what each code describes through the public entry, and through the code's own "
        "function.\n\n"
    )
    hidden = [code for code in Code if not of_rollouts(code)]
    parts.append(table(("code", "section", "stage", "earlier", "shown by"), map(hidden_row, hidden)))
    parts.append("\n## Faults met in public\n\nEach is a mutant, and an invariant that kills it.\n\n")
    parts.append(table(("fault", "reported", "mutants and their invariants"), map(fault_row, KNOWN_FAULTS)))
    return "".join(parts)


def render_thinnest(counts: Sequence[Counts]) -> str:
    """Return the mutants and the codes that the fewest requests show, the thinnest first."""
    mutants = sorted(thickness(), key=lambda one: (one.requests, one.invariant))
    rows = [(str(one.requests), one.invariant, one.mutant) for one in mutants if one.requests <= THINNEST]
    driven = Counter({reach: reached(reach, counts) for area in AREAS for reach in reaches(area)})
    thin = sorted((reach for reach in driven if driven[reach] <= THINNEST), key=driven.__getitem__)
    few = [(str(driven[reach]), reach.area.value, shown_name(reach)) for reach in thin]
    exempt = "; ".join(f"{name}: {why}" for name, why in BY_NATURE.items())
    return (
        f"## The thinnest\n\nWhat at most {THINNEST} requests of profile `{PROFILE.name}` show. Nothing is below "
        f"{LEAST}, except where there are few requests by nature ({exempt}). The correct implementations of "
        "`rollproof mutants --right` must show on none.\n\n"
        f"{table(THIN_COLUMNS, rows)}\n{table(('requests', 'area', 'code'), few)}"
    )


def invariant_row(item: Invariant, counts: Sequence[Counts], vectors: Vectors) -> tuple[str, ...]:
    """Return one invariant with all its evidence."""
    streams = asking(item, counts)
    examples = sum(each.asked(item.requests) for each in streams)
    mutants = [mutant.name for mutant in MUTANTS if mutant.invariant == item.id]
    proofs = ", ".join(proofs_of(item.id)) or "-"
    judged = str(vectors.judged(item) or "-")
    fewest = min((one.requests for one in thickness() if one.invariant == item.id), default=None)
    killed = f"{len(mutants)}: {', '.join(mutants)}"
    shown = "-" if fewest is None else str(fewest) if fewest < ENOUGH else f"{ENOUGH} or more"
    return (item.id, item.section, stream_names(streams), f"{examples:,}", shown, killed, proofs, judged)


def code_row(reach: Reach, counts: Sequence[Counts], vectors: Vectors) -> tuple[str, ...]:
    """Return one reachable code of an area."""
    streams = driving(reach.area, reach.name, counts)
    alone = reach.place in ALONE or reach.entry.stage is Stage.GROUP
    held = vectors.codes[reach.area.value, reach.code] if alone else 0
    entry = reach.entry.value
    driven = f"{reached(reach, counts):,}"
    return (shown_name(reach), entry.section, entry.stage.value, stream_names(streams), driven, str(held or "-"))


def reached(reach: Reach, counts: Iterable[Counts]) -> int:
    """Return how many requests reach a code."""
    return sum(each.codes[reach.name] for each in driving(reach.area, reach.name, counts))


def shown_name(reach: Reach) -> str:
    """Return a code's name for the page."""
    return f"`{reach.code}`{'' if reach.place in ALONE else f' in a {reach.place}'}"


def hidden_row(code: Code) -> tuple[str, ...]:
    """Return a code that an earlier rule hides, everywhere or inside a rollout."""
    entry = code.value
    inside = f"in a rollout: {HIDDEN_IN_ROLLOUT_BY.get(code) or NEVER_IN_ROLLOUT.get(code)}"
    earlier = f"always: {SHADOWED_BY[code]}" if code in SHADOWED_BY else inside
    return (f"`{code.code}`", entry.section, entry.stage.value, earlier, f"`pytest {SHADOW_TEST} -k {code.name}`")


def fault_row(fault: KnownFault) -> tuple[str, ...]:
    """Return a fault with the mutants that have it."""
    return (fault.what, fault.reported, ", ".join(f"{mutant.name} ({mutant.invariant})" for mutant in fault.mutants))


# ── one rule ────────────────────────────────────────────────────────────────────────────────────────────────────────


def render_support(name: str) -> str:
    """Return the evidence for one invariant or code, for the command line; nothing for a name that is neither."""
    counts = counted()
    if name.upper() in BY_ID:
        item = BY_ID[name.upper()]
        _, _, streams, examples, shown, mutants, proofs, _ = invariant_row(item, counts, Vectors())
        head = f"  streams: {streams}\n  examples in CI: {examples}, shown by: {shown}\n"
        return head + f"  mutants: {mutants}\n  proved: {proofs}\n"
    lines = []
    for area in AREAS:
        for reach in reaches(area):
            if name in reach.code.split(":"):
                _, _, _, streams, driven, _ = code_row(reach, counts, Vectors())
                lines.append(f"  reached in CI as {reach.name} in area {area.value}: {driven} times, by {streams}\n")
    return "".join(lines)


def main(page: Path) -> None:
    """Count anew, keep the counts, and write the page; vectors are those beside the page's folder."""
    counts = tuple(count_all())
    COUNTS_FILE.write_text(render_counts(counts), encoding="utf-8")
    THICKNESS_FILE.write_text(render_thickness(measure_all()), encoding="utf-8")
    vectors = read_vectors(page.resolve().parents[1] / "vectors")
    page.write_text(render_evidence(counts, vectors), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
