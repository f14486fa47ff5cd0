"""Generation cuts of our own implementation as the gate sees them (section 11)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

import torch
from attrs import evolve

from rollproof.impl import chunks, cuts
from rollproof.impl.dataplane.memory import MemoryDataPlane
from rollproof.impl.retained import CallMedia
from rollproof.properties.adapters.protocol import Refusal
from rollproof.properties.adapters.recording import RecordingPlane
from rollproof.properties.adapters.tensors import from_torch, named_tensors, to_torch
from rollproof.spec.cut_records import CutKey, DurablePrefix, RunningCall
from rollproof.spec.judge.cuts import CutHistory, CutStep, RestoredCut, Tail
from rollproof.spec.judge.staging import Faults, Staging
from rollproof.spec.judge.views import Entry
from rollproof.spec.plane import Clear, Effect, PublishedRow, Put
from rollproof.spec.rejections import Rejected
from rollproof.spec.tensor import Tensor

logging.getLogger("rollproof.impl.cuts").setLevel(logging.ERROR)
"""Clears fail on purpose here; the warning would appear in the middle of every report."""

STAGING: Final = "staging"
T = TypeVar("T")


def answered(function: Callable[..., T], *arguments: Any, **options: Any) -> T:
    """Return a function's value, or raise its refusal as the gate knows it."""
    try:
        return function(*arguments, **options)
    except Rejected as rejected:
        raise Refusal(rejected.reason) from None
    except ValueError as error:
        raise Refusal(f"refused: {error}") from None


class OurCuts:
    """The methods of the capability ``cuts``, over ``rollproof.impl.cuts``."""

    def parse_cut_key(self, key: Any) -> CutKey:
        """Section 11."""
        return answered(chunks.parse_cut_key, key)

    def play_cuts(
        self,
        call: RunningCall,
        steps: tuple[CutStep, ...],
        tail: Tail | None,
        spans: Any,
        bundle: Mapping[str, Tensor] | None,
        pixel_dtype: str | None,
        scheme: str,
    ) -> CutHistory:
        """Section 11."""
        plane = RecordingPlane(MemoryDataPlane())
        store = cuts.CutStore(plane, STAGING, None if pixel_dtype is None else getattr(torch, pixel_dtype), scheme)
        tensors = None if bundle is None else {name: to_torch(value) for name, value in bundle.items()}
        media = None if bundle is None else CallMedia(spans, tensors)
        generation, latest = cuts.Generation(call), None
        answers: list[DurablePrefix | None] = []
        writes = []
        for step in steps:
            if step.worker_dies:
                generation = taken_up(store, call, latest, step.weight_version, media)
            generation.append(step.token_ids, step.log_probs, step.weight_version, step.text)
            plane.begin(Faults(put=step.failing_put))
            answer = store.cut(generation, step.order, media)
            answers.append(answer if isinstance(answer, DurablePrefix) else None)
            latest = answers[-1] or latest
            writes.append(as_staged(plane.effects))
        plane.begin(Faults(clear=tail is not None and tail.failing_clear))
        if tail is None:
            failed = store.abandon(generation)
        else:
            generation.append(tail.token_ids, tail.log_probs, tail.weight_version)
            failed = answered(store.complete, generation, tail.model_call_id, media).failed_clears
        return CutHistory(tuple(answers), (*writes, as_staged(plane.effects)), failed)

    def restore_cut(
        self,
        call: RunningCall,
        acknowledged: DurablePrefix,
        staging: Staging,
        weight_version: int,
        spans: Any,
        tensors: tuple[Entry, ...] | None,
    ) -> RestoredCut:
        """Section 11."""
        plane = RecordingPlane.over(MemoryDataPlane(), staging, STAGING)
        held = named_tensors(tensors)
        fresh = CallMedia(spans, held)
        store = cuts.CutStore(plane, STAGING)
        found = answered(store.restore, call, acknowledged, weight_version=weight_version, fresh=fresh)
        return RestoredCut(
            tuple(found.token_ids.tolist()),
            tuple(found.token_mask.tolist()),
            tuple(found.log_probs.tolist()),
            found.tokens_left,
            found.weight_version,
            with_media=found.media is not None,
            fresh=found.media is None or found.media.tensors is held,
        )

    def restored_routes(self, routes: Tensor, start: int, end: int, prefills: tuple[tuple[int, int], ...]) -> Tensor:
        """Section 11."""
        return from_torch(answered(chunks.restored_routes, to_torch(routes), start, end, prefills))


def taken_up(
    store: cuts.CutStore, call: RunningCall, latest: DurablePrefix | None, version: int, media: CallMedia | None
) -> cuts.Generation:
    """Return the call as another worker takes it up, anew where it cannot be restored."""
    if latest is not None:
        try:
            return store.restore(call, latest, weight_version=version, fresh=media).generation
        except Rejected:
            pass
    return cuts.Generation(call)


def as_staged(effects: Iterable[Effect]) -> tuple[Effect, ...]:
    """Return the writes among some effects, rows as they are staged: of batch size 1, and without their tags."""
    return tuple(
        evolve(effect, rows=tuple(map(of_batch, effect.rows))) if isinstance(effect, Put) else effect
        for effect in effects
        if isinstance(effect, Put | Clear)
    )


def of_batch(row: PublishedRow) -> PublishedRow:
    """Return a row of a put as it is staged."""
    columns = {name: Tensor(value.dtype, (1, *value.shape), value.data) for name, value in row.columns.items()}
    return PublishedRow(columns, {})
