"""Putting a request to an implementation, and keeping the result as an answer."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from attrs import fields

from rollproof.properties.adapters.functions import as_plain, as_record
from rollproof.properties.adapters.protocol import Refusal
from rollproof.properties.errors import LeftOut, message_of
from rollproof.properties.strategies.rollouts.staged_calls import NO_DIGEST, call_record, staged_call
from rollproof.spec.digest import prefix_digest
from rollproof.spec.judge.area import PORTABLE
from rollproof.spec.judge.portable import MergedTwice, MergeTwice
from rollproof.spec.judge.requests import KIND_OF, Accepted, Answer, Crashed, LinearizeGrowth, Refused, Request
from rollproof.spec.judge.rules.lineage import MAX_GROWTH
from rollproof.spec.portable import Merged
from rollproof.spec.records import CAPABILITY, Receipt, StagedCall


def ask(implementation: Any, request: Request) -> Answer:
    """Return the answer of ``implementation``. Whatever it raises is an answer too, but what a user interrupts it with.

    ``SystemExit`` too: an implementation that ended the gate with status 0 would have passed. Raises ``LeftOut`` where
    it does not support the request.
    """
    try:
        if isinstance(request, LinearizeGrowth):
            return Accepted(measure_growth(implementation, request))
        if KIND_OF[type(request)].area in PORTABLE:
            return Accepted(portable_value(implementation, request), policies_of(implementation))
        known = fields(type(request))
        arguments = [getattr(request, one.name) for one in known if one.metadata != CAPABILITY]
        # What belongs to a capability has a name, and is not there where it is not asked for.
        asked = {one.name: getattr(request, one.name) for one in known if one.metadata == CAPABILITY}
        options = {one.name: asked[one.name] for one in known if one.name in asked and asked[one.name] != one.default}
        return Accepted(getattr(implementation, KIND_OF[type(request)].method)(*arguments, **options))
    except LeftOut:
        raise
    except Refusal as refusal:
        if isinstance(refusal.reason, str):
            return Refused(refusal.reason)
        return Crashed(TypeError.__name__, f"refused with a {type(refusal.reason).__name__}, expected a string")
    except (Exception, SystemExit) as error:
        return Crashed(type(error).__name__, message_of(error)[:200])


# ── portable areas ──────────────────────────────────────────────────────────────────────────────────────────────────


def policies_of(implementation: Any) -> frozenset[str]:
    """Return the policies that an implementation declares."""
    return frozenset(getattr(implementation, "policies", ()))


def portable_value(implementation: Any, request: Request) -> Any:
    """Return what an implementation answers to a request of a portable area, as records."""
    kind = KIND_OF[type(request)]
    names = [field.name for field in fields(type(request))]
    arguments = [getattr(request, name) for name in names]
    if getattr(implementation, "plain", False):
        arguments = as_plain(arguments)
    before = as_plain(arguments)

    def asked_once(answer: Any) -> Any:
        return as_record(answer, getattr(implementation, kind.method)(*arguments))

    if not isinstance(request, MergeTwice):
        return asked_once(kind.answer)
    first, second = asked_once(Merged), asked_once(Merged)
    pairs = zip(names, before, as_plain(arguments), strict=True)
    return MergedTwice(first, second, next((name for name, was, found in pairs if was != found), None))


# ── how work grows ──────────────────────────────────────────────────────────────────────────────────────────────────


def measure_growth(implementation: Any, request: LinearizeGrowth) -> tuple[int, int]:
    """Count executed Python lines for few and for many calls in one chain of one-token calls.

    Counting stops where the growth is beyond what any linear implementation needs, so that a quadratic one does not
    delay the gate.
    """
    chains = long_chain(request.few), long_chain(request.many)
    few = count_lines(lambda: implementation.linearize(*chains[0]), None)
    limit = int(few * MAX_GROWTH * request.many / request.few) + 1
    return few, count_lines(lambda: implementation.linearize(*chains[1]), limit)


class _EnoughCounted(BaseException):
    """Raised inside the counted call: no ``except Exception`` on the way catches it."""


def count_lines(call: Callable[[], object], limit: int | None) -> int:
    """Count the lines of Python that ``call`` executes, up to ``limit``.

    Without the garbage collector: what it calls back (Hypothesis times it) would count too, now and then.
    """
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        if event == "line":
            count += 1
            if limit is not None and count > limit:
                raise _EnoughCounted
        return trace

    previous, collecting = sys.gettrace(), gc.isenabled()
    gc.disable()
    sys.settrace(trace)
    try:
        call()
    except _EnoughCounted:
        pass
    finally:
        sys.settrace(previous)
        if collecting:
            gc.enable()
    return count


def long_chain(count: int) -> tuple[Receipt, tuple[StagedCall, ...]]:
    """Return a rollout of ``count`` calls, each of one generated token, each the child of the one before."""
    calls: list[StagedCall] = []
    for index in range(count):
        # Only the terminal call's cumulative hash is ever recomputed: one for all keeps the construction linear.
        cumulative_hash = prefix_digest(range(count)) if index == count - 1 else NO_DIGEST
        parent = calls[-1] if calls else None
        calls.append(staged_call((index,), 0, call_id=f"c{index}", parent=parent, cumulative_hash=cumulative_hash))
    manifest = [call_record(call, call.model_call_id) for call in calls]
    receipt = Receipt("r", tuple(manifest), calls[-1].model_call_id, "declared")
    return receipt, tuple(calls)
