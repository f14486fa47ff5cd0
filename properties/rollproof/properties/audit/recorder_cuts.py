"""Recording generation cuts: what a ``CutStore`` was asked, what it read and wrote, and what it answered.

A line is complete by itself. Its request holds the call so far: where the durable part of it was cut does not matter to
what follows, so that it is as if every chunk but the last one held one token.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

import torch
from attrs import evolve, frozen

from rollproof.impl.chunks import parse_cut_key, without_routes
from rollproof.impl.cut_checks import UNDER_WAY
from rollproof.impl.cuts import Completed, CutStore, Generation, Restored, _Snapshot
from rollproof.impl.digest import extras_digest
from rollproof.impl.retained import CallMedia, cut_extras, default_scheme
from rollproof.properties.adapters.tensors import from_torch
from rollproof.properties.audit import COMPLETION, CUT, RESTORE
from rollproof.properties.audit.columns import Store, has_bytes
from rollproof.properties.audit.recorded_call import Call, current, guarded
from rollproof.properties.errors import message_of
from rollproof.properties.wire.codec import dump, dump_record
from rollproof.spec.constants import MEDIA_DIGEST_FIELDS, MEDIA_SHA256
from rollproof.spec.cut_records import CutOrder, DurableFailure, DurablePrefix, RunningCall
from rollproof.spec.judge.cuts import CutStep, PlayCuts, RestoreCut, RestoredCut, RestoredRoutes, Tail
from rollproof.spec.judge.staging import Staging
from rollproof.spec.judge.views import Entry
from rollproof.spec.rejections import Rejected
from rollproof.spec.tensor import Tensor

APPENDED: Final = "tokens were appended meanwhile"
NO_TENSORS: Final = "media without tensors, or not those of the cut"
"""Why an answer is not judged: what the store saw is not known, or no request says it."""

T = TypeVar("T")
Write: TypeAlias = Callable[[str, Call, dict[str, str]], None]
"""Writes one line: its kind, what was done meanwhile, and its own members as JSON."""


@frozen(eq=False)
class Media:
    """What the first cut of a call hashed, and how."""

    handed: CallMedia | None
    scheme: str


class WatchedCuts:
    """A cut store over another one, which records the five methods; everything else is the inner store's own."""

    def __init__(self, store: CutStore, inline_bytes: int, write: Write) -> None:
        self._store, self._inline_bytes, self._write = store, inline_bytes, write
        self._media: WeakKeyDictionary[Generation, Media] = WeakKeyDictionary()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def cut(
        self, generation: Generation, order: CutOrder, media: CallMedia | None = None
    ) -> DurablePrefix | DurableFailure:
        """Make one call durable, and record that."""
        (answer,) = self.cut_all([(generation, order, media)])
        return answer

    def cut_all(
        self, cuts: Sequence[tuple[Generation, CutOrder, CallMedia | None]]
    ) -> list[DurablePrefix | DurableFailure]:
        """Make calls durable with one put, and record that as one line."""
        noted = Call(Store(self._inline_bytes))
        asked: list[tuple[_Snapshot, PlayCuts, bool]] = []
        with guarded(noted):
            asked = [self._cut_request(*one) for one in cuts]

        def described(answers: list[DurablePrefix | DurableFailure]) -> dict[str, Any]:
            pairs = zip(cuts, asked, answers, strict=True)
            return {"cuts": [describe_cut(cut[0], *one, answer) for cut, one, answer in pairs]}

        return self._recorded(CUT, noted, {}, lambda: self._store.cut_all(cuts), described)

    def restore(
        self, call: RunningCall, acknowledged: DurablePrefix, *, weight_version: int, fresh: CallMedia | None = None
    ) -> Restored:
        """Take up a call that was cut, and record that."""
        noted = Call(Store(self._inline_bytes))
        line: dict[str, Any] = {}
        with guarded(noted):
            held = fresh or CallMedia()
            entries = None if held.tensors is None else tuple(Entry(*one) for one in named(held.tensors).items())
            request = RestoreCut(plain(call), acknowledged, Staging(), weight_version, held.spans, entries)
            line["request"] = dump(request)

        def described(restored: Restored) -> dict[str, Any]:
            self._media[restored.generation] = Media(restored.media, first_scheme(restored.generation, restored.media))
            return {"result": dump_record(describe_restored(restored, fresh))}

        def action() -> Restored:
            return self._store.restore(call, acknowledged, weight_version=weight_version, fresh=fresh)

        return self._recorded(RESTORE, noted, line, action, described)

    def complete(
        self,
        generation: Generation,
        model_call_id: str,
        media: CallMedia | None = None,
        *,
        routes: torch.Tensor | None = None,
        prefills: Sequence[tuple[int, int]] = (),
    ) -> Completed:
        """Stage a call's final row and clear its chunks, and record that."""

        def action() -> Completed:
            return self._store.complete(generation, model_call_id, media, routes=routes, prefills=prefills)

        def own_routes() -> dict[str, Any]:
            if routes is None:
                return {}
            start = len(generation.call.carry_ids)
            ranges = tuple((int(first), int(last)) for first, last in prefills)
            request = RestoredRoutes(from_torch(routes), start, start + generation.restored, ranges)
            return {"routes": dump(request)}

        return self._ended(generation, model_call_id, media, action, lambda done: done.failed_clears, own_routes)

    def abandon(self, generation: Generation) -> int:
        """Clear the chunks of a call that nobody restores any more, and record that."""
        return self._ended(generation, None, None, lambda: self._store.abandon(generation), int, dict)

    # ── requests ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _cut_request(
        self, generation: Generation, order: CutOrder, media: CallMedia | None
    ) -> tuple[_Snapshot, PlayCuts, bool]:
        """Return what a cut sees of a call, as a request, and whether that says all of it."""
        now = _Snapshot.of(generation)
        ids, log_probs = pending(now)
        step = CutStep(ids, log_probs, now.text, now.version or 0, order)
        known = self._known(generation, media)
        steps = (*earlier(generation, now), step)
        return now, self._play(generation, steps, None, known.handed, known.scheme), sayable(known.handed)

    def _known(self, generation: Generation, media: CallMedia | None) -> Media:
        """Return the media that a call's first chunk has a digest of; later cuts need not name them."""
        if not generation.keys:
            known = Media(media, self.scheme or default_scheme(None if media is None else media.tensors))
        else:
            known = self._media.get(generation) or Media(media, first_scheme(generation, media))
        self._media[generation] = known
        return known

    def _play(
        self,
        generation: Generation,
        steps: tuple[CutStep, ...],
        tail: Tail | None,
        media: CallMedia | None,
        scheme: str,
    ) -> PlayCuts:
        dtype = self.media_pixel_dtype
        return PlayCuts(
            plain(generation.call),
            steps,
            tail,
            [] if media is None else media.spans,
            None if media is None or media.tensors is None else named(media.tensors),
            None if dtype is None else str(dtype).removeprefix("torch."),
            scheme,
        )

    def _ended(
        self,
        generation: Generation,
        model_call_id: str | None,
        media: CallMedia | None,
        action: Callable[[], T],
        failed_clears: Callable[[T], int],
        routes: Callable[[], dict[str, Any]],
    ) -> T:
        """Record how a call ends: with a final row, or with none where there is no ``model_call_id``."""
        noted = Call(Store(self._inline_bytes))
        before, line = len(generation.token_ids), routes_line(noted, routes)

        def described(done: T | None) -> dict[str, Any]:
            now = _Snapshot.of(generation)  # after a cut that was under way
            tail = None if model_call_id is None else Tail(model_call_id, *pending(now), now.version or 0)
            known = self._known(generation, media)
            given = known.handed if tail is None else media
            request = self._play(generation, earlier(generation, now), tail, given, known.scheme)
            values: dict[str, Any] = {"request": dump(request)}
            if len(now.ids) != before:
                values["unjudged"] = APPENDED
            elif not sayable(given) or (given is None) != (known.handed is None):
                values["unjudged"] = NO_TENSORS
            return values if done is None else values | {"result": failed_clears(done)}

        return self._recorded(COMPLETION, noted, line, action, described)

    def _recorded(
        self,
        kind: str,
        noted: Call,
        line: dict[str, Any],
        action: Callable[[], T],
        described: Callable[[Any], dict[str, Any]],
    ) -> T:
        """Do it, and write a line about it."""
        line["partition"] = self._store.staging_partition
        try:
            with current(noted):
                answer = action()
        except Exception as error:
            with guarded(noted):
                if kind == CUT:
                    raise  # a cut answers, whatever happens
                line |= described(None) if kind == COMPLETION else {}
                line["failure"] = describe_raised(error, noted)
            self._write(kind, noted, {name: json.dumps(value) for name, value in line.items()})
            raise
        with guarded(noted):
            line |= described(answer)
        self._write(kind, noted, {name: json.dumps(value) for name, value in line.items()})
        return answer


def routes_line(noted: Call, routes: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the routes of a completion as they are handed in."""
    with guarded(noted):
        return routes()
    return {}


def plain(call: RunningCall) -> RunningCall:
    """Return a call whose ids are tuples of ints."""
    return evolve(call, before=tuple(map(int, call.before)), carry_ids=tuple(map(int, call.carry_ids)))


def named(tensors: Any) -> dict[str, Tensor]:
    """Return media tensors as values of the spec. Raises ``TypeError`` for one that has none."""
    for name, value in tensors.items():
        if not isinstance(value, torch.Tensor) or value.is_nested or value.is_quantized or not has_bytes(value):
            raise TypeError(f"media {name!r}: a {type(value).__name__} without bytes of its own")
    return {name: from_torch(value) for name, value in tensors.items()}


def sayable(media: CallMedia | None) -> bool:
    """Return whether a request of area ``cuts`` can say these media: none, or some with tensors."""
    return media is None or media.tensors is not None


def pending(now: _Snapshot) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Return the tokens that are not durable, with log-probs; one too few where any token came without its own."""
    ids, log_probs = now.ids[now.durable :], now.log_probs[now.durable :]
    if not now.aligned and len(ids) == len(log_probs):
        log_probs = log_probs[:-1]
    return tuple(map(int, ids)), tuple(map(float, log_probs))


def earlier(generation: Generation, now: _Snapshot) -> tuple[CutStep, ...]:
    """Return cuts that make durable what is durable, one for each chunk."""
    steps, keys = [], list(generation.keys)
    for index, key in enumerate(keys):
        span = slice(index, index + 1 if index < len(keys) - 1 else now.durable)
        ids, log_probs = tuple(map(int, now.ids[span])), tuple(map(float, now.log_probs[span]))
        order = CutOrder(parse_cut_key(key).checkpoint, max(1, now.durable))
        steps.append(CutStep(ids, log_probs, b"", generation._oldest or 0, order))
    return tuple(steps)


def first_scheme(generation: Generation, media: CallMedia | None) -> str:
    """Return the digest scheme of a restored call's first chunk, which another worker chose."""
    if media is not None:
        for scheme in MEDIA_DIGEST_FIELDS:
            extras = without_routes(cut_extras(generation.call.extras, media, scheme))
            if extras_digest(extras) == generation._first_commitment:
                return scheme
    return MEDIA_SHA256


def describe_cut(
    generation: Generation, now: _Snapshot, request: PlayCuts, whole: bool, answer: DurablePrefix | DurableFailure
) -> dict[str, Any]:
    """Return one cut as JSON: what was asked, and what was answered, null for a failure."""
    values: dict[str, Any] = {"request": dump(request), "answer": None}
    before, after = len(now.ids), len(generation.token_ids)
    if isinstance(answer, DurablePrefix):
        values["answer"] = dump_record(answer)
        known = not before < answer.prefix_token_count <= after
    else:
        values["reason"] = answer.reason
        known = before == after
    if not whole:
        values["unjudged"] = NO_TENSORS
    elif values.get("reason") == UNDER_WAY:
        values["unjudged"] = UNDER_WAY
    elif not known:
        values["unjudged"] = APPENDED
    return values


def describe_restored(restored: Restored, fresh: CallMedia | None) -> RestoredCut:
    """Return what a restore answered."""
    media, held = restored.media, None if fresh is None else fresh.tensors
    return RestoredCut(
        tuple(restored.token_ids.tolist()),
        tuple(restored.token_mask.tolist()),
        tuple(restored.log_probs.tolist()),
        restored.tokens_left,
        restored.weight_version,
        with_media=media is not None,
        fresh=media is None or media.tensors is held,
    )


def describe_raised(error: Exception, noted: Call) -> dict[str, Any]:
    """Return what was raised; ``kind`` says whether the store refused, or the data plane failed, or is null."""
    kind, message = None, message_of(error)
    if isinstance(error, Rejected):
        kind, message = "refused", error.reason
    elif noted.raised is not None and noted.raised in (error, error.__cause__):
        kind = "plane"
    elif isinstance(error, ValueError):
        kind = "refused"
    return {"kind": kind, "error": type(error).__name__, "message": message[:1000]}
