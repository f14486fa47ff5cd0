"""One targeted break per reachable rejection code of sections 3 to 5: a valid rollout with one thing wrong.

``BREAKS`` maps an area and a code to a strategy. Every request that it draws must be answered with that code, and with
no other: what else would have become wrong was made right again. ``ordered_breaks`` makes two things wrong, so that the
order of the checks decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from typing import Final

from attrs import frozen
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from rollproof.properties.strategies.breaks.lineage import LINEAGE_EDITS
from rollproof.properties.strategies.breaks.receipt import INVALID_RECEIPTS
from rollproof.properties.strategies.breaks.rollout import HARMLESS, HARMLESS_TO_LINEAGE, ROLLOUT_EDITS
from rollproof.properties.strategies.breaks.row import INVALID_ROWS
from rollproof.properties.strategies.breaks.snapshot import INVALID_SNAPSHOTS
from rollproof.properties.strategies.rollouts.draft import Draft, Edit, Inapplicable, apply
from rollproof.properties.strategies.rollouts.histories import histories
from rollproof.properties.strategies.rollouts.history import History
from rollproof.properties.strategies.rollouts.worked import retried_example
from rollproof.properties.strategies.scalars import CHUNK, Bytes, draw_bytes
from rollproof.properties.strategies.stream import Stream
from rollproof.spec.judge.requests import Area, Request
from rollproof.spec.rejections import Code, Stage
from rollproof.spec.shadowed import SHADOWED_BY, of_rollouts

FINISH: Final[dict[Area, Callable[[Draft], Request]]] = {
    Area.RECEIPT: Draft.parse,
    Area.LINEAGE: Draft.linearize,
    Area.ROLLOUT: Draft.finalize,
}
"""Per area, how to turn a draft into a request."""


@frozen
class Needs:
    """Parts that a history must have for a code's edits to apply."""

    calls: int = 1
    chain: int = 1
    generation: int = 1


NEEDS: Final[dict[Code, Needs]] = {
    Code.DUPLICATE_MANIFEST_ROW: Needs(calls=2),
    Code.REBUILD_DUPLICATE_STAGING_KEY: Needs(calls=2),
    Code.DUPLICATE_STAGING_KEY: Needs(calls=2),
    Code.DUPLICATE_SNAPSHOT: Needs(calls=2),
    Code.SNAPSHOT_ORDER_MISMATCH: Needs(calls=2),
    Code.STAGING_KEY_MISMATCH: Needs(calls=2),
    Code.CALL_ID_MISMATCH: Needs(calls=2),
    Code.LINEAGE_CYCLE: Needs(calls=2),
    Code.WRONG_PARENT_CALL_ID: Needs(calls=2, chain=2),
    Code.WRONG_PREV_LEN: Needs(calls=2, chain=2),
    Code.MISSING_PARENT: Needs(calls=2, chain=2),
    Code.PARENT_LENGTH_MISMATCH: Needs(calls=2, chain=2),
    Code.INVALID_MASK_ORDER: Needs(generation=2),
}


def needed(needs: Needs) -> SearchStrategy[History]:
    """Draw histories that have these parts."""
    return histories(
        min_calls=needs.calls,
        max_calls=max(4, needs.calls),
        min_chain=needs.chain,
        min_generation=needs.generation,
        max_generation=max(3, needs.generation),
    )


@st.composite
def _broken(draw: DrawFn, source: SearchStrategy[History], edits: Sequence[Edit], area: Area) -> Request:
    draft = Draft.of(draw(source))
    decide = draw_bytes(draw)
    apply(decide.choose(edits), draft, decide)
    return FINISH[area](draft)


def broken(area: Area, code: Code) -> SearchStrategy[Request]:
    """Draw requests of ``area`` that must be answered with ``code``."""
    edits = LINEAGE_EDITS[code] if code.stage is Stage.REBUILD else ROLLOUT_EDITS[code]
    return _broken(needed(NEEDS.get(code, Needs())), edits, area)


BREAKS: Final[dict[tuple[Area, Code], Callable[[], SearchStrategy[Request]]]] = {
    (area, code): partial(broken, area, code)
    for area, codes in (
        (Area.RECEIPT, [Code.INVALID_RECEIPT]),
        (Area.LINEAGE, list(LINEAGE_EDITS)),
        (
            Area.ROLLOUT,
            [*ROLLOUT_EDITS, *(code for code in LINEAGE_EDITS if of_rollouts(code))],
        ),
    )
    for code in codes
    if code not in SHADOWED_BY
}
"""Per area and code, the strategy whose requests must be answered with it."""


def reason(area: Area, code: Code) -> str:
    """Return the beginning of the reason that an area gives for a code."""
    if area is Area.ROLLOUT and code.stage is Stage.REBUILD:
        return f"{Code.REBUILD_FAILED.code}:{code.code}"
    return code.code


# ── two at once, and harmless ones ──────────────────────────────────────────────────────────────────────────────────

_DIRECT: Final = tuple(LINEAGE_EDITS.values())
IN_ROLLOUTS: Final[tuple[tuple[Edit, ...], ...]] = tuple(
    edits
    for code, edits in {**LINEAGE_EDITS, **ROLLOUT_EDITS}.items()
    if of_rollouts(code) and code not in (Code.MISSING_RECEIPT, Code.INVALID_RECEIPT)
)
"""Per code that a rollout with a readable receipt can be rejected with, its edits."""


def try_edits(draft: Draft, edits: Sequence[Edit], decide: Bytes) -> None:
    """Apply the edits that still apply: an earlier one may have left no number to add to, or no string to extend."""
    for place, edit in enumerate(edits):
        try:
            edit(draft, decide)
        except Inapplicable:
            continue
        except (AttributeError, LookupError, TypeError, ValueError):
            if place == 0:
                raise


@st.composite
def _ordered(draw: DrawFn, area: Area, edits: Sequence[Sequence[Edit]], last: Sequence[Edit]) -> Request:
    draft = Draft.of(draw(histories(min_calls=2, max_calls=4, max_generation=3)))
    decide = draw_bytes(draw)
    chosen = [decide.choose(decide.choose(edits)), decide.choose(decide.choose(edits))]
    if decide.chance(48):
        chosen.append(decide.choose(last))
    try_edits(draft, chosen, decide)
    return FINISH[area](draft)


def ordered_breaks(area: Area) -> SearchStrategy[Request]:
    """Draw requests with two or three things wrong, on one call or several: the first check that fails wins.

    Areas lineage and rollout. No code is promised; the contract's answer decides.
    """
    if area is Area.LINEAGE:
        return _ordered(area, _DIRECT, INVALID_SNAPSHOTS)
    return _ordered(area, IN_ROLLOUTS, INVALID_RECEIPTS)


def harmless(area: Area) -> SearchStrategy[Request]:
    """Draw requests of a rollout that is unusual in a way that no rule forbids."""
    edits = HARMLESS if area is Area.ROLLOUT else HARMLESS_TO_LINEAGE
    return _broken(histories(min_calls=2, min_chain=1), edits, area)


DECISIONS: Final = tuple(bytes([value]) * CHUNK for value in (0, 1, 2, 255))
"""What the listed edits are decided by: the first of all options, the second, the third, and whatever has a chance."""


def each_edit(area: Area) -> Iterator[Request]:
    """Yield the retried example under every edit of every code of an area, and every harmless one, decided a few ways.

    The draws of one code choose among its edits; these leave out none, at any seed.
    """
    edits = {Area.LINEAGE: LINEAGE_EDITS, Area.ROLLOUT: {**LINEAGE_EDITS, **ROLLOUT_EDITS}}[area]
    breaking = [edit for code, each in edits.items() if (area, code) in BREAKS for edit in each]
    made: list[Request] = []
    retried = retried_example()
    for edit, decision in product((*breaking, *(HARMLESS if area is Area.ROLLOUT else HARMLESS_TO_LINEAGE)), DECISIONS):
        draft = Draft.of(retried)
        try:
            edit(draft, Bytes(decision))
        except Inapplicable:
            continue
        request = FINISH[area](draft)
        if request not in made:
            made.append(request)
            yield request


MANY_WAYS: Final = {Area.RECEIPT: (Code.INVALID_RECEIPT, 2.0), Area.LINEAGE: (Code.INVALID_SNAPSHOT, 2.0)}
"""Codes with so many causes that the few examples of one code's stream cannot show them all."""


def break_streams(area: Area) -> Iterator[Stream]:
    """Yield one stream per code of an area, and more for the code that has the most causes."""
    for (where, code), make in BREAKS.items():
        if where is area:
            yield Stream(f"break:{code.stage}:{code.code}", area, make(), codes=(reason(area, code),))
    if area in MANY_WAYS:
        code, weight = MANY_WAYS[area]
        yield Stream(f"break:all:{code.code}", area, BREAKS[area, code](), weight)
    for edit in INVALID_ROWS if area is Area.ROLLOUT else ():
        yield Stream(f"break:row:{edit.__name__}", area, _broken(needed(Needs()), (edit,), area), 0.2)
