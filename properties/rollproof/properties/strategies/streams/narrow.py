"""Streams of one feature each: what other streams decide with a small probability, every request here has.

A fault that only such a request shows must fall at every seed, and in every profile. Where the small combinations can
be listed, they are; else the feature is there by construction, and the rest is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

from attrs import evolve
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from rollproof.properties.strategies.breaks.row import current
from rollproof.properties.strategies.rollouts.draft import Draft
from rollproof.properties.strategies.rollouts.histories import histories
from rollproof.properties.strategies.rollouts.history import Call, rehash
from rollproof.properties.strategies.rollouts.media import deepest, relaid, wider
from rollproof.properties.strategies.rollouts.recipes import BigInt, Nest
from rollproof.properties.strategies.rollouts.sessions import start
from rollproof.properties.strategies.rollouts.staged_calls import NO_DIGEST
from rollproof.properties.strategies.rollouts.worked import WORKED_EXAMPLE, retried_example
from rollproof.properties.strategies.scalars import draw_bytes
from rollproof.properties.strategies.stream import Stream, StreamsOf, listed
from rollproof.properties.strategies.streams.advantage import rows
from rollproof.properties.strategies.streams.between import in_one_group
from rollproof.properties.strategies.streams.group import small_group
from rollproof.properties.strategies.streams.receipt import outside
from rollproof.spec.constants import FINISH_LENGTH, FINISH_REASON, SCALAR_COLUMNS
from rollproof.spec.judge.portable import AdvantageRequest, MergeCalls
from rollproof.spec.judge.requests import (
    Area,
    CallDigest,
    ExtrasDigest,
    FinalizeGroups,
    FinalizeRollout,
    GroupStep,
    ParseReceipt,
)
from rollproof.spec.judge.staging import Faults, OnMiss
from rollproof.spec.records import ReassemblerConfig, StagedCall
from rollproof.spec.tensor import Tensor, to_float32

NARROW: Final = 0.12
"""Three examples in profile ``quick``, nine in ``ci``."""

# ── records ─────────────────────────────────────────────────────────────────────────────────────────────────────────

DEPTHS: Final = (1000, 1500, 2500, 4000)
"""Deeper than Python recurses."""


def deep_nests() -> Iterator[ExtrasDigest]:
    """Yield extras of objects, of lists and of both, each deeper than an interpreter recurses."""
    for depth in DEPTHS:
        yield ExtrasDigest({"": Nest("list", depth)})
        yield ExtrasDigest(Nest("dict", depth))
        yield ExtrasDigest({"a": [], "b": Nest("list", depth // 2, Nest("dict", depth // 2, 1))})


@st.composite
def minus_zeros(draw: DrawFn) -> CallDigest:
    """Draw a staged call with -0.0 at one carry token: in the mask, in the log-probabilities, or in both."""
    history = draw(histories(max_calls=3))
    history = rehash(relaid(evolve(history, calls=tuple(map(wider, history.calls)))))
    decide = draw_bytes(draw)
    call = decide.choose(history.calls).staged
    at = decide.below(min(256, call.token_mask_delta.count(0.0)))
    names = decide.choose((("token_mask_delta",), ("generation_log_probs_delta",), (*MINUS_ZERO_COLUMNS,)))
    columns: dict[str, Any] = {name: with_minus_zero(call, name, at) for name in names}
    return CallDigest(evolve(call, digest=NO_DIGEST, **columns))


MINUS_ZERO_COLUMNS: Final = ("token_mask_delta", "generation_log_probs_delta")


def with_minus_zero(call: StagedCall, name: str, at: int) -> tuple[float, ...]:
    """Return a column of a call with -0.0 in one place."""
    values: list[float] = list(getattr(call, name))
    values[at] = -0.0
    return tuple(values)


LARGEST: Final = (2**53 - 1) * 2**971
"""The largest float64, as an integer."""
HUGE: Final[tuple[Any, ...]] = (
    LARGEST, LARGEST + 2**969, LARGEST + 2**970, 2**1024, 10**308, 10**309, BigInt(400), BigInt(4000),
)  # fmt: skip
"""Integers around the largest that a float64 holds: what is not nearer to it than to 2**1024 is too large."""


def huge_rewards() -> Iterator[ParseReceipt]:
    """Yield receipts whose reward is a huge integer, of either sign."""
    for value in HUGE:
        negative = BigInt(value.digits, negative=True) if isinstance(value, BigInt) else -value
        yield from (outside(True, "reward", each) for each in (value, negative))


OTHER_TYPES: Final[tuple[Any, ...]] = ("3.0", "1", " 2 ", "1e3", "-0.5", True, False)
"""What Python's float() takes, and no reward is."""


def selections_left_out() -> Iterator[ParseReceipt]:
    """Yield receipts that say where their rollout ends, and not who says so: null, or nothing."""
    history = retried_example()
    for call in history.calls:
        receipt = evolve(history, terminal_call_id=call.id).raw_receipt()
        left_out = {name: value for name, value in receipt.items() if name != "terminal_selection"}
        yield ParseReceipt({**receipt, "terminal_selection": None})
        yield ParseReceipt(left_out)


# ── rollouts ────────────────────────────────────────────────────────────────────────────────────────────────────────


def scalars_of_two_dimensions() -> Iterator[FinalizeRollout]:
    """Yield the retried example with one scalar column of shape [1, 1] in one call, and with all of a call's."""
    choices = [(name,) for name in SCALAR_COLUMNS]
    for at, names in [*enumerate(choices), *enumerate([SCALAR_COLUMNS] * 3)]:
        draft = Draft.of(retried_example())
        for name in names:
            column = current(draft, at % draft.count, name)
            draft.put_column(at % draft.count, name, Tensor(column.dtype, (1, 1), column.data))
        yield draft.finalize()


def odd_log_probs() -> Iterator[FinalizeRollout]:
    """Yield the retried example with the log-probs of one call one short, one too many, or one of them not a number.

    What is missing, or not a number, was committed to as 0.0: filling it in must not make the row valid.
    """
    name = "generation_logprobs_delta"
    retried = retried_example()
    for at, call in enumerate(retried.calls):
        values = call.staged.generation_log_probs_delta
        carry = call.staged.token_mask_delta.count(0.0)
        for place in (carry, len(values) - 1):
            zeroed = (*values[:place], 0.0, *values[place + 1 :])
            staged = evolve(call.staged, generation_log_probs_delta=zeroed)
            history = rehash(retried.with_call(evolve(call, staged=staged)))
            with_nan = (*values[:place], math.nan, *values[place + 1 :])
            short = values[:place] if place == len(values) - 1 else values[:-1]
            for column in (with_nan, short, (*zeroed, -0.5)):
                draft = Draft.of(history)
                draft.put_column(at, name, Tensor.of("float32", column, (1, len(column))))
                yield draft.finalize()


def largest_ids() -> Iterator[FinalizeRollout]:
    """Yield the worked example with its largest id in each place, which is the vocabulary's size, or one around it."""
    for at, call in enumerate(WORKED_EXAMPLE.calls):
        ids = call.staged.token_ids_delta
        for place in range(len(ids)):
            changed = evolve(call, staged=evolve(call.staged, token_ids_delta=(*ids[:place], 100, *ids[place + 1 :])))
            history = rehash(WORKED_EXAMPLE.with_call(changed))
            for size in (100, 101, 99)[: 3 if at == place == 0 else 1]:
                yield history.finalize(ReassemblerConfig(vocab_size=size))


@st.composite
def missing_beside_the_chain(draw: DrawFn) -> FinalizeRollout:
    """Draw a rollout that lacks the rows of a call off its chain, and of whatever continues that call."""
    history = draw(histories(min_calls=2, max_calls=4))
    if len(history.chain()) == len(history.calls):
        history = evolve(history, terminal_call_id=history.chain()[-2].id)
    draft = Draft.of(history)
    decide = draw_bytes(draw)
    draft.on_miss = decide.choose(tuple(OnMiss))
    gone = history.calls[draft.off_chain(decide)].id
    draft.missing |= {
        at for at, call in enumerate(history.calls) if gone in [each.id for each in history.path(call.id)]
    }
    return draft.finalize()


# ── groups ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@st.composite
def stopped_earlier(draw: DrawFn) -> FinalizeGroups:
    """Draw a group whose chains have a call that stopped for its length, which is not the last."""
    history = draw(histories(rollout_id="r", min_calls=2, max_calls=4, min_chain=2))
    decide = draw_bytes(draw)
    history = evolve(history, terminal_call_id=deepest(history).id)
    chain = [call.id for call in history.chain()]
    stopped = decide.choose(chain[:-1])

    def with_reason(call: Call) -> Call:
        extras = {name: value for name, value in (call.extras or {}).items() if name != FINISH_REASON}
        if call.id == stopped or (call.id != chain[-1] and decide.chance(128)):
            return evolve(call, extras={**extras, FINISH_REASON: FINISH_LENGTH})
        reasons: tuple[dict[str, Any], ...] = ({FINISH_REASON: "stop"}, {}, {FINISH_REASON: None})
        return evolve(call, extras={**extras, **decide.choose(reasons)})

    history = rehash(evolve(history, calls=tuple(map(with_reason, history.calls))))
    return in_one_group(ReassemblerConfig(), [history.renamed(name).finalize() for name in "ab"[: 1 + decide.below(2)]])


def plausible_bounds() -> Iterator[FinalizeGroups]:
    """Yield the worked example with bounds around each of its log-probs: in float32, equal ones are not below."""
    request = WORKED_EXAMPLE.finalize()
    for decimal in (-0.1, -0.2, -0.3, -0.4):
        exact = to_float32(decimal)
        apart = 2.0**-25
        nearest = (math.nextafter(exact, 0.0), math.nextafter(exact, -1.0))
        for bound in (decimal, exact, *nearest, exact + apart, exact - apart):
            yield in_one_group(ReassemblerConfig(least_plausible_logprob=bound), [request])


def stop_tokens() -> Iterator[FinalizeGroups]:
    """Yield the worked example with stop tokens: the next prompt begins with 20, and the call before ends in 13."""
    request = WORKED_EXAMPLE.finalize()
    begin, end = 20, 13
    for others in ((), (10,), (21,), (22,), (12, 2**31 + 5)):
        yield in_one_group(ReassemblerConfig(stop_token_ids=(begin, *others)), [request])
        yield in_one_group(ReassemblerConfig(stop_token_ids=(*others, end)), [request])
    yield in_one_group(ReassemblerConfig(stop_token_ids=(begin, end)), [request])


def failed_puts() -> Iterator[FinalizeGroups]:
    """Yield groups whose put fails, and which are then run again."""
    for count in (1, 2, 3, 4, 5, 8):
        request, staging = small_group("g", count)
        yield FinalizeGroups(ReassemblerConfig(), (GroupStep(request, Faults(put=True)), GroupStep(request)), staging)


# ── what any framework trains ───────────────────────────────────────────────────────────────────────────────────────


def equal_samplings() -> Iterator[MergeCalls]:
    """Yield sessions in which a prompt is answered with the same tokens twice or more, at other log-probs."""
    yield start([3], [4]).ask([3], [4]).request()
    yield start([3, 4], [5, 6]).ask([3, 4], [5, 6]).ask([3, 4], [5, 6]).request()
    yield start([3, 4], [5, 6]).ask([3, 4], [7]).ask([3, 4], [5, 6]).request()
    yield start([3, 4], [5]).ask([3, 4], [6]).ask([3, 4], [5]).ask([3, 4], [6]).request()
    yield start([3, 4], [5]).then([6], [7, 8]).ask([3, 4, 5, 6], [7, 8]).request()
    yield start([3, 4], [5]).then([6], [7, 8]).ask([3, 4, 5, 6], [7, 8]).then([1], [2]).request()
    yield start([3], [4]).ask([3, 4, 5], [6]).ask([3, 4, 7], [6]).ask([3, 4, 5], [6]).request()


def large_rewards() -> Iterator[AdvantageRequest]:
    """Yield groups with large rewards that differ by less than float16 can tell; one rollout is absent, or all move."""
    for low, high in ((1024.0, 1024.5), (1030.0, 1030.5), (-1024.5, -1024.0), (1536.0, 1536.5), (2048.0, 2049.0)):
        two = rows(("g0", low), ("g0", high))
        yield AdvantageRequest(two, rows(("g0", high), ("g0", low)))
        yield AdvantageRequest(rows(("g0", high), ("g0", low), ("g0", high), ("g1", 0.0), ("g1", 1.0)), two)


def streams(area: Area) -> Iterator[Stream]:
    """Yield the streams of the areas digest, receipt, rollout, group, merge and advantage."""
    stream = StreamsOf(area)
    if area is Area.DIGEST:
        yield listed("refused:nests", area, deep_nests())
        yield stream("refused:a minus zero", minus_zeros(), NARROW)
    elif area is Area.RECEIPT:
        yield listed("break:huge rewards", area, huge_rewards())
        yield listed("break:rewards of other types", area, (outside(True, "reward", value) for value in OTHER_TYPES))
        yield listed("break:selections left out", area, selections_left_out())
    elif area is Area.ROLLOUT:
        yield listed("valid:scalars of two dimensions", area, scalars_of_two_dimensions())
        yield listed("odd log-probs", area, odd_log_probs())
        yield listed("largest ids", area, largest_ids())
        yield stream("break:missing beside the chain", missing_beside_the_chain(), NARROW)
    elif area is Area.GROUP:
        yield stream("stopped earlier", stopped_earlier(), NARROW)
        yield listed("plausible bounds", area, plausible_bounds())
        yield listed("stop tokens", area, stop_tokens())
        yield listed("failed puts", area, failed_puts())
    elif area is Area.MERGE:
        yield listed("equal samplings", area, equal_samplings())
    elif area is Area.ADVANTAGE:
        yield listed("large rewards", area, large_rewards())
