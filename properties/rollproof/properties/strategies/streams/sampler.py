"""Requests of the area sampler: rollouts and groups whose calls staged the most likely tokens of each position."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from attrs import evolve
from hypothesis import strategies as st

from rollproof.properties.strategies.rollouts.histories import histories
from rollproof.properties.strategies.rollouts.history import Call, History
from rollproof.properties.strategies.rollouts.route_boundary import EXAMPLE
from rollproof.properties.strategies.stream import Stream, StreamsOf
from rollproof.properties.strategies.streams.between import in_one_group
from rollproof.spec.constants import TOPK_IDS, TOPK_LOGPROBS
from rollproof.spec.judge.requests import Area, FinalizeGroups, FinalizeRollout
from rollproof.spec.judge.staging import Staging
from rollproof.spec.records import ReassemblerConfig
from rollproof.spec.rejections import Code
from rollproof.spec.tensor import Tensor, to_float32

DESCENDING: Final = tuple(to_float32(value) for value in (-0.1, -0.75, -1.5, -2.25, -9.0, float("-inf")))


@st.composite
def topk(draw: st.DrawFn, call: Call, width: int) -> Mapping[str, Tensor]:
    """Draw candidates for the generated tokens of a call: distinct ids, the sampled one often among them."""
    staged = call.staged
    carry = staged.token_mask_delta.count(0.0)
    ids: list[int] = []
    logprobs: list[float] = []
    pairs = list(zip(staged.token_ids_delta[carry:], staged.generation_log_probs_delta[carry:], strict=True))
    for sampled, value in pairs:
        first = draw(st.integers(0, 50))
        own = [first + slot for slot in range(width)]
        told = list(DESCENDING[:width])
        if sampled < 2**31 and draw(st.booleans()):
            own = [sampled, *(sampled + slot if sampled < 2**30 else slot - 1 for slot in range(1, width))]
            told[0] = value if value <= 0.0 and draw(st.booleans()) else told[0]
        if draw(st.integers(0, 3)) == 3:
            told.reverse()
        ids += own
        logprobs += told
    shape = (1, len(pairs), width)
    return {TOPK_IDS: Tensor.of("int32", ids, shape), TOPK_LOGPROBS: Tensor.of("float32", logprobs, shape)}


@st.composite
def sampled_histories(draw: st.DrawFn, width: int, rollout_id: str | None = None, max_calls: int = 4) -> History:
    """Draw a valid rollout whose calls all staged candidates, dead branches too."""
    history = draw(histories(rollout_id=rollout_id, max_calls=max_calls))
    return evolve(history, calls=tuple(evolve(call, topk=draw(topk(call, width))) for call in history.calls))


def widths() -> st.SearchStrategy[int]:
    """Draw how many candidates there are."""
    return st.integers(1, 4)


@st.composite
def rollout_requests(draw: st.DrawFn) -> FinalizeRollout:
    """Draw a rollout with candidates."""
    width = draw(widths())
    return draw(sampled_histories(width)).finalize(ReassemblerConfig(top_logprobs=width))


Break = Callable[[st.DrawFn, Mapping[str, Tensor]], Mapping[str, Tensor]]


def _other_shape(draw: st.DrawFn, columns: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    name = draw(st.sampled_from(sorted(columns)))
    column = columns[name]
    _, tokens, width = column.shape
    shape = draw(
        st.sampled_from([(1, tokens + 1, width), (1, tokens, width + 1), (1, tokens * width), (1, tokens - 1, width)])
    )
    count = shape[1] * (shape[2] if len(shape) > 2 else 1)
    values = [0] * count if name == TOPK_IDS else [-1.0] * count
    return {**columns, name: Tensor.of(column.dtype, values, shape)}


def _other_values(draw: st.DrawFn, columns: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    ids, logprobs = list(columns[TOPK_IDS].values()), list(columns[TOPK_LOGPROBS].values())
    width = columns[TOPK_IDS].shape[2]
    at = draw(st.integers(0, len(ids) - 1))
    kind = draw(st.sampled_from(["negative", "nan", "positive", *(["twice"] if width > 1 else [])]))
    if kind == "negative":
        ids[at] = draw(st.sampled_from([-1, -(2**31)]))
    elif kind == "twice":
        start = at - at % width
        ids[start + 1] = ids[start]
    else:
        logprobs[at] = float("nan") if kind == "nan" else to_float32(0.5)
    shape = columns[TOPK_IDS].shape
    return {TOPK_IDS: Tensor.of("int32", ids, shape), TOPK_LOGPROBS: Tensor.of("float32", logprobs, shape)}


BREAKS: Final[dict[Code, Break]] = {
    Code.TOPK_LENGTH_MISMATCH: _other_shape,
    Code.TOPK_VALUE_RANGE: _other_values,
}
"""Per code, what breaks the candidates of a call of the chain so that exactly that code is the answer."""


@st.composite
def broken(draw: st.DrawFn, code: Code, rollout_id: str | None = None, width: int | None = None) -> FinalizeRollout:
    """Draw a rollout that is rejected with ``code``; with several faults, for that of the call nearest to the root."""
    wide = draw(widths()) if width is None else width
    history = draw(sampled_histories(wide, rollout_id))
    call = draw(st.sampled_from(history.chain()))
    assert call.topk is not None
    history = history.with_call(evolve(call, topk=BREAKS[code](draw, call.topk)))
    return history.finalize(ReassemblerConfig(top_logprobs=wide))


@st.composite
def outside_vocabulary(draw: st.DrawFn) -> FinalizeRollout:
    """Draw the contract's example with a candidate that the vocabulary does not have."""
    rows = dict(EXAMPLE.rows)
    for key, generated in (("g_g0/c1", 1), ("g_g0/c2", 1)):
        ids = [draw(st.sampled_from([5, 1999])), draw(st.sampled_from([2000, 2**31 - 1]))]
        rows[key] = {
            **rows[key],
            TOPK_IDS: Tensor.of("int32", ids, (1, generated, 2)),
            TOPK_LOGPROBS: Tensor.of("float32", [-1.0, -2.0], (1, generated, 2)),
        }
    config = ReassemblerConfig(top_logprobs=2, vocab_size=2000)
    return FinalizeRollout(config, EXAMPLE.rollout_id, EXAMPLE.receipt, 1.0, Staging(rows))


@st.composite
def without_columns(draw: st.DrawFn) -> FinalizeRollout:
    """Draw a rollout of which a call lacks a sampler column, or has one of another dtype."""
    width = draw(widths())
    history = draw(sampled_histories(width))
    call = draw(st.sampled_from(history.calls))
    assert call.topk is not None
    name = draw(st.sampled_from(sorted(call.topk)))
    kept = {key: value for key, value in call.topk.items() if key != name}
    if draw(st.booleans()):
        column = call.topk[name]
        dtype = {"int32": "int64", "float32": "float64"}[column.dtype]
        kept[name] = Tensor.of(dtype, column.values(), column.shape)
    return history.with_call(evolve(call, topk=kept)).finalize(ReassemblerConfig(top_logprobs=width))


@st.composite
def groups(draw: st.DrawFn, code: Code | None = None) -> FinalizeGroups:
    """Draw a group with candidates: all valid, or one rejected with ``code`` between two valid ones."""
    width = draw(widths())
    config = ReassemblerConfig(top_logprobs=width)
    names = ("a", "b", "c") if code is not None else ("a", "b", "c")[: draw(st.integers(1, 3))]
    requests: list[FinalizeRollout] = []
    for name in names:
        if code is not None and name == "b":
            requests.append(draw(broken(code, name, width)))
        else:
            requests.append(draw(sampled_histories(width, name)).finalize(config))
    return in_one_group(config, requests)


def streams(area: Area) -> Iterator[Stream]:
    """Yield the streams of the area sampler."""
    if area is not Area.SAMPLER:
        return

    stream = StreamsOf(area)

    yield stream("rollouts with candidates", rollout_requests())
    yield stream("groups with candidates", groups(), 2.0)
    for code in BREAKS:
        yield stream(f"break:sampler:{code.code}", broken(code), codes=(code.code,))
        yield stream(f"beside:{code.code}", groups(code), 0.6)
    value_range = (Code.TOPK_VALUE_RANGE.code,)
    yield stream("candidates outside the vocabulary", outside_vocabulary(), 0.3, value_range)
    yield stream("calls without candidates", without_columns(), 0.4)
