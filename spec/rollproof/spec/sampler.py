"""Sampler columns: the most likely tokens at each generated position, from staged rows to a published row (section 12).

An engine can say, for every token that it sampled, which k tokens were the most likely ones, and how likely each was.
Calls stage them for their generated positions only; the row has them for all of its tokens, with zeros where nothing
was sampled. An id 0 with log-probability 0 reads as certainty, so only the token mask says which of them are real. No
digest covers these columns: a damaged one is noticed only where it breaks a rule below.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from attrs import frozen

from rollproof.spec.constants import TOPK_IDS, TOPK_LOGPROBS
from rollproof.spec.records import LinearizedRow, ReassemblerConfig
from rollproof.spec.rejections import Code, Rejected
from rollproof.spec.staged import StagedRow
from rollproof.spec.tensor import Tensor
from rollproof.spec.values import fault, first_repeated


@frozen
class SampledTokens:
    """The most likely tokens of a row: ids int32 and log-probabilities float32, ``[tokens, k]`` each."""

    ids: Tensor
    logprobs: Tensor
    unordered: tuple[tuple[str, int], ...] = ()
    """Per call of the chain, its generated tokens whose candidates do not descend."""
    disagreeing: tuple[tuple[str, int], ...] = ()
    """Per call, its tokens that are among their candidates with another log-probability than the row's."""


def rollout_topk(config: ReassemblerConfig, row: LinearizedRow, chain: Sequence[StagedRow]) -> SampledTokens:
    """Return the most likely tokens of a verified row; ``chain`` holds its staged rows, root first.

    Call by call, root first: ``topk_length_mismatch`` unless both columns are ``[1, generated tokens, k]``, then
    ``topk_value_range`` (decision D30).
    """
    width = config.top_logprobs
    ids: list[Any] = []
    logprobs: list[Any] = []
    unordered: list[tuple[str, int]] = []
    disagreeing: list[tuple[str, int]] = []
    for staged, link in zip(chain, row.link_spans, strict=True):
        call, shape = staged.call, (1, link.generation_len, width)
        own_ids, own_logprobs = candidates(staged, TOPK_IDS, shape), candidates(staged, TOPK_LOGPROBS, shape)
        for token_ids, given in zip(own_ids, own_logprobs, strict=True):
            check_candidates(config, call.model_call_id, token_ids, given)
        tokens, values = call.token_ids_delta[link.carry_len :], call.generation_log_probs_delta[link.carry_len :]
        unordered.append((call.model_call_id, sum(not descends(given) for given in own_logprobs)))
        told = (dict(zip(*pair, strict=True)) for pair in zip(own_ids, own_logprobs, strict=True))
        pairs = zip(tokens, values, told, strict=True)
        others = sum(given.get(token, value) != value for token, value, given in pairs)
        disagreeing.append((call.model_call_id, others))
        ids += [0] * (link.carry_len * width) + [token for candidate in own_ids for token in candidate]
        logprobs += [0.0] * (link.carry_len * width) + [value for candidate in own_logprobs for value in candidate]
    shape_of_row = (len(row.token_ids), width)
    return SampledTokens(
        Tensor.of("int32", ids, shape_of_row),
        Tensor.of("float32", logprobs, shape_of_row),
        tuple(unordered),
        tuple(disagreeing),
    )


def candidates(staged: StagedRow, name: str, shape: tuple[int, ...]) -> list[tuple[Any, ...]]:
    """Return a call's candidates, one tuple of k per generated token."""
    column = staged.topk_ids if name == TOPK_IDS else staged.topk_logprobs
    assert column is not None
    if column.shape != shape:
        expected = f"{list(shape)}, by the call's generated tokens"
        detail = fault(name, list(column.shape), expected)
        raise Rejected(Code.TOPK_LENGTH_MISMATCH, detail, subject=staged.call.model_call_id)
    return column.rows(shape[2])


def check_candidates(
    config: ReassemblerConfig, call_id: str, token_ids: tuple[Any, ...], logprobs: tuple[Any, ...]
) -> None:
    """Check the candidates of one token: ids of the vocabulary, each once, and log-probabilities that can be some.

    Minus infinity is one: a token that the sampler excluded.
    """
    expected = "an id >= 0" if config.vocab_size is None else f"an id in [0, {config.vocab_size})"
    for token in token_ids:
        if token < 0 or (config.vocab_size is not None and token >= config.vocab_size):
            raise Rejected(Code.TOPK_VALUE_RANGE, fault(TOPK_IDS, token, expected), subject=call_id)
    again = first_repeated(token_ids)
    if again is not None:
        raise Rejected(Code.TOPK_VALUE_RANGE, fault(TOPK_IDS, token_ids[again], "distinct ids"), subject=call_id)
    for value in logprobs:
        if math.isnan(value) or value > 0.0:
            detail = fault(TOPK_LOGPROBS, value, "a log-probability, at most 0")
            raise Rejected(Code.TOPK_VALUE_RANGE, detail, subject=call_id)


def descends(logprobs: Sequence[float]) -> bool:
    """Return whether no candidate is more likely than the one before it."""
    return all(before >= after for before, after in pairwise(logprobs))


def row_columns(config: ReassemblerConfig, topk: SampledTokens | None, length: int) -> dict[str, Tensor]:
    """Return the published sampler columns of one row, all zeros for a placeholder; none where none are wanted."""
    if not config.top_logprobs:
        return {}
    if topk is not None:
        return {TOPK_IDS: topk.ids, TOPK_LOGPROBS: topk.logprobs}
    shape = (length, config.top_logprobs)
    zeros = [0] * (length * config.top_logprobs)
    return {TOPK_IDS: Tensor.of("int32", zeros, shape), TOPK_LOGPROBS: Tensor.of("float32", zeros, shape)}
