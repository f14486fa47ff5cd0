"""Requests of the area media: bundles, chains, staged columns, and whole rollouts and groups with images and videos."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any, Final

from attrs import evolve
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from rollproof.properties.strategies.history import History
from rollproof.properties.strategies.media import (
    MediaKind,
    bundles,
    draw_kind,
    illustrated,
    media_histories,
)
from rollproof.properties.strategies.media_breaks import (
    CALL_EDITS,
    COLUMN_EDITS,
    MEDIA,
    ROLLOUT_CODES,
    broken_media,
    disagreeing,
    illustrated_chain,
    mismatched,
    other_kind,
    overwritten,
)
from rollproof.properties.strategies.requests import Stream
from rollproof.properties.strategies.routed_histories import with_routes
from rollproof.properties.strategies.values import Bytes, draw_bytes
from rollproof.spec.constants import BUNDLE_FRAMES, BUNDLE_PIXELS, BUNDLE_SIZES, MEDIA_SPANS, PIXEL_DTYPES
from rollproof.spec.outcomes import Dims
from rollproof.spec.plane import Faults, Staging
from rollproof.spec.records import GroupRequest, ReassemblerConfig
from rollproof.spec.rejections import Code
from rollproof.spec.requests import (
    Area,
    ChainMedia,
    FinalizeGroups,
    FinalizeRollout,
    GroupStep,
    Request,
    StageMedia,
)
from rollproof.spec.staged import metadata_json
from rollproof.spec.tensor import ITEM_SIZES, Tensor

DIMS: Final[Dims] = (2, 2)
DIRECT: Final = evolve(MEDIA, router_replay_enabled=True)
DEFERRED: Final = evolve(DIRECT, defer_routed_experts_to_policy=True)

# ── bundles ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@st.composite
def chains(draw: DrawFn) -> ChainMedia:
    """One to three bundles, mostly of one kind."""
    decide = draw_bytes(draw)
    kind = draw_kind(decide)
    kinds = [other_kind(decide, kind) if decide.chance(32) else kind for _ in range(1 + decide.below(3))]
    return ChainMedia(tuple(draw(bundles(one)) for one in kinds))


def damaged(decide: Bytes, bundle: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A bundle with one thing wrong."""
    changed = dict(bundle)
    name = decide.choose(tuple(bundle))
    found = bundle[name]
    edit = decide.below(7)
    if edit == 0 and name != BUNDLE_FRAMES:
        del changed[name]
    elif edit == 1:
        changed[decide.choose(("imgs_size", "pixel_values", "", "IMGS"))] = found
    elif edit == 2:
        changed[name] = zeros_like(found, decide.choose(("float64", "int16", "uint8", "bool")))
    elif edit == 3:
        changed[name] = Tensor(found.dtype, decide.choose(((*found.shape, 1), (1, *found.shape))), found.data)
    elif edit == 4:
        changed[BUNDLE_SIZES] = odd_numbers(decide, bundle[BUNDLE_SIZES])
    elif edit == 5 and BUNDLE_FRAMES in bundle:
        changed[BUNDLE_FRAMES] = odd_numbers(decide, bundle[BUNDLE_FRAMES])
    else:
        pixels = bundle[BUNDLE_PIXELS]
        width = pixels.shape[2] * ITEM_SIZES[pixels.dtype]
        changed[BUNDLE_PIXELS] = Tensor(
            pixels.dtype, (1, pixels.shape[1] + 1, pixels.shape[2]), pixels.data + bytes(width)
        )
    return changed


def zeros_like(tensor: Tensor, dtype: str) -> Tensor:
    """Zeros of the same shape."""
    return Tensor(dtype, tensor.shape, bytes(tensor.count * ITEM_SIZES[dtype]))


def odd_numbers(decide: Bytes, geometry: Tensor) -> Tensor:
    """Sizes or counts of which one is zero, negative, too large, or another one."""
    values = [int(value) for value in geometry.values()]
    at = decide.below(len(values))
    values[at] = decide.choose((0, -values[at], values[at] + 1, 2**31, 2**62, values[at] * 2))
    return Tensor.of("int64", values, geometry.shape)


@st.composite
def damaged_chains(draw: DrawFn) -> ChainMedia:
    """A chain one of whose bundles is none."""
    parts = list(draw(chains()).parts)
    decide = draw_bytes(draw)
    at = decide.below(len(parts))
    parts[at] = damaged(decide, parts[at])
    return ChainMedia(tuple(parts))


def wrapping_chains() -> SearchStrategy[ChainMedia]:
    """Sixteen sizes whose area is 0 in 64 bits, and one of a single patch (decision D18)."""
    sizes = [2**30] * 32 + [1, 1]
    bundle = {
        BUNDLE_PIXELS: Tensor("bfloat16", (1, 1, 3), bytes(6)),
        BUNDLE_SIZES: Tensor.of("int64", sizes, (17, 2)),
    }
    return st.just(ChainMedia((bundle,)))


@st.composite
def staged(draw: DrawFn) -> StageMedia:
    """Calls with and without media, valid and damaged ones, in partitions of the right and of another pixel dtype."""
    decide = draw_bytes(draw)
    kind = draw_kind(decide)
    if decide.chance(64):
        return StageMedia(None, kind.pixel_dtype)
    bundle = draw(bundles(kind))
    if decide.chance(48):
        bundle = damaged(decide, bundle)
    return StageMedia(bundle, decide.choose(PIXEL_DTYPES) if decide.chance(48) else kind.pixel_dtype)


# ── rollouts ────────────────────────────────────────────────────────────────────────────────────────────────────────


@st.composite
def routed(draw: DrawFn, config: ReassemblerConfig, *, broken: bool = False) -> FinalizeRollout:
    """A rollout with images and routes; with ``broken``, its placeholders disagree, which deferred mode cannot see."""
    history = draw(illustrated() if broken else media_histories())
    if broken:
        history = mismatched(draw_bytes(draw, 64), history)
    history = draw(with_routes(history, DIMS, share=draw(st.sampled_from([0.0, 0.5, 1.0]))))
    return history.finalize(config)


@st.composite
def unverifiable(draw: DrawFn) -> FinalizeRollout:
    """Spans that disagree, in extras that are not the committed ones: nothing is known, so nothing is rejected."""
    decide = draw_bytes(draw, 64)
    history = draw(illustrated())
    call = decide.choose(illustrated_chain(history))
    extras = dict(call.extras or {})
    plain = metadata_json({**extras, MEDIA_SPANS: decide.choose(([], None, 0, [{}], [None]))})
    forged = (
        plain,
        plain[:-1] + b',"routed_experts":null}',
        plain[:-1] + b',"x":0,"x":0}',
        plain[:-1] + b',"x":NaN}',
        plain[:-1],
        b"[]",
        b"0",
        b"\xff",
        b'{"x":' + b"[" * 65 + b"]" * 65 + b"}",
        json.dumps({**extras, "more": 1}).encode(),
    )
    metadata = decide.choose(forged)
    columns = {
        "extras_metadata_json": Tensor("uint8", (1, len(metadata)), metadata),
        "media_metadata_digest": Tensor("uint8", (1, 32), sha256(metadata).digest()),
    }
    return overwritten(history, call, columns)


@st.composite
def rejected_earlier(draw: DrawFn) -> FinalizeRollout:
    """A rollout with media that something else rejects, before or after its media are looked at."""
    decide = draw_bytes(draw)
    history = draw(illustrated())
    request = history.finalize(MEDIA)
    fault = decide.below(6)
    rows = dict(request.staging.rows)
    key = history.chain()[-1].key
    if fault == 0:
        return evolve(request, receipt={**request.receipt, "failure_reason": "lost", "capture_poisoned": True})
    if fault == 1:
        return evolve(request, rollout_id=request.rollout_id + "x")
    if fault == 2:
        return evolve(request, reward=float("nan"))
    if fault == 3:
        del rows[key]
    elif fault == 4:
        tokens = [int(token) ^ 1 for token in rows[key]["token_ids_delta"].values()]
        rows[key] = {**rows[key], "token_ids_delta": Tensor.of("int64", tokens, (1, len(tokens)))}
    else:
        rows[key] = {**rows[key], "media_metadata_digest": Tensor("uint8", (1, 32), bytes(32))}
    return evolve(request, staging=Staging(rows))


@st.composite
def outages(draw: DrawFn) -> FinalizeRollout:
    """One of the reads fails, or would fail if there were one more."""
    history = draw(media_histories())
    return history.finalize(MEDIA, staging=history.staging(faults=Faults(failing_get=draw(st.sampled_from([1, 0, 2])))))


@st.composite
def spelled(draw: DrawFn) -> FinalizeRollout:
    """A rollout without media whose tokens spell placeholders."""
    history: History = draw(media_histories(share=0.0))
    return history.finalize(MEDIA)


# ── groups ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@st.composite
def media_group(draw: DrawFn, group_id: str, kind: MediaKind) -> tuple[GroupRequest, dict[str, Any]]:
    """A group whose rollouts have media of one kind or of another, no media, broken ones, or no receipt."""
    decide = draw_bytes(draw)
    ids = tuple(f"{group_id}_g{index}" for index in range(1 + decide.below(4)))
    receipts: list[Any] = []
    rows: dict[str, Any] = {}
    for rollout_id in ids:
        choice = decide.choose(("media", "media", "media", "other", "text", "broken", "missing"))
        if choice == "missing":
            receipts.append(None)
            continue
        own = other_kind(decide, kind) if choice == "other" else kind
        if choice == "text":
            history = draw(media_histories(own, share=0.0, rollout_id=rollout_id, max_calls=2))
        else:
            history = draw(illustrated(own, rollout_id=rollout_id))
        staged_rows: dict[str, Any] = dict(history.rows())
        if choice == "broken":
            call = illustrated_chain(history)[0]
            changed = decide.choose(COLUMN_EDITS)(decide, call)
            whole = {**staged_rows[call.key], **changed}
            staged_rows[call.key] = {name: value for name, value in whole.items() if value is not None}
        receipts.append(history.raw_receipt())
        rows |= staged_rows
    rewards = tuple(decide.choose((0.0, 1.0, 1.0, float("nan"))) for _ in ids)
    return GroupRequest(group_id, ids, tuple(receipts), rewards, (False,) * len(ids)), rows


@st.composite
def groups(draw: DrawFn) -> FinalizeGroups:
    """One or two groups after one another. What fits is decided group by group."""
    decide = draw_bytes(draw)
    kind = draw_kind(decide)
    made = [draw(media_group(f"g{index}", kind)) for index in range(1 + decide.below(2))]
    steps = [GroupStep(request, Faults(put=decide.chance(16))) for request, _ in made]
    rows = {key: row for _, staged_rows in made for key, row in staged_rows.items()}
    return FinalizeGroups(MEDIA, tuple(steps), Staging(rows))


@st.composite
def unlike_group(draw: DrawFn) -> FinalizeGroups:
    """A group in which a row has media of another kind than the first."""
    decide = draw_bytes(draw)
    kind = draw_kind(decide)
    kinds = [kind, other_kind(decide, kind)]
    if decide.chance(64):
        kinds.insert(1, kind)
    ids = tuple(f"g_g{index}" for index in range(len(kinds)))
    pairs = zip(ids, kinds, strict=True)
    histories = [draw(illustrated(one, rollout_id=rollout_id, extras=st.none())) for rollout_id, one in pairs]
    request = GroupRequest(
        "g", ids, tuple(history.raw_receipt() for history in histories), (1.0,) * len(ids), (False,) * len(ids)
    )
    rows = {key: row for history in histories for key, row in history.rows().items()}
    return FinalizeGroups(MEDIA, (GroupStep(request),), Staging(rows))


def streams(area: Area) -> Iterator[Stream]:
    """Requests of the area media."""
    if area is not Area.MEDIA:
        return

    def stream(name: str, strategy: SearchStrategy[Any], weight: float = 1.0, codes: tuple[str, ...] = ()) -> Stream:
        requests: SearchStrategy[Request] = strategy
        return Stream(name, area, requests, weight, codes)

    yield stream("chains", chains())
    yield stream("broken chains", damaged_chains(), 2.0)
    yield stream("wrapping sums", wrapping_chains(), 0.0, (Code.INVALID_MEDIA_COLUMNS.code,))
    yield stream("staged", staged())
    yield stream("rollouts", media_histories().map(lambda history: history.finalize(MEDIA)))
    yield stream("text rollouts", spelled(), 0.25)
    yield stream("rejected earlier", rejected_earlier(), 0.5)
    yield stream("outages", outages(), 0.25)
    yield stream("unverifiable extras", unverifiable(), 0.5)
    for name, config in (("direct", DIRECT), ("deferred", DEFERRED), ("unreplayed", MEDIA)):
        yield stream(f"{name} routes", routed(config), 0.25)
        yield stream(f"{name} routes, broken", routed(config, broken=True), 0.25)
    for code in ROLLOUT_CODES:
        yield stream(f"break:media:{code.code}", broken_media(code), codes=(code.code,))
    for edit in CALL_EDITS:
        code = Code.MEDIA_PLACEHOLDER_MISMATCH
        yield stream(f"break:media:{code.code}:{edit.__name__}", disagreeing(edit), codes=(code.code,))
    yield stream("placeholders", broken_media(Code.MEDIA_PLACEHOLDER_MISMATCH), 0.75)
    yield stream("groups", groups(), 0.5)
    code = Code.MEDIA_GROUP_INCOMPATIBLE
    yield stream(f"break:media:{code.code}", unlike_group(), codes=(code.code,))
