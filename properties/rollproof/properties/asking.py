"""Putting a request to an implementation, and keeping whatever comes back as an answer."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from attrs import evolve, fields

from rollproof.properties.protocol import METHODS, LeftOut, Refusal
from rollproof.spec.constants import MODE_TEXT, MODE_TOKEN_IN
from rollproof.spec.digest import call_digest, chain_digest, extras_digest, prefix_digest
from rollproof.spec.records import CallRecord, Receipt, StagedCall
from rollproof.spec.requests import Accepted, Answer, Crashed, LinearizeGrowth, Refused, Request
from rollproof.spec.rules.lineage import MAX_GROWTH
from rollproof.spec.values import owned_key


def ask(implementation: Any, request: Request) -> Answer:
    """What ``implementation`` answers. Whatever it raises is an answer too, except to stop the program.

    Raises ``LeftOut`` where it cannot be asked.
    """
    try:
        if isinstance(request, LinearizeGrowth):
            return Accepted(measure_growth(implementation, request))
        arguments = [getattr(request, field.name) for field in fields(type(request))]
        return Accepted(getattr(implementation, METHODS[type(request)])(*arguments))
    except LeftOut:
        raise
    except Refusal as refusal:
        return Refused(refusal.reason)
    except Exception as error:
        return Crashed(type(error).__name__, f"{error}"[:200])


# ── how work grows ──────────────────────────────────────────────────────────────────────────────────────────────────


def measure_growth(implementation: Any, request: LinearizeGrowth) -> tuple[int, int]:
    """Executed Python lines for few and for many calls in one chain of one-token calls.

    Counting stops where the growth is beyond what any linear implementation needs, so that a quadratic one does not
    hold the gate up.
    """
    chains = long_chain(request.few), long_chain(request.many)
    few = count_lines(lambda: implementation.linearize(*chains[0]), None)
    limit = int(few * MAX_GROWTH * request.many / request.few) + 1
    return few, count_lines(lambda: implementation.linearize(*chains[1]), limit)


class _EnoughCounted(BaseException):
    """Raised inside the counted call: no ``except Exception`` on the way holds it."""


def count_lines(call: Callable[[], object], limit: int | None) -> int:
    """How many lines of Python ``call`` executes, counted up to ``limit``."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        if event == "line":
            count += 1
            if limit is not None and count > limit:
                raise _EnoughCounted
        return trace

    previous = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except _EnoughCounted:
        pass
    finally:
        sys.settrace(previous)
    return count


def long_chain(count: int) -> tuple[Receipt, tuple[StagedCall, ...]]:
    """A rollout of ``count`` calls, each of one generated token, each the child of the one before."""
    calls: list[StagedCall] = []
    manifest: list[CallRecord] = []
    nothing = extras_digest(None)
    for index in range(count):
        parent = calls[-1] if calls else None
        call = StagedCall(
            rollout_id="r",
            model_call_id=f"c{index}",
            parent_call_id=None if parent is None else parent.model_call_id,
            mode=MODE_TEXT if parent is None else MODE_TOKEN_IN,
            prev_len=index,
            delta_len=1,
            cum_len=index + 1,
            weight_version=0,
            token_ids_delta=(index,),
            token_mask_delta=(1.0,),
            generation_log_probs_delta=(-0.5,),
            extras_digest=nothing,
            chain_hash=chain_digest(None if parent is None else parent.chain_hash, (index,)),
            # Only the terminal call's is ever recomputed: one for all keeps the construction linear.
            cumulative_hash=prefix_digest(range(count)) if index == count - 1 else "0" * 64,
            digest="0" * 64,
        )
        call = evolve(call, digest=call_digest(call))
        calls.append(call)
        manifest.append(
            CallRecord(
                model_call_id=call.model_call_id,
                parent_call_id=call.parent_call_id,
                prev_len=call.prev_len,
                delta_len=call.delta_len,
                cum_len=call.cum_len,
                weight_version=call.weight_version,
                digest=call.digest,
                extras_digest=call.extras_digest,
                staging_key=owned_key(call.rollout_id, call.model_call_id),
                chain_hash=call.chain_hash,
                cumulative_hash=call.cumulative_hash,
                response_id=call.model_call_id,
                mode=call.mode,
            )
        )
    receipt = Receipt("r", tuple(manifest), calls[-1].model_call_id, "declared")
    return receipt, tuple(calls)
