"""Mutants of the sampler columns (section 12)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from attrs import evolve

from rollproof.properties.mutants.mutant import Mutant, patches, remembering
from rollproof.spec.constants import TOPK_COLUMNS, TOPK_IDS, TOPK_LOGPROBS
from rollproof.spec.rejections import Code, Rejected
from rollproof.spec.tensor import Tensor


def changed(change: Callable[[Any, Any, Any], Any]) -> Any:
    """Change the candidates of a row, given the row and its chain."""

    def replacement(rollout_topk: Any) -> Any:
        return lambda config, row, chain: change(rollout_topk(config, row, chain), row, chain)

    return replacement


def packed_left(topk: Any, row: Any, _: Any) -> Any:
    """Put the candidates of the generated tokens at the beginning of the row, where the carry is."""
    width = topk.ids.shape[1]
    kept = [at for at, mark in enumerate(row.token_mask) if mark == 1.0]

    def moved(column: Tensor) -> Tensor:
        values = column.values()
        own = [value for at in kept for value in values[at * width : (at + 1) * width]]
        return Tensor.of(column.dtype, own + [0] * (len(values) - len(own)), column.shape)

    return evolve(topk, ids=moved(topk.ids), logprobs=moved(topk.logprobs))


def reversed_candidates(topk: Any, row: Any, _: Any) -> Any:
    """List candidates from the least likely one on, ids only."""
    width, values = topk.ids.shape[1], topk.ids.values()
    ids = [value for at in range(0, len(values), width) for value in values[at : at + width][::-1]]
    return evolve(topk, ids=Tensor.of("int32", ids, topk.ids.shape))


def certain_carry(topk: Any, row: Any, _: Any) -> Any:
    """Say of every carried token that it was certain."""
    width, ids = topk.ids.shape[1], list(topk.ids.values())
    for at, (token, mark) in enumerate(zip(row.token_ids, row.token_mask, strict=True)):
        if mark == 0.0:
            ids[at * width] = token % 2**31
    return evolve(topk, ids=Tensor.of("int32", ids, topk.ids.shape))


def of_dead_branches() -> dict[str, Any]:
    """Take candidates from the manifest's calls one after the other, on the chain or not."""
    staged: list[Any] = []

    def from_all(topk: Any, row: Any, _: Any) -> Any:
        def column(name: str, own: Tensor) -> Tensor:
            values: list[Any] = []
            for each in staged:
                found = each.topk_ids if name == TOPK_IDS else each.topk_logprobs
                carry = each.call.token_mask_delta.count(0.0)
                values += [0] * (carry * own.shape[1]) + list(found.values())
            return Tensor.of(own.dtype, (values + [0] * own.count)[: own.count], own.shape)

        return evolve(topk, ids=column(TOPK_IDS, topk.ids), logprobs=column(TOPK_LOGPROBS, topk.logprobs))

    return patches(rollout__rebuild=remembering(staged), sampler__rollout_topk=changed(from_all))


def tolerating(code: Code) -> Any:
    """Let candidates pass that a check refuses."""

    def replacement(check: Any) -> Any:
        def wrong(*arguments: Any) -> None:
            try:
                check(*arguments)
            except Rejected as rejected:
                if rejected.code is not code:
                    raise

        return wrong

    return replacement


def placeholder_of(value: int) -> Any:
    """Fill placeholder rows with something else than zeros."""

    def replacement(row_columns: Any) -> Any:
        def wrong(config: Any, topk: Any, length: int) -> Any:
            columns = row_columns(config, topk, length)
            if topk is not None or not columns:
                return columns
            ids = columns[TOPK_IDS]
            return {**columns, TOPK_IDS: Tensor.of("int32", [value] * ids.count, ids.shape)}

        return wrong

    return replacement


def as_int64(row_columns: Any) -> Any:
    """Publish ids as int64."""

    def wrong(config: Any, topk: Any, length: int) -> Any:
        columns = row_columns(config, topk, length)
        return {
            name: Tensor.of("int64", column.values(), column.shape) if name == TOPK_IDS else column
            for name, column in columns.items()
        }

    return wrong


def read_apart(fetch: Any) -> Any:
    """Read the sampler columns once more, on their own."""

    def wrong(config: Any, receipt: Any, plane: Any) -> Any:
        staged = fetch(config, receipt, plane)
        if config.top_logprobs:
            plane.get(config.staging_partition, [each.key for each in staged], tuple(TOPK_COLUMNS))
        return staged

    return wrong


def as_float16(topk: Any, row: Any, _: Any) -> Any:
    """Pass log-probabilities through a narrower type, of placeholders not."""
    values = [round(value, 1) if value > float("-inf") else value for value in topk.logprobs.values()]
    return evolve(topk, logprobs=Tensor.of("float32", values, topk.logprobs.shape))


MUTANTS: Final = (
    Mutant(
        "candidates-shifted-by-the-carry",
        "SAMPLER-1",
        "contract section 12",
        "The candidates of the generated tokens are at the beginning of the row, where the carry is.",
        patches(sampler__rollout_topk=changed(packed_left)),
    ),
    Mutant(
        "candidates-of-dead-branches",
        "SAMPLER-1",
        "contract section 12",
        "Candidates are taken from the manifest in order, dead branches included.",
        of_dead_branches(),
    ),
    Mutant(
        "candidates-reversed",
        "SAMPLER-1",
        "contract section 12",
        "Ids and log-probabilities are listed in opposite orders.",
        patches(sampler__rollout_topk=changed(reversed_candidates)),
    ),
    Mutant(
        "candidate-logprobs-narrowed",
        "SAMPLER-7",
        "contract section 12",
        "Log-probabilities of candidates pass through a narrower type.",
        patches(sampler__rollout_topk=changed(as_float16)),
    ),
    Mutant(
        "carry-reads-as-certain",
        "SAMPLER-2",
        "contract section 12",
        "A carried token is its own candidate with log-probability 0, as if it had been sampled with certainty.",
        patches(sampler__rollout_topk=changed(certain_carry)),
    ),
    Mutant(
        "placeholder-has-candidates",
        "SAMPLER-2",
        "contract section 12",
        "Placeholder rows have candidates.",
        patches(sampler__row_columns=placeholder_of(1)),
    ),
    Mutant(
        "candidates-in-int64",
        "SAMPLER-3",
        "contract section 12",
        "Candidates are published as int64.",
        patches(sampler__row_columns=as_int64),
    ),
    Mutant(
        "candidates-read-apart",
        "SAMPLER-4",
        "contract section 12",
        "Sampler columns take a read of their own.",
        patches(rollout__fetch=read_apart),
    ),
    Mutant(
        "candidate-values-unchecked",
        "SAMPLER-5",
        "contract decision D30",
        "Ids below 0 or listed twice, NaN and positive log-probabilities pass.",
        patches(sampler__check_candidates=tolerating(Code.TOPK_VALUE_RANGE)),
    ),
    Mutant(
        "candidates-checked-by-sign-only",
        "SAMPLER-5",
        "contract decision D30",
        "An id that the vocabulary does not have passes.",
        patches(
            sampler__check_candidates=lambda check: lambda config, *rest: check(evolve(config, vocab_size=None), *rest)
        ),
    ),
    Mutant(
        "unordered-candidates-uncounted",
        "SAMPLER-6",
        "contract section 12",
        "Candidates that do not descend are not counted.",
        patches(sampler__descends=lambda _: lambda _logprobs: True),
    ),
    Mutant(
        "disagreement-uncounted",
        "SAMPLER-6",
        "contract section 12",
        "A sampled token with another log-probability among its candidates is not counted.",
        patches(sampler__rollout_topk=changed(lambda topk, _row, _chain: evolve(topk, disagreeing=()))),
    ),
)
