"""Right variants in the portable areas: other layouts than the spec's, and choices that a policy declares."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from attrs import evolve, frozen

from rollproof.properties.adapters.protocol import Adapter, Refusal
from rollproof.spec.align import align_routes, captured_at, fill_like
from rollproof.spec.judge.requests import KINDS, Area
from rollproof.spec.merge import extends, merge_calls, row_of
from rollproof.spec.portable import Call, Captured, Merged, Policy, RoutedRow, Row

Calls: TypeAlias = Sequence[Call]
Merge: TypeAlias = Callable[[Calls, "int | None", int], Merged]
"""From calls, limit and pad id."""


@frozen
class PortableRight:
    """A right implementation of one portable area: a function of its request's fields, and what it declares."""

    name: str
    sentence: str
    area: Area
    function: Callable[..., Any]
    policies: frozenset[str]


class PortableImplementation(Adapter):
    """A variant as an implementation, under the policies that it declares or under others."""

    def __init__(self, variant: PortableRight, policies: frozenset[str] | None = None) -> None:
        self.name = f"right:{variant.name}"  # type: ignore[misc]
        self.areas = frozenset({variant.area})  # type: ignore[misc]
        self.policies = variant.policies if policies is None else policies  # type: ignore[misc]
        setattr(self, next(kind.method for kind in KINDS if kind.area is variant.area), answered(variant.function))


def answered(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that refuses where the spec does."""

    def method(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except ValueError as error:
            raise Refusal(f"refused: {error}") from None

    return method


# ── merge ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def merging(merge: Merge) -> Callable[..., Merged]:
    """Return a function of all fields of a request."""
    return lambda calls, reward, max_len, pad_id, eos_ids: merge(calls, max_len, pad_id)


def on_rows(change: Callable[[Row, int], Row]) -> Callable[..., Merged]:
    """Change every row of the spec; the change also takes the pad id."""

    def merge(calls: Calls, max_len: int | None, pad_id: int) -> Merged:
        merged = merge_calls(calls, max_len)
        return evolve(merged, rows=tuple(change(row, pad_id) for row in merged.rows))

    return merging(merge)


def dropping(reason: str, chosen: Callable[[Calls], Sequence[int]]) -> Callable[..., Merged]:
    """Leave out calls for a reason that is true of them, and say so."""

    def merge(calls: Calls, max_len: int | None, pad_id: int) -> Merged:
        left_out = chosen(calls)
        kept = [index for index in range(len(calls)) if index not in left_out]
        merged = merge_calls([calls[index] for index in kept], max_len)
        cut = tuple((kept[index], why) for index, why in merged.dropped)
        return Merged(merged.rows, cut + tuple((index, reason) for index in left_out))

    return merging(merge)


def per_call(calls: Calls, max_len: int | None, pad_id: int) -> Merged:
    """Return one row per call."""
    whole = merge_calls(calls, max_len)
    return Merged(tuple(row_of(call, [call], max_len) for call in calls), whole.dropped)


def last_leaf_trains(calls: Calls, max_len: int | None, pad_id: int) -> Merged:
    """Train what rows share in the last of them: merged from the last call on, each after what it extends."""
    merged = merge_calls(calls, max_len)
    leaves = [call for index, call in enumerate(calls) if not any(extends(one, call) for one in calls[index + 1 :])]
    left, rows = list(range(len(calls))), []
    for leaf in reversed(leaves):
        chain = [index for index in left if calls[index] is leaf or extends(leaf, calls[index])]
        chain = [index for at, index in enumerate(chain) if not overlaps(index, chain[at + 1 :], calls)]
        left = [index for index in left if index not in chain]
        rows.append(row_of(leaf, [calls[index] for index in chain], max_len))
    rows += [row_of(calls[index], [calls[index]], max_len) for index in left]
    return Merged(tuple(rows), merged.dropped)


def overlaps(index: int, later: Sequence[int], calls: Calls) -> bool:
    """Return whether a later call of a chain generated some of the same positions."""
    return any(len(calls[one].prompt_ids) < len(calls[index].context) for one in later)


def padded(row: Row, pad_id: int, left: int, right: int) -> Row:
    """Return a row with padding, and the attention that says so."""
    before, after = (0,) * left, (0,) * right
    log_probs = (0.0,) * left + (row.log_probs or ()) + (0.0,) * right
    ids = (pad_id,) * left + row.ids + (pad_id,) * right
    return Row(ids, before + row.mask + after, log_probs, before + (1,) * len(row.ids) + after)


def shifted(row: Row, pad_id: int) -> Row:
    """Return a row whose labels are one position earlier; the first token has none."""
    return evolve(row, mask=(*row.mask[1:], 0), log_probs=(*(row.log_probs or ())[1:], 0.0))


def context_log_probs(calls: Calls, max_len: int | None, pad_id: int) -> Merged:
    """Return one row per call, with the log-probs of the calls that it continues."""
    rows = []
    for call in calls:
        own = row_of(call, [call], max_len)
        chain = [one for one in calls if one is call or (extends(call, one) and one.log_probs is not None)]
        rows.append(evolve(own, log_probs=row_of(call, chain, max_len).log_probs))
    return Merged(tuple(rows), merge_calls(calls, max_len).dropped)


def dead(calls: Calls) -> list[int]:
    """Return the calls that the last one does not continue."""
    return [index for index, call in enumerate(calls[:-1]) if not extends(calls[-1], call)]


def departed(calls: Calls) -> list[int]:
    """Return the calls in whose generation a later prompt departs from them."""
    return [
        index
        for index, call in enumerate(calls)
        if any(
            call.prompt_ids
            and one.prompt_ids[: len(call.prompt_ids) + 1] == call.context[: len(call.prompt_ids) + 1]
            and len(one.prompt_ids) > len(call.prompt_ids)
            and not extends(one, call)
            for one in calls[index + 1 :]
        )
    ]


def from_first_break(calls: Calls) -> Sequence[int]:
    """Return the calls from the first on that does not extend the one before."""
    breaks = [index for index in range(1, len(calls)) if not extends(calls[index], calls[index - 1])]
    return range(breaks[0], len(calls)) if breaks else ()


CUT: Final = frozenset({Policy.OVER_LIMIT})

MERGING: Final = tuple(
    PortableRight(name, sentence, Area.MERGE, function, CUT.union(more))
    for name, sentence, function, more in (
        ("row-per-call", "Every call is a row.", merging(per_call), ()),
        ("last-leaf-trains", "What rows share is trained in the last of them.", merging(last_leaf_trains), ()),
        ("left-padded", "Rows are padded on the left.", on_rows(lambda row, pad: padded(row, pad, 3, 0)), ()),
        ("both-padded", "Rows are padded on both sides.", on_rows(lambda row, pad: padded(row, pad, 1, 2)), ()),
        ("no-log-probs", "Rows have no log-probs.", on_rows(lambda row, _: evolve(row, log_probs=None)), ()),
        ("labels-shifted", "Labels are one position earlier.", on_rows(shifted), (Policy.SHIFTS_LABELS,)),
        ("log-probs-in-context", "Untrained positions keep their log-probs.", merging(context_log_probs),
         (Policy.CONTEXT_LOGPROBS,)),
        ("last-chain", "Dead branches are dropped.", dropping(Policy.DEAD_BRANCH, dead), (Policy.DEAD_BRANCH,)),
        ("drift-dropped", "Calls that drifted are dropped.", dropping(Policy.DRIFT, departed), (Policy.DRIFT,)),
        ("until-it-breaks", "The first call that does not extend ends it.",
         dropping(Policy.EXTEND_ONLY, from_first_break), (Policy.EXTEND_ONLY,)),
    )
)  # fmt: skip


# ── route-align ─────────────────────────────────────────────────────────────────────────────────────────────────────

Captures: TypeAlias = Sequence["Captured | None"]


def aligning(align: Callable[[Calls, Captures], Sequence[RoutedRow]]) -> Callable[..., Sequence[RoutedRow]]:
    """Return a function of all fields of a request."""
    return lambda calls, captures, num_experts, incremental: tuple(align(calls, captures))


def latest_capture(calls: Calls, captures: Captures) -> list[RoutedRow]:
    """Take the last call that captured a position, not the first."""
    fill = fill_like(captures)

    def routes(row: RoutedRow) -> RoutedRow:
        found = [captured_at(at, row.ids[: at + 1], calls, captures) for at in range(len(row.ids))]
        return evolve(row, routes=tuple(one[-1] if one else fill for one in found))

    return [routes(row) for row in align_routes(calls, captures)]


def marked(calls: Calls, captures: Captures) -> list[RoutedRow]:
    """Fill with expert 0, and mark what is filled."""
    fill = fill_like(captures)
    zeros = tuple((0,) * len(layer) for layer in fill)
    return [
        evolve(
            row,
            routes=tuple(zeros if one == fill else one for one in row.routes),
            fill=tuple(int(one == fill) for one in row.routes),
        )
        for row in align_routes(calls, captures)
    ]


def native_last(calls: Calls, captures: Captures) -> list[RoutedRow]:
    """Give the last position the routes of the one before, where there are any."""
    fill = fill_like(captures)
    rows = align_routes(calls, captures)
    return [evolve(row, routes=(*row.routes[:-1], (fill, *row.routes[:-1])[-1])) for row in rows]


def routed_per_call(calls: Calls, captures: Captures) -> list[RoutedRow]:
    """Return one row per call, padded on the left."""
    fill = fill_like(captures)
    rows = [one for call, captured in zip(calls, captures, strict=True) for one in align_routes([call], [captured])]
    whole = [evolve(row, routes=next_best(row, calls, captures)) for row in rows]
    return [
        RoutedRow((0, *row.ids), (0, *row.mask), (fill, *row.routes), attention=(0, *[1] * len(row.ids)))
        for row in whole
    ]


def next_best(row: RoutedRow, calls: Calls, captures: Captures) -> tuple[Any, ...]:
    """Return the routes that any call captured in a row's context."""
    fill = fill_like(captures)
    found = (captured_at(at, row.ids[: at + 1], calls, captures) for at in range(len(row.ids)))
    return tuple(one[0] if one else fill for one in found)


SENTINEL: Final = frozenset({Policy.SENTINEL})

ALIGNING: Final = (
    PortableRight("latest-capture", "The last capture of a position counts.", Area.ROUTE_ALIGN,
                  aligning(latest_capture), SENTINEL),
    PortableRight("fills-marked", "A mask marks fills.", Area.ROUTE_ALIGN,
                  aligning(marked), frozenset({Policy.MARKED})),
    PortableRight("last-position-native", "The last position repeats the one before.", Area.ROUTE_ALIGN,
                  aligning(native_last), SENTINEL | {Policy.LAST_ROW_NATIVE}),
    PortableRight("routed-row-per-call", "Every call is a row, padded on the left.", Area.ROUTE_ALIGN,
                  aligning(routed_per_call), SENTINEL),
)  # fmt: skip

PORTABLE_RIGHT: Final = (*MERGING, *ALIGNING)
"""All variants in the portable areas."""
