"""Sampler columns (section 12): the most likely tokens at each generated position, from staged calls to one row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from attrs import frozen
from numpy.typing import NDArray

from rollproof.impl.checks import fault
from rollproof.impl.columns import Answer, MissingColumn, column_rows
from rollproof.spec.constants import TOPK_COLUMNS, TOPK_IDS, TOPK_LOGPROBS
from rollproof.spec.records import ReassemblerConfig
from rollproof.spec.rejections import Code, Rejected


@frozen(eq=False)
class SampledTokens:
    """The candidates of a row, ``[T, k]`` int32 and float32, and how many of its tokens have odd ones."""

    ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    unordered: int = 0
    disagreeing: int = 0

    @classmethod
    def zeros(cls, tokens: int, width: int) -> SampledTokens:
        """Return the candidates of tokens that nobody sampled."""
        return cls(np.zeros((tokens, width), np.int32), np.zeros((tokens, width), np.float32))


def read_topk(answer: Answer) -> dict[str, list[NDArray[Any]]]:
    """Return the sampler columns of a read, one array of any shape per row, in memory of their own.

    Raises ``ValueError`` for a column that is missing or has another dtype.
    """
    found = {}
    for name, dtype in TOPK_COLUMNS.items():
        leaf = answer.get(name, None)
        if leaf is None:
            raise MissingColumn(fault(name, None, "a column"))
        rows = column_rows(leaf, name)
        for row in rows:
            if row.dtype is not getattr(torch, dtype):
                raise ValueError(fault(name, str(row.dtype).removeprefix("torch."), dtype))
        found[name] = [np.array(row.numpy(force=True)) for row in rows]
    return found


def chain_topk(config: ReassemblerConfig, chain: Any, topk: Mapping[str, Sequence[NDArray[Any]]]) -> SampledTokens:
    """Return the candidates of a verified row, a ``ChainRow``. Raises ``Rejected`` with the first violated rule."""
    width = config.top_logprobs
    found = SampledTokens.zeros(len(chain.token_ids), width)
    unordered = disagreeing = 0
    for position, call in enumerate(chain.calls.tolist()):
        generated, end = int(chain.generation_lens[position]), int(chain.offsets[position + 1])
        ids, logprobs = topk[TOPK_IDS][call], topk[TOPK_LOGPROBS][call]
        for name, part in ((TOPK_IDS, ids), (TOPK_LOGPROBS, logprobs)):
            if part.shape != (generated, width):
                detail = fault(name, (1, *part.shape), f"[1, {generated}, {width}], by the call's generated tokens")
                raise Rejected(Code.TOPK_LENGTH_MISMATCH, detail, subject=chain.model_call_ids[position])
        wrong = _range_fault(ids, logprobs, config.vocab_size)
        if wrong is not None:
            raise Rejected(Code.TOPK_VALUE_RANGE, wrong, subject=chain.model_call_ids[position])
        own = slice(end - generated, end)
        found.ids[own], found.logprobs[own] = ids, logprobs
        unordered += int((logprobs[:, 1:] > logprobs[:, :-1]).any(1).sum())
        among = ids == chain.token_ids[own, None]
        disagreeing += int((among & (logprobs != chain.logprobs[own, None])).any(1).sum())
    return SampledTokens(found.ids, found.logprobs, unordered, disagreeing)


def _range_fault(ids: NDArray[Any], logprobs: NDArray[Any], vocab_size: int | None) -> str | None:
    """Return what is wrong with candidates ``[n, k]`` (D30), or None; of several faults, any."""
    outside = ids < 0 if vocab_size is None else (ids < 0) | (ids >= vocab_size)
    if outside.any():
        expected = "an id >= 0" if vocab_size is None else f"an id in [0, {vocab_size})"
        return fault(TOPK_IDS, int(ids[outside][0]), expected)
    ordered = np.sort(ids, axis=1)
    again = ordered[:, 1:] == ordered[:, :-1]
    if again.any():
        return fault(TOPK_IDS, int(ordered[:, 1:][again][0]), "distinct ids")
    wrong = ~(logprobs <= 0.0)
    return fault(TOPK_LOGPROBS, float(logprobs[wrong][0]), "a log-probability, at most 0") if wrong.any() else None


def group_topk(
    rows: Sequence[SampledTokens | None], lengths: Sequence[int], width: int
) -> dict[str, list[NDArray[Any]]]:
    """Return a group's published sampler columns, ``[tokens, k]`` per row; zeros for a placeholder."""
    pairs = zip(rows, lengths, strict=True)
    filled = [SampledTokens.zeros(length, width) if row is None else row for row, length in pairs]
    return {TOPK_IDS: [row.ids for row in filled], TOPK_LOGPROBS: [row.logprobs for row in filled]}
