"""Kinds of hostile input, and batches of them sent to one implementation and checked against the limits.

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

from rollproof.properties.adapters.protocol import offers
from rollproof.properties.errors import LeftOut
from rollproof.properties.fuzz.limits import Limit, LimitFinding, Measured, confirm, guarded, judged, measure
from rollproof.properties.fuzz.mutate import spoil_bundle, spoil_bytes, spoil_json, spoil_text
from rollproof.properties.gate.codes import reason_of
from rollproof.properties.gate.run import exercise
from rollproof.properties.strategies.breaks.media import MEDIA
from rollproof.properties.strategies.hostile import crowded_receipt, hostile_receipt
from rollproof.properties.strategies.rollouts.histories import histories
from rollproof.properties.strategies.rollouts.media import bundles, media_histories
from rollproof.properties.strategies.rollouts.recipes import Form, JsonText, OddColumn, realize, realize_request
from rollproof.properties.strategies.rollouts.routes import fragments, model_shapes
from rollproof.properties.strategies.rollouts.worked import WORKED_EXAMPLE
from rollproof.properties.strategies.route_wire import odd_payloads, payloads, plans
from rollproof.properties.strategies.scalars import ARRAY_REWARDS, EXTRAS, Bytes, json_objects
from rollproof.properties.strategies.streams.retained import cuts, restores
from rollproof.properties.strategies.streams.routes import DIRECT, history_requests
from rollproof.spec.constants import PIXEL_DTYPES
from rollproof.spec.judge.requests import (
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
from rollproof.spec.judge.staging import Staging
from rollproof.spec.plan import encode_plan
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
    """Return a receipt after the mutations of the gate's own stream, or after edits anywhere, also of its JSON."""
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
    """Return an envelope or nested lists, odd to begin with, after edits."""
    payload = decide.choose(base)
    if type(payload) is not str:
        return DecodeRoutes(spoil_json(realize(payload), decide))
    return DecodeRoutes(spoil_text(payload, decide) if decide.chance(240) else payload)


def spoiled_plan(base: Any, decide: Bytes) -> DecodePlan:
    """Return the JSON of a plan after edits."""
    return DecodePlan(spoil_json(realize(base), decide))


def spoiled_extras(base: Any, decide: Bytes) -> ExtrasDigest:
    """Return a call's extras after edits."""
    return ExtrasDigest(spoil_json(realize(base), decide))


def spoiled_media(base: list[dict[str, Tensor]], decide: Bytes) -> StageMedia | ChainMedia:
    """Return a bundle to be staged, or one among others to be chained, after edits."""
    if decide.chance(160):
        return StageMedia(spoil_bundle(base[0], decide), decide.choose(PIXEL_DTYPES))
    at = decide.below(len(base))
    return ChainMedia((*base[:at], spoil_bundle(base[at], decide), *base[at + 1 :]))


def spoiled_retained(base: CutGeneration | Restore, decide: Bytes) -> CutGeneration | Restore:
    """Return spans, extras or staged metadata after edits."""
    if isinstance(base, CutGeneration):
        if base.extras and decide.chance(128):
            extras = spoil_json(realize(base.extras), decide)
            # Extras are an object or null by their type; anything else goes into a digest request, not into a cut.
            return evolve(base, extras=extras if type(extras) is dict else {"": extras})
        return evolve(base, spans=spoil_json(realize(base.spans), decide))
    if decide.chance(128):
        return evolve(base, spans=spoil_json(realize(base.spans), decide))
    metadata = spoil_bytes(base.row.extras_metadata_json, decide)
    return evolve(base, row=evolve(base.row, extras_metadata_json=metadata))


def spoiled_rows(base: FinalizeRollout, decide: Bytes) -> FinalizeRollout:
    """Return a rollout with edits in the columns of one staged row; a data plane's columns are batches of one."""
    rows = dict(base.staging.rows)
    key = decide.choose(sorted(rows))
    rows[key] = {name: batch_of_one(column) for name, column in spoil_bundle(rows[key], decide).items()}
    return evolve(base, staging=Staging(rows))


def batch_of_one(column: Tensor) -> Tensor:
    """Return the column, with the leading dimension of a batch of one."""
    return column if column.shape[:1] == (1,) else Tensor(column.dtype, (1, *column.shape), column.data)


def spoiled_forms(base: FinalizeRollout, decide: Bytes) -> FinalizeRollout:
    """A rollout with columns that the data plane hands over in odd forms, or a reward that is an array or a tensor."""
    way = decide.next()
    if way < 64:
        return evolve(base, reward=decide.choose(ARRAY_REWARDS))
    rows = dict(base.staging.rows)
    for _ in range(1 if way < 192 else 3):
        key = decide.choose(sorted(rows))
        name = decide.choose(sorted(rows[key]))
        column = rows[key][name]
        rows[key] = {**rows[key], name: OddColumn(column.dtype, column.shape, column.data, decide.choose(tuple(Form)))}
    return evolve(base, staging=Staging(rows), reward=decide.choose(ARRAY_REWARDS) if way >= 240 else base.reward)


ROLLOUTS: Final = (
    histories(max_calls=3).map(lambda history: history.finalize())
    | media_histories(max_calls=2).map(lambda history: history.finalize(MEDIA))
    | history_requests(DIRECT)
)
"""Whole rollouts of every sort, valid before they are spoiled."""

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
    Kind("retained", 0.048, cuts() | restores(), spoiled_retained),
    Kind("forms", 0.008, ROLLOUTS, spoiled_forms),
    Kind("rows", 0.004, ROLLOUTS, spoiled_rows),
)
"""All kinds; their weights add up to 1."""

# ── batches ─────────────────────────────────────────────────────────────────────────────────────────────────────────

BATCH: Final = 2_000
"""Inputs per batch."""
BASES: Final = 20
"""Bases drawn per batch."""
LARGE: Final = 255
"""The byte that selects something large, in every strategy."""
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
        """Yield the inputs, the same ones every time."""
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
    """Return ``count`` inputs as batches, kinds in turn, so that every kind has had its share at any time."""
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
    """The outcomes of the inputs of one kind."""

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
    first: Extreme = field(factory=Extreme)
    """The input that took the longest the first time, with memory measured and noise in it."""
    slowest: Extreme = field(factory=Extreme)
    """The input that took the longest, measured again where it would be the most so far, or beyond the limit."""
    greediest: Extreme = field(factory=Extreme)
    broken: Counter[Limit] = field(factory=Counter)
    findings: dict[tuple[str, ...], LimitFinding] = field(factory=dict)
    """The smallest per key."""

    def count(self, request: Request, measured: Measured) -> None:
        """Count one input's answer and what it took. ``request`` is not realized."""
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
        """Add the tally of a later batch."""
        for name in ("inputs", "accepted", "crashed", "skipped", "unasked", "bytes", "seconds", "asked_seconds"):
            setattr(self, name, getattr(self, name) + getattr(later, name))
        self.refused += later.refused
        self.first = max(self.first, later.first, key=lambda one: one.value)
        self.slowest = max(self.slowest, later.slowest, key=lambda one: one.value)
        self.greediest = max(self.greediest, later.greediest, key=lambda one: one.value)
        for finding in later.findings.values():
            self.add(finding)
        self.broken += later.broken - Counter(finding.limit for finding in later.findings.values())


def described(request: Request) -> str:
    """Return a request in a few words."""
    text = repr(request)
    return text if len(text) <= 160 else f"{text[:157]}…"


def run_batch(implementation: Any, batch: Batch, stop: Callable[[], bool] = lambda: False) -> KindTally:
    """Send every input of a batch, until ``stop`` says so."""
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
    if measured.per_unit > tally.first.value:
        tally.first = Extreme(measured.per_unit, measured, described(request))
    finding = None
    if measured.broken is None:
        measured = _settled(implementation, request, measured, tally)
    else:
        # Measured again, it may have been noise: then the best measurement counts.
        measured = confirm(implementation, request, measured)
        finding = judged(implementation, request, measured, source)
    tally.count(request, measured if finding is None else finding.measured)
    if finding is not None:
        tally.add(finding)


def _settled(implementation: Any, request: Request, measured: Measured, tally: KindTally) -> Measured:
    """Return the best of two measurements of what would be the most so far.

    What is loaded once, for all inputs to come, is not this one's cost; nor is the machine's noise.
    """
    memory = measured.memory_ratio > tally.greediest.value
    if memory or measured.per_unit > tally.slowest.value:
        again = measure(implementation, realize_request(request), memory=memory)
        peak = min(measured.peak, again.peak) if memory else measured.peak
        measured = evolve(measured, seconds=min(measured.seconds, again.seconds), peak=peak)
    return measured
