"""Choosing the vectors: the smallest inputs that reach every code, show every known fault, and plain ones of any size.

All inputs are drawn once, from one seed. Of the suitable ones the shortest is taken, so vectors
stay readable and do not depend on the order in which they were drawn. Inputs from another package are left out: the
vectors are the same without it.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Final

from attrs import field, frozen
from hypothesis import Phase
from hypothesis.errors import Flaky

from rollproof.properties.adapters.asking import ask
from rollproof.properties.gate.codes import driven_code, reachable
from rollproof.properties.gate.run import drawn, exercise
from rollproof.properties.gate.streams import request_streams
from rollproof.properties.mutants import MUTANTS
from rollproof.properties.mutants.mutant import Mutant, MutantImplementation
from rollproof.properties.nemo_gym.examples import EXAMPLES, area_of
from rollproof.properties.strategies.rollouts.recipes import realize_request
from rollproof.properties.strategies.stream import Stream
from rollproof.properties.vectors.edges import edges
from rollproof.properties.vectors.vector_files import Note, Vector, VectorFile, expected_code
from rollproof.properties.vectors.verify import complaint_of
from rollproof.properties.wire.converter import NotCarried
from rollproof.properties.wire.messages import OPERATIONS, request_object
from rollproof.spec.judge.catalogue import BY_ID
from rollproof.spec.judge.oracle import answer
from rollproof.spec.judge.requests import Answer, Area, Request
from rollproof.spec.rejections import Code
from rollproof.spec.shadowed import SHADOWED_BY

PER_STREAM: Final = 60
PER_CODE: Final = 12
"""Inputs drawn from a stream of weight 1, and from one that drives a code."""
LONGER: Final = 8
"""How many times as many are drawn where none of them is suitable."""
SHRINKING: Final = 300
"""Steps that such an input is shrunk for."""
OTHERS: Final = 20
"""After so many inputs of other kinds a stream is left."""
VALID: Final = 24
"""Plain valid inputs of an area, at least."""
LONGEST: Final = 8_000
"""Characters of a plain input, at most."""
FOREIGN: Final = "captured"
"""The common prefix of streams whose inputs come from another package."""

PAIRS: Final = {
    "framing": "Two sets of tensors that differ, and whose names, dtypes, shapes and bytes read alike back to back.",
    "null": "No media at all, and an empty set of tensors.",
    "0-dimensional": "A tensor without dimensions has a digest.",
    "conjugated": "A view that is stored conjugated has the digest of its value.",
    "negated": "A view that is stored negated has the digest of its value.",
    "one strided element": "A strided view of one element has the digest of its value.",
    "quantization": "A quantized tensor has no digest: its bytes mean nothing without the scale.",
    "name that is not a string": "A name that is not a string has no digest.",
    "null entry": "A name that stands for no tensor is refused as media_capture_rejected.",
    "dtype without a name": "A dtype that the contract does not name has no digest.",
}
"""Pairs that docs/findings.md is about, by the name of their stream."""

FINDINGS: Final = {
    "one strided element": "singleton-view",
    "name that is not a string": "name",
    "null entry": "unnamed",
    "dtype without a name": "other-dtype",
}
"""The finding that a pair shows, where it has another name."""

DEVIATIONS: Final = {
    "D1": "A token id, weight version or length of 2**63 or more: no int64 row can hold it.",
    "D2": "-0.0 as a mask or as a carry log-probability compares equal to 0.0 and digests differently.",
    "D3": "Extras of more than 64 containers inside one another have no digest.",
    "D9-shape": "Dimensions of an envelope with signs, spaces, underscores, leading zeros or digits of other scripts.",
    "D9-base64": "An envelope with bits after its last byte: one tensor would have several encodings.",
    "D16": "A field of another type that would convert to the right one.",
    "D1-lengths": "A staged route length of 2**63: no int64 column holds it.",
    "float64-log-prob": "A log-probability that float32 does not hold exactly.",
    "D24": "The id under which rows of generation cuts are staged, taken for a rollout's.",
    "rollout-id-slash": 'A rollout id with "/": its staging keys would be those of another rollout too.',
    "lone-surrogate": "Text that has no UTF-8 form.",
    "malformed-digest": "A digest that is not 64 lowercase hex characters.",
    "list-id-range": "An expert id that no int16 column holds.",
}
"""The subjects of the known deviations of nemo-gym."""


@frozen
class Candidate:
    """An input of an area, with the contract's answer."""

    request: Request
    expected: Answer
    stream: str
    text: str = field(repr=False)

    @property
    def order(self) -> tuple[int, str]:
        """A sort key that puts short strings first."""
        return len(self.text), self.text


@frozen
class Goal:
    """The purpose of one vector: its flag, what the flag means, and which inputs, of which kinds, are suitable."""

    flag: str
    note: Note
    kinds: tuple[type, ...]
    holds: Callable[[Candidate], bool]


def export(area: Area, seed: int = 0) -> VectorFile:
    """Return the vectors of one area, the same for the same seed."""
    candidates = draw(area, seed)
    notes: dict[str, Note] = {}
    flags: defaultdict[str, list[str]] = defaultdict(list)
    chosen: dict[str, Candidate] = {}
    comments: defaultdict[str, list[str]] = defaultdict(list)

    def take(candidate: Candidate, flag: str, note: Note, comment: str) -> None:
        chosen[candidate.text] = candidate
        notes[flag] = note
        if flag not in flags[candidate.text]:
            flags[candidate.text].append(flag)
            comments[candidate.text].append(comment)

    for goal in (*code_goals(area), *mutant_goals(area)):
        fitting = (one for one in candidates if isinstance(one.request, goal.kinds) and goal.holds(one))
        found = next(fitting, None) or search(area, seed, goal)
        if found is not None:
            looks_for = "" if goal.note.bugType == "Rejection" else "Looks for: "
            take(found, goal.flag, goal.note, looks_for + goal.note.description)
    for flag, note, request in known_inputs(area):
        candidate = carried(request, flag)
        if candidate is not None:
            take(candidate, flag, note, note.description)
    basic = Note("Basic", "A plain case.")
    for candidate in plain(candidates, VALID):
        take(candidate, "basic", basic, f"A plain case of {OPERATIONS[type(candidate.request)]} ({candidate.stream}).")
    order = list(OPERATIONS)
    vectors = tuple(
        Vector(one.request, one.expected, " ".join(comments[one.text]), tuple(flags[one.text]))
        for one in sorted(chosen.values(), key=lambda one: (order.index(type(one.request)), one.order))
    )
    return VectorFile(area, vectors, notes, seed)


# ── inputs ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def draw(area: Area, seed: int) -> list[Candidate]:
    """Draw inputs of all streams of an area, each once, the shortest first."""
    found: dict[str, Candidate] = {}
    for stream in request_streams(area):
        if FOREIGN not in stream.name:
            for request in requests_of(stream, seed):
                candidate = carried(request, stream.name)
                if candidate is not None:
                    found.setdefault(candidate.text, candidate)
    for flag, _, request in known_inputs(area):
        candidate = carried(request, flag)
        if candidate is not None:
            found.setdefault(candidate.text, candidate)
    return sorted(found.values(), key=lambda candidate: candidate.order)


def requests_of(stream: Stream, seed: int) -> Sequence[Request]:
    """Return some requests of a stream; all of one that lists them."""
    count = PER_CODE if stream.codes else max(1, round(PER_STREAM * stream.weight))
    return drawn(stream, count, seed)


def search(area: Area, seed: int, goal: Goal) -> Candidate | None:
    """Search for an input that is rare: drawn for longer, and shrunk for a fixed number of steps."""
    for stream in request_streams(area):
        if FOREIGN not in stream.name and stream.weight:
            found = shrunk(stream, seed, goal)
            if found is not None:
                return found
    return None


def shrunk(stream: Stream, seed: int, goal: Goal) -> Candidate | None:
    """Return the smallest suitable input of one stream, as far as the steps go."""
    best: Candidate | None = None
    steps = others = 0

    def body(request: Request) -> None:
        nonlocal best, steps, others
        steps += best is not None
        others = 0 if isinstance(request, goal.kinds) else others + 1
        if steps > SHRINKING or others > OTHERS:
            raise _Enough
        if others:
            return
        candidate = carried(request, stream.name)
        if candidate is not None and goal.holds(candidate):
            best = candidate if best is None or candidate.order < best.order else best
            raise _Found

    with suppress(_Found, _Enough, Flaky):
        exercise(stream.strategy, body, LONGER * PER_STREAM, seed, (Phase.generate, Phase.shrink))
    return best


class _Found(Exception):
    """The input is suitable."""


class _Enough(BaseException):
    """Shrinking has taken its steps; Hypothesis lets this through."""


def carried(request: Request, stream: str) -> Candidate | None:
    """Return a request with the contract's answer; None where the wire does not carry it."""
    realized = realize_request(request)
    try:
        text = json.dumps(request_object(realized))
    except NotCarried:
        return None
    return Candidate(realized, answer(realize_request(request)), stream, text)


def plain(candidates: list[Candidate], count: int) -> Iterator[Candidate]:
    """Yield at least ``count`` valid inputs, from every stream and operation as many, of all sizes."""
    groups: defaultdict[tuple[str, str], list[Candidate]] = defaultdict(list)
    for candidate in candidates:
        if expected_code(candidate.expected) is None and len(candidate.text) <= LONGEST:
            groups[candidate.stream, OPERATIONS[type(candidate.request)]].append(candidate)
    left, waiting = count, sorted(groups.values(), key=len)
    for index, group in enumerate(waiting):
        share = max(1, min(len(group), -(-left // (len(waiting) - index))))
        yield from (group[(len(group) - 1) * step // max(1, share - 1)] for step in range(share))
        left = max(0, left - share)


# ── what they are there for ─────────────────────────────────────────────────────────────────────────────────────────


def code_goals(area: Area) -> Iterator[Goal]:
    """Yield one goal per reason that an input of the area must be refused with."""
    for name in reachable(area):
        carrier, _, subject = name.partition(":")
        stages = [code for code in Code if code.code == (subject or carrier)]
        entry = min(stages, key=lambda code: code in SHADOWED_BY).value
        note = Note("Rejection", f"{entry.sentence} (section {entry.section})")
        kinds = tuple(OPERATIONS)
        yield Goal(name, note, kinds, lambda one, name=name: driven_code(one.expected, {name}) == name)  # type: ignore[misc]


def mutant_goals(area: Area) -> Iterator[Goal]:
    """Yield one goal per wrong implementation of the area: an input on which its invariant notices."""
    for mutant in MUTANTS:
        item = BY_ID[mutant.invariant]
        if item.area is area and set(item.requests) & set(OPERATIONS):
            links = links_of(mutant)
            note = Note("KnownFault" if links else "Rule", mutant.sentence, links)
            yield Goal(mutant.name, note, item.requests, shows(mutant))


def links_of(mutant: Mutant) -> tuple[str, ...]:
    """Return the public threads that an origin names."""
    threads = (source.rpartition(" ") for source in sorted(mutant.sources))
    return tuple(f"https://github.com/{repository}/issues/{number}" for repository, _, number in threads)


def shows(mutant: Mutant) -> Callable[[Candidate], bool]:
    """Return a check whether a mutant's invariant notices it on an input."""
    item, implementation = BY_ID[mutant.invariant], MutantImplementation(mutant)

    def holds(candidate: Candidate) -> bool:
        actual = ask(implementation, realize_request(candidate.request))
        return complaint_of(item, candidate.request, candidate.expected, actual) is not None

    return holds


def known_inputs(area: Area) -> Iterator[tuple[str, Note, Request]]:
    """Yield the inputs of docs/findings.md and those at the borders of rules, with their flags."""
    for flag, description, request in edges(area):
        yield flag, Note("Edge", description), request
    for flag, request in EXAMPLES:
        if area_of(request) is area and flag in DEVIATIONS:  # what something costs (D5) is not for vectors
            yield flag, Note("Deviation", DEVIATIONS[flag]), request
    for stream in request_streams(area):
        pair = stream.name.removeprefix("hard pair: ")
        if pair in PAIRS and pair != stream.name:
            for request in requests_of(stream, 0):
                yield FINDINGS.get(pair, pair), Note("Deviation", PAIRS[pair]), request
