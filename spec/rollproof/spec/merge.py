"""Turning the calls of a rollout into training rows (section 14): one right way among many.

Every call that no later call continues ends a row: its context, with the generations of all calls on the way. What two
rows share is trained in the first.
"""

from __future__ import annotations

from collections.abc import Sequence

from rollproof.spec.portable import Call, Merged, Policy, Row


def merge_calls(calls: Sequence[Call], max_len: int | None = None) -> Merged:
    """Return one row per call that nothing continues, cut at ``max_len`` tokens; rows that train nothing are left out.

    Raises ``ValueError`` for a call with another number of log-probs than generated tokens.
    """
    for index, call in enumerate(calls):
        check_log_probs(call, f"calls[{index}]")
    parents = [parent_of(index, calls) for index in range(len(calls))]
    trained: set[int] = set()
    rows = []
    for leaf in range(len(calls)):
        if leaf not in parents:
            chain = chain_to(leaf, parents)
            row = row_of(calls[leaf], [calls[index] for index in chain if index not in trained], max_len)
            trained.update(chain)
            if any(row.mask):
                rows.append(row)
    cut = [index for index, call in enumerate(calls) if max_len is not None and len(call.context) > max_len]
    return Merged(tuple(rows), tuple((index, Policy.OVER_LIMIT.value) for index in cut))


def check_log_probs(call: Call, where: str) -> None:
    """Raise ``ValueError`` where a call has log-probs, but not one per generated token."""
    if call.log_probs is not None and len(call.log_probs) != len(call.generated_ids):
        expected = f"{len(call.generated_ids)}, one per generated token"
        raise ValueError(f"{where}.log_probs: got {len(call.log_probs)} values, expected {expected}")


def parent_of(index: int, calls: Sequence[Call]) -> int | None:
    """Return the earlier call with the longest context that this call's prompt begins with, the first of equal ones."""
    continued = [earlier for earlier in range(index) if extends(calls[index], calls[earlier])]
    return max(continued, key=lambda earlier: len(calls[earlier].context), default=None)


def extends(call: Call, earlier: Call) -> bool:
    """Return whether a call's prompt begins with the whole context of an earlier one."""
    return call.prompt_ids[: len(earlier.context)] == earlier.context


def chain_to(leaf: int, parents: Sequence[int | None]) -> list[int]:
    """Return the calls from the first to ``leaf``, each the parent of the next."""
    chain: list[int] = []
    current: int | None = leaf
    while current is not None:
        chain.insert(0, current)
        current = parents[current]
    return chain


def row_of(last: Call, trained: Sequence[Call], max_len: int | None) -> Row:
    """Return the row that ends with ``last``, in which the generations of ``trained`` are trained."""
    mask = [0] * len(last.context)
    log_probs: list[float | None] = [0.0] * len(last.context)
    for call in trained:
        start, end = len(call.prompt_ids), len(call.context)
        mask[start:end] = [1] * (end - start)
        log_probs[start:end] = call.log_probs if call.log_probs is not None else [None] * (end - start)
    return Row(last.context[:max_len], tuple(mask[:max_len]), tuple(log_probs[:max_len]))
