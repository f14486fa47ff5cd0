"""Requests of the area media: bundles, chains, staged columns, and whole rollouts and groups with images and videos."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any, Final

from attrs import evolve
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from rollproof.properties.strategies.breaks.media import (
    CALL_EDITS,
    MEDIA,
    ROLLOUT_CODES,
    broken_media,
    committed,
    disagreeing,
    illustrated_chain,
    miscounted,
    mismatched,
    other_kind,
    overwritten,
    retokenized,
    spans_of,
)
from rollproof.properties.strategies.breaks.media_columns import COLUMN_EDITS
from rollproof.properties.strategies.rollouts.history import History
from rollproof.properties.strategies.rollouts.media import (
    MediaKind,
    bundles,
    draw_kind,
    illustrated,
    media_histories,
)
from rollproof.properties.strategies.rollouts.routed_histories import with_routes
from rollproof.properties.strategies.scalars import Bytes, draw_bytes
from rollproof.properties.strategies.stream import Stream, StreamsOf, listed
from rollproof.spec.constants import BUNDLE_FRAMES, BUNDLE_PIXELS, BUNDLE_SIZES, MEDIA_SPANS, PIXEL_DTYPES
from rollproof.spec.judge.requests import (
    Area,
    ChainMedia,
    FinalizeGroups,
    FinalizeRollout,
    GroupStep,
    StageMedia,
)
from rollproof.spec.judge.staging import Faults, Staging
from rollproof.spec.outcomes import Dims
from rollproof.spec.records import GroupRequest, ReassemblerConfig
from rollproof.spec.rejections import Code
from rollproof.spec.staged import metadata_json
from rollproof.spec.tensor import ITEM_SIZES, Tensor

DIMS: Final[Dims] = (2, 2)
DIRECT: Final = evolve(MEDIA, router_replay_enabled=True)
DEFERRED: Final = evolve(DIRECT, defer_routed_experts_to_policy=True)

# ── bundles ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@st.composite
def chains(draw: DrawFn) -> ChainMedia:
    """Draw one to three bundles, mostly of one kind."""
    decide = draw_bytes(draw)
    kind = draw_kind(decide)
    kinds = [other_kind(decide, kind) if decide.chance(32) else kind for _ in range(1 + decide.below(3))]
    return ChainMedia(tuple(draw(bundles(one)) for one in kinds))


def damaged(decide: Bytes, bundle: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a bundle with one thing wrong."""
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
    """Return zeros of the same shape."""
    return Tensor(dtype, tensor.shape, bytes(tensor.count * ITEM_SIZES[dtype]))


def odd_numbers(decide: Bytes, geometry: Tensor) -> Tensor:
    """Return sizes or counts of which one is zero, negative, too large, or another number."""
    values = [int(value) for value in geometry.values()]
    at = decide.below(len(values))
    values[at] = decide.choose((0, -values[at], values[at] + 1, 2**31, 2**62, values[at] * 2))
    return Tensor.of("int64", values, geometry.shape)


@st.composite
def damaged_chains(draw: DrawFn) -> ChainMedia:
    """Draw a chain one of whose bundles is invalid."""
    parts = list(draw(chains()).parts)
    decide = draw_bytes(draw)
    at = decide.below(len(parts))
    parts[at] = damaged(decide, parts[at])
    return ChainMedia(tuple(parts))


def wrapping_chains() -> Iterator[ChainMedia]:
    """Yield sixteen sizes whose area is 0 in 64 bits, with one of as many patches as there are (decision D18)."""
    for at, (height, width) in ((16, (1, 1)), (0, (1, 1)), (8, (1, 1)), (16, (1, 2)), (0, (2, 1))):
        sizes = [2**30] * 2 * at + [height, width] + [2**30] * 2 * (16 - at)
        patches = height * width
        bundle = {
            BUNDLE_PIXELS: Tensor("bfloat16", (1, patches, 3), bytes(6 * patches)),
            BUNDLE_SIZES: Tensor.of("int64", sizes, (17, 2)),
        }
        yield ChainMedia((bundle,))


@st.composite
def staged(draw: DrawFn) -> StageMedia:
    """Draw calls with and without media, valid and damaged, in partitions of the right and of another dtype."""
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
    """Draw a rollout with media and routes; with ``broken``, placeholders disagree, which every mode must see."""
    history = draw(illustrated() if broken else media_histories())
    if broken:
        history = mismatched(draw_bytes(draw, 64), history)
    history = draw(with_routes(history, DIMS, share=draw(st.sampled_from([0.0, 0.5, 1.0]))))
    return history.finalize(config)


@st.composite
def merged(draw: DrawFn) -> FinalizeRollout:
    """Draw a rollout with media where the configuration says how many patches an embedding represents, or is wrong."""
    history = draw(media_histories(share=1.0))
    return history.finalize(evolve(MEDIA, patches_per_embedding=draw(st.sampled_from([1, 2, 3, 4, 2**40]))))


@st.composite
def unverifiable(draw: DrawFn) -> FinalizeRollout:
    """Draw extras that are not the committed ones, null without media among them: always ``media_commitment``."""
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
        b"null",
        b"\xff",
        b'{"x":' + b"[" * 65 + b"]" * 65 + b"}",
        json.dumps({**extras, "more": 1}).encode(),
    )
    metadata = decide.choose(forged)
    columns = {
        "extras_metadata_json": Tensor("uint8", (1, len(metadata)), metadata),
        "media_metadata_digest": Tensor("uint8", (1, 32), sha256(metadata).digest()),
    }
    if metadata == b"null":
        columns["media_present"] = Tensor.of("bool", [False])
        columns["media_has_frames"] = Tensor.of("bool", [False])
    return overwritten(history, call, columns)


@st.composite
def rejected_earlier(draw: DrawFn) -> FinalizeRollout:
    """Draw a rollout with media that another rule rejects, before or after its media are checked."""
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
    """Draw rollouts one of whose reads fails, or would fail if there were one more."""
    history = draw(media_histories())
    return history.finalize(MEDIA, staging=history.staging(faults=Faults(failing_get=draw(st.sampled_from([1, 0, 2])))))


@st.composite
def spelled(draw: DrawFn) -> FinalizeRollout:
    """Draw a rollout without media whose tokens happen to equal placeholders."""
    history: History = draw(media_histories(share=0.0))
    return history.finalize(MEDIA)


# ── groups ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@st.composite
def media_group(draw: DrawFn, group_id: str, kind: MediaKind) -> tuple[GroupRequest, dict[str, Any]]:
    """Draw a group whose rollouts have media of one kind or of another, no media, broken ones, or no receipt."""
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
    """Draw one or two groups after one another. Whether media fit is decided group by group."""
    decide = draw_bytes(draw)
    kind = draw_kind(decide)
    made = [draw(media_group(f"g{index}", kind)) for index in range(1 + decide.below(2))]
    steps = [GroupStep(request, Faults(put=decide.chance(16))) for request, _ in made]
    rows = {key: row for _, staged_rows in made for key, row in staged_rows.items()}
    return FinalizeGroups(MEDIA, tuple(steps), Staging(rows))


@st.composite
def unchecked_group(draw: DrawFn, config: ReassemblerConfig) -> FinalizeGroups:
    """Draw a group of one rollout some of whose calls have routes, so that their extras may go unchecked."""
    history = draw(with_routes(draw(media_histories(rollout_id="g_g0")), DIMS, share=0.5))
    request = GroupRequest("g", ("g_g0",), (history.raw_receipt(),), (1.0,), (False,))
    return FinalizeGroups(evolve(config, routed_dims=DIMS), (GroupStep(request),), Staging(dict(history.rows())))


@st.composite
def stray_group(draw: DrawFn) -> FinalizeGroups:
    """Draw a group of one rollout whose prompt spells its placeholder token once more, beside no item."""
    history = draw(illustrated(rollout_id="g_g0"))
    call = illustrated_chain(history)[-1]
    end = call.staged.token_mask_delta.count(0.0)
    token_id = spans_of(call)[-1]["token_id"]
    history = committed(history, retokenized(call, end, 0, [0, *[token_id] * draw(st.integers(1, 2))]))
    request = GroupRequest("g", ("g_g0",), (history.raw_receipt(),), (1.0,), (False,))
    return FinalizeGroups(MEDIA, (GroupStep(request),), Staging(dict(history.rows())))


@st.composite
def unlike_group(draw: DrawFn) -> FinalizeGroups:
    """Draw a group in which a row has media of another kind than the first."""
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
    """Yield the streams of the area media."""
    if area is not Area.MEDIA:
        return

    stream = StreamsOf(area)

    yield stream("chains", chains())
    yield stream("broken chains", damaged_chains(), 2.0)
    yield listed("wrapping sums", area, wrapping_chains())
    yield stream("staged", staged())
    yield stream("rollouts", media_histories().map(lambda history: history.finalize(MEDIA)))
    yield stream("text rollouts", spelled(), 0.25)
    yield stream("rejected earlier", rejected_earlier(), 0.5)
    yield stream("outages", outages(), 0.25)
    yield stream("break:media:media_commitment", unverifiable(), 0.5, (Code.MEDIA_COMMITMENT.code,))
    for name, config in (("direct", DIRECT), ("deferred", DEFERRED), ("unreplayed", MEDIA)):
        yield stream(f"{name} routes", routed(config), 0.25)
        yield stream(f"{name} groups", unchecked_group(config), 0.25)
        yield stream(f"{name} routes, broken", routed(config, broken=True), 0.25)
    for code in ROLLOUT_CODES:
        yield stream(f"break:media:{code.code}", broken_media(code), codes=(code.code,))
    for edit in CALL_EDITS:
        code = Code.MEDIA_PLACEHOLDER_MISMATCH
        yield stream(f"break:media:{code.code}:{edit.__name__}", disagreeing(edit), codes=(code.code,))
    yield stream(f"break:media:{code.code}:miscounted", miscounted(), codes=(code.code,))
    yield stream("known merge factor", merged(), 0.5)
    yield stream("placeholders", broken_media(Code.MEDIA_PLACEHOLDER_MISMATCH), 0.75)
    yield stream("groups", groups(), 0.5)
    yield stream("stray placeholders", stray_group(), 0.25)
    code = Code.MEDIA_GROUP_INCOMPATIBLE
    yield stream(f"break:media:{code.code}", unlike_group(), codes=(code.code,))
