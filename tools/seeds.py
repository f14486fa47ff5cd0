"""``python -m tools.seeds run``: every mutant and every right variant at many seeds; ``report`` writes the page.

A verdict at one seed may be luck. Three things are run at each seed: the mutants, in profiles quick and ci; the right
variants, which must hold; and, in profile ci, on how many requests each mutant and each rejection code shows, as long
as these are few. Each result is kept under ``build/seeds``, so that a run that was stopped goes on where it was.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from datetime import date
from pathlib import Path
from typing import Any, Final, cast

import click
from attrs import fields_dict
from rich.console import Console

from rollproof.properties.commands.mutants import report, tried
from rollproof.properties.evidence.counts import PROFILE
from rollproof.properties.evidence.rules_page import table
from rollproof.properties.evidence.thickness import BY_NATURE, LEAST, asked_in, shown
from rollproof.properties.gate.codes import met, reaches
from rollproof.properties.gate.rates import Rate, rate_of
from rollproof.properties.gate.trial import STAGES, Verdict
from rollproof.properties.gate.variants import fallen
from rollproof.properties.mutants import MUTANTS
from rollproof.properties.mutants.once_passed import MUTANTS as ONCE_PASSED
from rollproof.properties.right import EVERY_RIGHT
from rollproof.spec.judge.catalogue import BY_ID
from rollproof.spec.judge.requests import Area

ROOT: Final = Path(__file__).parents[1]
FOLDER: Final = ROOT / "build" / "seeds"
PAGE: Final = ROOT / "docs" / "evidence" / "seeds.md"

Result = Mapping[str, Any]
"""What was found, by the name of what was tried."""

Names = Collection[str]
"""Which ones to try."""


def mutants_at(seed: int, jobs: int, names: Names) -> Result:
    """Try mutants, and return the verdicts as ``rollproof mutants --json`` writes them, by name."""
    chosen = [mutant for mutant in MUTANTS if mutant.name in names]
    entries = report(tried(Console(stderr=True), chosen, [seed], jobs), seed)["mutants"]
    return {entry["mutant"]: entry for entry in cast(list[dict[str, Any]], entries)}


def right_at(seed: int, jobs: int, names: Names) -> Result:
    """Check right variants, and return by name what fell."""
    chosen = [variant for variant in EVERY_RIGHT if variant.name in names]
    return fallen(Console(stderr=True), chosen, [seed], jobs)


def thin_at(seed: int, jobs: int, names: Names) -> Result:
    """Count the requests that show each mutant, and those that reach each code, up to ``LEAST``."""
    del jobs
    counts: dict[str, int] = {}
    for area in Area:
        mutants = [one for one in MUTANTS if BY_ID[one.invariant].area is area and one.name in names]
        codes = {name: code for name, code in codes_of(area).items() if name in names}
        asked = asked_in(area, seed) if mutants or codes else []
        for mutant in mutants:
            streams = _SHOWED.setdefault(mutant.name, set())
            # Streams that showed it at an earlier seed come first, because the count ends early.
            found = shown(mutant, sorted(asked, key=lambda one: one.stream not in streams), LEAST)
            counts[mutant.name] = found.total()
            streams.update(found)
        if codes:
            reached = Counter(reach.name for one in asked for reach in met(area, one.request, one.contract))
            counts.update({name: min(LEAST, reached[code]) for name, code in codes.items()})
    return counts


def codes_of(area: Area) -> dict[str, str]:
    """Return the rejection codes that an area can reach, by the names under which they are kept."""
    return {f"{area.value}: {reach.name}": reach.name for reach in reaches(area)}


_SHOWED: Final[dict[str, set[str]]] = {}


PARTS: Final[dict[str, Callable[[int, int, Names], Result]]] = {
    "mutants": mutants_at,
    "right": right_at,
    "thin": thin_at,
}
NAMES: Final[dict[str, Callable[[], list[str]]]] = {
    "mutants": lambda: [mutant.name for mutant in MUTANTS],
    "right": lambda: [variant.name for variant in EVERY_RIGHT],
    "thin": lambda: [*(mutant.name for mutant in MUTANTS), *(name for area in Area for name in codes_of(area))],
}
"""What each part tries."""
POOR: Final[Mapping[str, Callable[[Any], bool]]] = {
    "mutants": lambda verdict: verdict["profile"] != STAGES[0] or not verdict["killed"],
    "right": bool,
    "thin": lambda count: bool(count < LEAST),
}
"""What ``--again`` tries again."""


@click.group()
def main() -> None:
    """Try mutants and right variants at many seeds."""


@main.command()
@click.option("--seeds", type=click.IntRange(min=1), default=20, show_default=True, help="How many, from 0 on.")
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="Number of processes.")
@click.option("--part", "parts", multiple=True, type=click.Choice(list(PARTS)), help="Only this. May be repeated.")
@click.option("--again", is_flag=True, help="Try again what lived, fell or was thin, after streams were added.")
def run(seeds: int, jobs: int, parts: tuple[str, ...], again: bool) -> None:
    """Try what was not tried yet, what is new included, and keep each result."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for seed in range(seeds):
        for part in parts or PARTS:
            file = FOLDER / f"{part}-{seed}.json"
            known: Result = json.loads(file.read_text(encoding="utf-8"))["found"] if file.exists() else {}
            names = [name for name in NAMES[part]() if name not in known or (again and POOR[part](known[name]))]
            if not names:
                continue
            found = {**known, **PARTS[part](seed, jobs, names)}
            file.write_text(json.dumps({"day": date.today().isoformat(), "found": found}) + "\n", encoding="utf-8")
            click.echo(f"{part}, seed {seed}: {len(names)} tried")


@main.command("report")
def report_command() -> None:
    """Write docs/evidence/seeds.md from what was run."""
    PAGE.write_text(page({part: kept(part) for part in PARTS}), encoding="utf-8")
    click.echo(f"wrote {PAGE}")


def kept(part: str) -> list[Result]:
    """Return what was found at each seed, in their order."""
    files = {int(file.stem.partition("-")[2]): file for file in FOLDER.glob(f"{part}-*.json")}
    return [json.loads(files[seed].read_text(encoding="utf-8")) for seed in sorted(files)]


# ── the page ────────────────────────────────────────────────────────────────────────────────────────────────────────


def page(results: Mapping[str, list[Result]]) -> str:
    """Return the page as Markdown: the results of each part, one per seed."""
    found = {part: [result["found"] for result in results[part]] for part in PARTS}
    days = sorted({result["day"] for part in PARTS for result in results[part]})
    head = (
        "# Many seeds\n\nWritten by `make seeds`. A verdict at one seed may be luck, so every mutant and every right "
        f"variant is tried at many. Measured {' to '.join(dict.fromkeys((days[0], days[-1])))}.\n\n"
    )
    return head + mutants_section(found["mutants"]) + right_section(found["right"]) + thin_section(found["thin"])


def mutants_section(found: list[Result]) -> str:
    """Return the kill rates: over all, of those that live at some seed, and of the faults that the gate once passed."""
    rates = rates_of(found)
    shares = {stage: sum(rate.killed[stage] for rate in rates) / sum(rate.seeds for rate in rates) for stage in STAGES}
    words = " and ".join(f"{share:.2%} in profile {stage}" for stage, share in shares.items())
    alive = [rate for rate in rates if any(rate.share(stage) < 1 for stage in STAGES)]
    once = [rate for rate in rates if rate.mutant in {mutant.name for mutant in ONCE_PASSED}]
    lives = f"Those that live at some seed:\n\n{rates_table(alive)}" if alive else "None lives at any seed.\n"
    return (
        f"## Kill rates\n\n{len(rates)} mutants at {len(found)} seeds. Of all trials, {words} end with the "
        f"invariant that the mutant names falsified. {lives}\n"
        f"The faults that the gate once passed:\n\n{rates_table(once)}\n"
    )


def rates_of(found: list[Result]) -> list[Rate]:
    """Return the kill rate of each mutant over the results of some seeds."""
    fields = set(fields_dict(Verdict))
    verdicts = [
        Verdict(**{name: value for name, value in entry.items() if name in fields})
        for result in found
        for entry in result.values()
    ]
    by_name: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        by_name.setdefault(verdict.mutant, []).append(verdict)
    return [rate_of(own, name) for name, own in by_name.items()]


def rates_table(rates: list[Rate]) -> str:
    """Return kill rates as a table, the lowest first."""
    rows = [
        (rate.mutant, rate.invariant, *(f"{rate.killed[stage]} of {rate.seeds}" for stage in STAGES))
        for rate in sorted(rates, key=lambda rate: [rate.share(stage) for stage in STAGES[::-1]])
    ]
    return table(("mutant", "invariant", *STAGES), rows)


def right_section(found: list[Result]) -> str:
    """Return how many right variants held, and what fell of the others."""
    fell = {name: [word for result in found for word in result[name]] for name in found[0]}
    rows = [(name, ", ".join(words)) for name, words in fell.items() if words]
    held = (
        f"Of {len(fell)} right variants, {len(fell) - len(rows)} held at each of {len(found)} seeds, in profile quick."
    )
    return f"## Right variants\n\n{held}\n\n{table(('variant', 'fell'), rows) if rows else ''}\n"


def thin_section(found: list[Result]) -> str:
    """Return what shows on fewer requests than it should."""
    mutants = {mutant.name for mutant in MUTANTS}
    parts = []
    for word, names in (("mutant", mutants & set(found[0])), ("rejection code", set(found[0]) - mutants)):
        least = {name: min(result[name] for result in found) for name in names}
        thin = sorted((name for name in names if least[name] < LEAST), key=lambda name: (least[name], name))
        rows = [(name, str(least[name]), str(sum(result[name] < LEAST for result in found))) for name in thin]
        parts.append(f"Of {len(names)} {word}s, {len(names) - len(thin)} show on {LEAST} or more at each seed.")
        parts.append(table((word, "requests, at least", "seeds at which it is thin"), rows) if rows else "")
    exempt = "; ".join(f"{name}: {why}" for name, why in BY_NATURE.items())
    body = "\n\n".join(part.rstrip("\n") for part in parts if part)
    return (
        f"## How thick the ice is\n\nOn how many requests of profile {PROFILE.name} each shows, at {len(found)} seeds, "
        f"counted up to {LEAST}. Few by nature: {exempt}.\n\n{body}\n"
    )


if __name__ == "__main__":
    main()
