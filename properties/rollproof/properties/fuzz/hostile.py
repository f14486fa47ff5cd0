"""Kinds of hostile input, and batches of them asked of one implementation and held against the limits.

The contract's answer is not computed: whatever these inputs are, they must be answered or refused, in time and within
memory. A batch is a function of its seed, kind and number, so it does not matter who runs it.
"""

from __future__ import annotations

import gc
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, Final

from attrs import define, evolve, field, frozen
from hypothesis import Phase
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from rollproof.properties.fuzz.limits import Limit, LimitFinding, Measured, guarded, judged, measure
from rollproof.properties.fuzz.mutate import spoil_bundle, spoil_bytes, spoil_json, spoil_text
from rollproof.properties.gate.coverage import reason_of
from rollproof.properties.gate.run import exercise
from rollproof.properties.protocol import LeftOut, offers
from rollproof.properties.strategies.histories import histories
from rollproof.properties.strategies.hostile import crowded_receipt, hostile_receipt
from rollproof.properties.strategies.media import bundles, media_histories
from rollproof.properties.strategies.media_breaks import MEDIA
from rollproof.properties.strategies.recipes import JsonText, realize, realize_request
from rollproof.properties.strategies.retained import cuts, restores
from rollproof.properties.strategies.route_requests import DIRECT, history_requests
from rollproof.properties.strategies.route_wire import odd_payloads, payloads, plans
from rollproof.properties.strategies.routes import fragments, model_shapes
from rollproof.properties.strategies.values import EXTRAS, Bytes, json_objects
from rollproof.properties.strategies.worked import WORKED_EXAMPLE
from rollproof.spec.constants import PIXEL_DTYPES
from rollproof.spec.plan import encode_plan
from rollproof.spec.plane import Staging
from rollproof.spec.requests import (
    ChainMedia,
    Crashed,
    CutGeneration,
    DecodePlan,
    DecodeRoutes,
    ExtrasDigest,
    FinalizeRollout,
    ParseReceipt,
    Request,
    Restore,
    StageMedia,
)
from rollproof.spec.tensor import Tensor


@frozen
class Kind:
    """A kind of hostile input."""

    name: str
    weight: float
    """Share of all inputs."""
    bases: SearchStrategy[Any]
    spoil: Callable[[Any, Bytes], Request]
    """An input out of a base, which must stay as it is."""


# ── how each kind is spoiled ────────────────────────────────────────────────────────────────────────────────────────


def spoiled_receipt(base: Any, decide: Bytes) -> ParseReceipt:
    """A receipt after the mutations of the gate's own stream, or after edits anywhere, also of its text."""
    way = decide.next()
    if way == LARGE:
        return ParseReceipt(crowded_receipt(decide))
    if way < 128:
        return ParseReceipt(hostile_receipt(realize(base), decide))
    if way < 240:
        return ParseReceipt(spoil_json(realize(base), decide))
    text = spoil_text(json.dumps(base), decide)
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return ParseReceipt(text)
    return ParseReceipt(JsonText(text))


def spoiled_payload(base: list[Any], decide: Bytes) -> DecodeRoutes:
    """An envelope or nested lists, odd to begin with, after edits."""
    payload = decide.choose(base)
    if type(payload) is not str:
        return DecodeRoutes(spoil_json(realize(payload), decide))
    return DecodeRoutes(spoil_text(payload, decide) if decide.chance(240) else payload)


def spoiled_plan(base: Any, decide: Bytes) -> DecodePlan:
    """The JSON of a plan after edits."""
    return DecodePlan(spoil_json(realize(base), decide))


def spoiled_extras(base: Any, decide: Bytes) -> ExtrasDigest:
    """A call's extras after edits."""
    return ExtrasDigest(spoil_json(realize(base), decide))


def spoiled_media(base: list[dict[str, Tensor]], decide: Bytes) -> StageMedia | ChainMedia:
    """A bundle to be staged, or one among others to be chained, after edits."""
    if decide.chance(160):
        return StageMedia(spoil_bundle(base[0], decide), decide.choose(PIXEL_DTYPES))
    at = decide.below(len(base))
    return ChainMedia((*base[:at], spoil_bundle(base[at], decide), *base[at + 1 :]))


def spoiled_retained(base: CutGeneration | Restore, decide: Bytes) -> CutGeneration | Restore:
    """Spans, extras or staged metadata after edits."""
    if isinstance(base, CutGeneration):
        if base.extras and decide.chance(128):
            extras = spoil_json(realize(base.extras), decide)
            # Extras are an object or null by their type; what is neither is asked for a digest, not for a cut.
            return evolve(base, extras=extras if type(extras) is dict else {"": extras})
        return evolve(base, spans=spoil_json(realize(base.spans), decide))
    if decide.chance(128):
        return evolve(base, spans=spoil_json(realize(base.spans), decide))
    metadata = spoil_bytes(base.row.extras_metadata_json, decide)
    return evolve(base, row=evolve(base.row, extras_metadata_json=metadata))


def spoiled_rows(base: FinalizeRollout, decide: Bytes) -> FinalizeRollout:
    """A rollout one of whose staged rows has columns after edits; a data plane's columns are batches of one."""
    rows = dict(base.staging.rows)
    key = decide.choose(sorted(rows))
    rows[key] = {name: batch_of_one(column) for name, column in spoil_bundle(rows[key], decide).items()}
    return evolve(base, staging=Staging(rows))


def batch_of_one(column: Tensor) -> Tensor:
    """The column, with the leading dimension of a batch of one."""
    return column if column.shape[:1] == (1,) else Tensor(column.dtype, (1, *column.shape), column.data)


KINDS: Final = (
    Kind(
        "receipts",
        0.30,
        (st.just(WORKED_EXAMPLE) | histories(max_calls=3)).map(lambda history: history.raw_receipt()),
        spoiled_receipt,
    ),
    Kind(
        "envelopes",
        0.22,
        st.tuples(st.integers(1, 3), model_shapes(2, 2)).flatmap(lambda drawn: fragments(*drawn)).map(odd_payloads)
        | st.lists(payloads(), min_size=1, max_size=4),
        spoiled_payload,
    ),
    Kind("plans", 0.18, plans().map(encode_plan), spoiled_plan),
    Kind("extras", 0.14, json_objects() | st.sampled_from(EXTRAS), spoiled_extras),
    Kind("bundles", 0.10, st.lists(bundles(), min_size=1, max_size=3), spoiled_media),
    Kind("retained", 0.056, cuts() | restores(), spoiled_retained),
    Kind(
        "rows",
        0.004,
        histories(max_calls=3).map(lambda history: history.finalize())
        | media_histories(max_calls=2).map(lambda history: history.finalize(MEDIA))
        | history_requests(DIRECT),
        spoiled_rows,
    ),
)
"""All kinds; their weights add up to 1."""

# ── batches ─────────────────────────────────────────────────────────────────────────────────────────────────────────

BATCH: Final = 2_000
"""Inputs per batch."""
BASES: Final = 20
"""Bases drawn per batch."""
LARGE: Final = 255
"""The byte that asks for something large, in every strategy."""
LARGE_SHARE: Final = 1 / 64
"""Share of inputs in which it may occur: large ones take milliseconds."""
_TAMED: Final = bytes([*range(253), 252, 252, 252])


@frozen
class Batch:
    """Some inputs of one kind."""

    kind: str
    number: int
    count: int
    seed: int

    def inputs(self) -> Iterator[Request]:
        """The inputs, the same ones every time."""
        kind = next(one for one in KINDS if one.name == self.kind)
        random = Random(f"rollproof hostile {self.seed} {self.kind} {self.number}")
        bases: list[Any] = []
        exercise(kind.bases, bases.append, BASES, random.getrandbits(64), (Phase.generate,))
        for index in range(self.count):
            data = random.randbytes(32)
            if random.random() >= LARGE_SHARE:
                data = data.translate(_TAMED)
            yield kind.spoil(bases[index * len(bases) // self.count], Bytes(data))


def batches(count: int, seed: int) -> list[Batch]:
    """``count`` inputs as batches, kinds in turn, so that every kind has had its share at any time."""
    found: list[tuple[float, Batch]] = []
    left = count
    for kind in KINDS:
        share = min(left, round(count * kind.weight)) if kind is not KINDS[-1] else left
        left -= share
        sizes = [min(BATCH, share - start) for start in range(0, share, BATCH)]
        found += (((at + 0.5) / len(sizes), Batch(kind.name, at, size, seed)) for at, size in enumerate(sizes))
    return [batch for _, batch in sorted(found, key=lambda pair: pair[0])]


@frozen
class Extreme:
    """The input that took the most of something."""

    value: float = 0.0
    measured: Measured | None = None
    description: str = ""


@define
class KindTally:
    """What became of the inputs of one kind."""

    inputs: int = 0
    accepted: int = 0
    refused: Counter[str] = field(factory=Counter)
    crashed: int = 0
    skipped: int = 0
    """Inputs that the implementation does not offer to answer."""
    unasked: int = 0
    """Inputs that were not reached before the run was stopped."""
    bytes: int = 0
    seconds: float = 0.0
    """Spent on making inputs and on asking."""
    asked_seconds: float = 0.0
    slowest: Extreme = field(factory=Extreme)
    greediest: Extreme = field(factory=Extreme)
    broken: Counter[Limit] = field(factory=Counter)
    findings: dict[tuple[str, ...], LimitFinding] = field(factory=dict)
    """The smallest per key."""

    def count(self, request: Request, measured: Measured) -> None:
        """Take in one input's answer and what it took. ``request`` is not realized."""
        self.inputs += 1
        self.bytes += measured.size
        self.asked_seconds += measured.seconds
        reason = reason_of(measured.answer)
        if isinstance(measured.answer, Crashed):
            self.crashed += 1
        elif reason is None:
            self.accepted += 1
        else:
            self.refused[reason.partition(":")[0]] += 1
        if measured.per_unit > self.slowest.value:
            self.slowest = Extreme(measured.per_unit, measured, described(request))
        if measured.memory_ratio > self.greediest.value:
            self.greediest = Extreme(measured.memory_ratio, measured, described(request))

    def add(self, finding: LimitFinding) -> None:
        """Keep a finding, if it is the smallest of its key."""
        self.broken[finding.limit] += 1
        known = self.findings.get(finding.key)
        if known is None or finding.measured.size < known.measured.size:
            self.findings[finding.key] = finding

    def merge(self, later: KindTally) -> None:
        """Take in the tally of a later batch."""
        for name in ("inputs", "accepted", "crashed", "skipped", "unasked", "bytes", "seconds", "asked_seconds"):
            setattr(self, name, getattr(self, name) + getattr(later, name))
        self.refused += later.refused
        self.slowest = max(self.slowest, later.slowest, key=lambda one: one.value)
        self.greediest = max(self.greediest, later.greediest, key=lambda one: one.value)
        for finding in later.findings.values():
            self.add(finding)
        self.broken += later.broken - Counter(finding.limit for finding in later.findings.values())


def described(request: Request) -> str:
    """A request in a few words."""
    text = repr(request)
    return text if len(text) <= 160 else f"{text[:157]}…"


def run_batch(implementation: Any, batch: Batch, stop: Callable[[], bool] = lambda: False) -> KindTally:
    """Ask every input of a batch, until ``stop`` says so."""
    tally = KindTally()
    started = time.perf_counter()
    gc.collect()
    gc.freeze()
    with guarded():
        for request in batch.inputs():
            if stop():
                tally.unasked = batch.count - tally.inputs - tally.skipped
                break
            if not offers(implementation, type(request)):
                tally.skipped += 1
            else:
                _run_one(implementation, request, batch.kind, tally)
    tally.seconds = time.perf_counter() - started
    return tally


def _run_one(implementation: Any, request: Request, source: str, tally: KindTally) -> None:
    try:
        measured = measure(implementation, realize_request(request))
    except LeftOut:
        tally.skipped += 1
        return
    finding = None if measured.broken is None else judged(implementation, request, measured, source)
    if measured.broken is not None and finding is None:
        # It was noise.
        measured = evolve(measured, seconds=0.0, peak=0, growth=0)
    tally.count(request, measured if finding is None else finding.measured)
    if finding is not None:
        tally.add(finding)
