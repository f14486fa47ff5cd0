"""How thick the ice is: on how many requests each wrong implementation shows, in profile ci at the page's seed.

That a mutant falls says that one request showed it. A fault like it, but a little narrower, may then be missed, and
another seed may miss this one. So the requests that show it are counted, up to ``ENOUGH``; fewer than ``LEAST`` are a
reason to draw more of that kind. It takes some minutes, so the counts are kept in ``thickness.json``, which ``make
docs`` writes, and a test counts some of them again.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from os import cpu_count
from pathlib import Path
from typing import Final

from attrs import asdict, define, frozen

from rollproof.properties.adapters.asking import ask
from rollproof.properties.evidence.counts import SEED, requests_of
from rollproof.properties.gate.run import complaint_of
from rollproof.properties.gate.streams import request_streams
from rollproof.properties.mutants import MUTANTS, Mutant
from rollproof.properties.mutants.mutant import MutantImplementation
from rollproof.properties.processes import processes
from rollproof.properties.strategies.rollouts.recipes import realize_request
from rollproof.spec.judge.catalogue import BY_ID
from rollproof.spec.judge.oracle import answer, answer_to
from rollproof.spec.judge.requests import Answer, Area, FinalizeGroups, FinalizeRollout, Request

LEAST: Final = 5
"""Every mutant shows on at least so many requests."""
BY_NATURE: Final = {
    "DIGEST-1": "there are two golden values",
    "LINEAGE-5": "one long chain shows any growth",
}
"""Invariants about fewer requests than that, all of which every check asks."""
ENOUGH: Final = 20
"""Nothing is counted beyond."""
THICKNESS_FILE: Final = Path(__file__).with_name("thickness.json")


@frozen
class Shown:
    """On how many requests the invariant of a mutant rejects its answer, ``ENOUGH`` standing for all that is more."""

    mutant: str
    invariant: str
    requests: int


def thickness() -> tuple[Shown, ...]:
    """Return the counts that are kept, in the catalogue's order of mutants."""
    return tuple(Shown(**entry) for entry in json.loads(THICKNESS_FILE.read_text(encoding="utf-8")))


@define
class Asked:
    """A request that a check draws, with its stream and, once somebody needs it, the contract's answer."""

    stream: str
    request: Request
    _answer: Answer | None = None

    @property
    def contract(self) -> Answer:
        """The contract's answer."""
        if self._answer is None:
            self._answer = answer(realize_request(self.request))
        return self._answer


def measure(mutants: Iterable[Mutant]) -> Iterator[Shown]:
    """Count for each mutant, area by area: every area's requests are drawn once."""
    chosen = list(mutants)
    for area in dict.fromkeys(BY_ID[mutant.invariant].area for mutant in chosen):
        asked = asked_in(area, SEED)
        for mutant in chosen:
            if BY_ID[mutant.invariant].area is area:
                yield Shown(mutant.name, mutant.invariant, shown(mutant, asked).total())


def asked_in(area: Area, seed: int) -> list[Asked]:
    """Return the requests that a check of an area draws at a seed."""
    return [Asked(stream.name, request) for stream in request_streams(area) for request in requests_of(stream, seed)]


def shown(mutant: Mutant, asked: Iterable[Asked], enough: int = ENOUGH) -> Counter[str]:
    """Return on how many of some requests the invariant of a mutant rejects its answer, by stream, up to ``enough``."""
    item, implementation = BY_ID[mutant.invariant], MutantImplementation(mutant)
    counts: Counter[str] = Counter()
    for one in asked:
        if not item.covers(one.request):
            continue
        actual = ask(implementation, realize_request(one.request))
        unsure = reads_may_fail(one.request)
        contract = answer_to(realize_request(one.request), actual) if unsure else one.contract
        counts[one.stream] += complaint_of(item, realize_request(one.request), contract, actual) is not None
        if counts.total() == enough:
            break
    return +counts


def reads_may_fail(request: Request) -> bool:
    """Return whether the contract's answer may depend on how often an implementation reads (decision D15)."""
    if isinstance(request, FinalizeRollout):
        return request.staging.faults.failing_get is not None
    return isinstance(request, FinalizeGroups) and any(step.faults.failing_get is not None for step in request.steps)


def work(names: Sequence[str]) -> list[Shown]:
    """Count for the mutants of these names, which one process draws the requests for."""
    return list(measure(mutant for mutant in MUTANTS if mutant.name in names))


def measure_all() -> tuple[Shown, ...]:
    """Count for all mutants, one process per area, in the catalogue's order."""
    areas: dict[Area, list[str]] = {}
    for mutant in MUTANTS:
        areas.setdefault(BY_ID[mutant.invariant].area, []).append(mutant.name)
    with processes(min(cpu_count() or 1, len(areas)), preload=(__name__,)) as workers:
        found = workers.run(work, [(names,) for names in sorted(areas.values(), key=len, reverse=True)])
    by_name = {one.mutant: one for part in found for one in part}
    return tuple(by_name[mutant.name] for mutant in MUTANTS)


def render_thickness(counts: Iterable[Shown]) -> str:
    """Return the file that keeps the counts: a JSON list with one mutant per line."""
    return "[\n" + ",\n".join(json.dumps(asdict(one)) for one in counts) + "\n]\n"
