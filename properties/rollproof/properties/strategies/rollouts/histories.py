"""Strategies for valid rollouts.

Small by default, and small when shrunk: rollout "r", calls "c0", "c1", …, token ids 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from attrs import evolve
from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument
from hypothesis.strategies import DrawFn, SearchStrategy

from rollproof.properties.strategies import scalars as values
from rollproof.properties.strategies.rollouts.history import Call, History, redigest, rehash
from rollproof.properties.strategies.rollouts.staged_calls import NO_DIGEST
from rollproof.properties.strategies.scalars import (
    CALL_IDS,
    EXTRAS,
    Bytes,
    check_range,
    draw_bytes,
    json_text,
    log_prob,
    token_id,
    weight_version,
)
from rollproof.spec.constants import MODE_TEXT, MODE_TOKEN_IN, TERMINAL_SELECTIONS
from rollproof.spec.digest import prefix_digest
from rollproof.spec.records import StagedCall
from rollproof.spec.values import is_rollout_id

__all__ = ["NO_DIGEST", "Call", "History", "histories", "redigest", "rehash"]

ADMISSIONS: Final[tuple[float | None, ...]] = (0, 1, 1, 0.5, 1.5, -1, 1e300, 5e-324, 1735689600.25, 2**60, None)


@st.composite
def _histories(
    draw: DrawFn,
    rollout_id: str | SearchStrategy[str] | None,
    min_calls: int,
    max_calls: int,
    min_chain: int,
    max_carry: int,
    min_generation: int,
    max_generation: int,
    extras: SearchStrategy[Any] | None,
) -> History:
    count = draw(st.integers(min_calls, max_calls)) if min_calls < max_calls else min_calls
    decide = draw_bytes(draw, 20 + 2 * count)
    if rollout_id is None:
        owner = values.rollout_id(decide)
    else:
        owner = rollout_id if isinstance(rollout_id, str) else draw(rollout_id)
    name = call_names(decide)
    stamps = decide.chance(96)
    fingerprints = decide.chance(48)
    made: list[Call] = []
    for index in range(count):
        made.append(
            draw_call(
                draw_bytes(draw, 8 + 4 * (max_carry + max_generation)),
                made,
                owner,
                name(index),
                chained=index < min_chain,
                max_carry=max_carry,
                min_generation=min_generation,
                max_generation=max_generation,
                extras=None if extras is None else (draw(extras),),
            )
        )
    terminal = made[-1 - decide.below(count)] if decide.chance(96) else made[-1]
    spelling = decide.next() << 16 | decide.next() << 8 | decide.next()
    history = History(
        rollout_id=owner,
        calls=tuple(finish(call, decide, stamps, fingerprints) for call in shuffled(made, decide)),
        terminal_call_id=terminal.id,
        terminal_selection=decide.choose(TERMINAL_SELECTIONS),
        terminal_attribution_reason=decide.choose((None, None, "", "declared", "content: witness_disagreement")),
        reward=decide.choose((None, None, 0, 1.0, -0.5, 1e300)),
        spelling=spelling,
    )
    return rehash(history)


def call_names(decide: Bytes) -> Callable[[int], str]:
    """Return how this rollout names its calls: a function from index to id."""
    if not decide.chance(96):
        return CALL_IDS[0]
    if not decide.chance(32):
        return decide.choose(CALL_IDS)
    base = json_text(decide)
    return lambda index: f"{base}{index}"


def draw_call(
    decide: Bytes,
    made: list[Call],
    rollout_id: str,
    call_id: str,
    *,
    chained: bool,
    max_carry: int,
    min_generation: int,
    max_generation: int,
    extras: tuple[Any] | None,
) -> Call:
    """Return one more call: it continues the last one, another one, or none, or is made again from the same prompt."""
    link = decide.next()
    model: Call | None = None
    parent = made[-1] if made else None
    if made and not chained:
        if link >= 208:
            model = made[decide.below(len(made))]
            parent_id = model.staged.parent_call_id
            parent = None if parent_id is None else next(call for call in made if call.id == parent_id)
        elif link >= 160:
            parent = None
        elif link >= 96:
            parent = made[decide.below(len(made))]
    carry = decide.below(max_carry + 1)
    generation = min_generation + decide.below(max_generation - min_generation + 1)
    version = weight_version(decide)
    own_extras = decide.choose(EXTRAS) if extras is None else extras[0]
    ids = tuple(token_id(decide) for _ in range(carry + generation))
    silent = decide.chance(16)
    values = (0.0,) * carry + tuple(0.0 if silent else log_prob(decide) for _ in range(generation))
    mask = (0.0,) * carry + (1.0,) * generation
    if model is not None:
        source = model.staged
        ids, mask = source.token_ids_delta, source.token_mask_delta
        values = source.generation_log_probs_delta
    prev_len = 0 if parent is None else parent.staged.cum_len
    staged = StagedCall(
        rollout_id=rollout_id,
        model_call_id=call_id,
        parent_call_id=None if parent is None else parent.id,
        mode=MODE_TEXT if parent is None else MODE_TOKEN_IN,
        prev_len=prev_len,
        delta_len=len(ids),
        cum_len=prev_len + len(ids),
        weight_version=version,
        token_ids_delta=ids,
        token_mask_delta=mask,
        generation_log_probs_delta=values,
        extras_digest=NO_DIGEST,
        chain_hash=NO_DIGEST,
        cumulative_hash=NO_DIGEST,
        digest=NO_DIGEST,
    )
    return Call(staged, own_extras, response_id=f"resp-{len(made)}")


def finish(call: Call, decide: Bytes, stamps: bool, fingerprints: bool) -> Call:
    """Return the call with the fields that only the manifest has."""
    if not stamps and not fingerprints:
        return call
    stamp = decide.choose(ADMISSIONS) if stamps else None
    if not fingerprints:
        return evolve(call, admitted_at=stamp)
    return evolve(
        call,
        admitted_at=stamp,
        output_fingerprint=prefix_digest(call.staged.token_ids_delta),
        continuation_fingerprint=None if call.staged.parent_call_id is None else NO_DIGEST,
        fingerprint_version=1,
    )


def shuffled(calls: list[Call], decide: Bytes) -> list[Call]:
    """Return the calls in manifest order: as made, or in any other order."""
    if not decide.chance(112):
        return calls
    rest, order = list(calls), []
    while rest:
        order.append(rest.pop(decide.below(len(rest))))
    return order


def histories(
    *,
    rollout_id: str | SearchStrategy[str] | None = None,
    min_calls: int = 1,
    max_calls: int = 5,
    min_chain: int = 1,
    max_carry: int = 3,
    min_generation: int = 1,
    max_generation: int = 3,
    extras: SearchStrategy[Any] | None = None,
) -> SearchStrategy[History]:
    """Draw valid rollouts.

    Several roots, branches, dead branches, retries with equal tokens, falling weight versions, empty prompts, calls of
    one token, any finite log-probabilities, unusual ids, a manifest in any order, and a terminal that may be any call.

    Args:
        rollout_id: The rollout id, or a strategy for it; by default any valid one, "r" first.
        min_calls: Fewest calls.
        max_calls: Most calls.
        min_chain: So many first calls each continue the one before, which makes them one chain.
        max_carry: Most carry tokens of a call.
        min_generation: Fewest generated tokens of a call.
        max_generation: Most generated tokens of a call.
        extras: Strategy for a call's extras; by default a small choice of JSON objects and null.
    """
    check_range("calls", min_calls, max_calls, 1)
    check_range("carry", 0, max_carry, 0)
    check_range("generation", min_generation, max_generation, 1)
    check_range("chain", 1, min_chain, 1)
    if min_chain > min_calls:
        raise InvalidArgument(f"expected min_chain <= min_calls, got {min_chain} and {min_calls}")
    if max(max_carry, max_generation, max_calls) > 255:
        raise InvalidArgument("expected at most 255 calls, carry tokens and generated tokens")
    if isinstance(rollout_id, str) and not is_rollout_id(rollout_id):
        raise InvalidArgument(f'expected a non-empty rollout_id without "/", got {rollout_id!r}')
    return _histories(rollout_id, min_calls, max_calls, min_chain, max_carry, min_generation, max_generation, extras)
