"""Groups in which every code meets its siblings: a rejected rollout between two valid ones, by construction.

Drawn groups meet a code by luck. Here every code that ``gate.codes`` calls reachable in groups has a stream of its own,
so that it is met in every profile and at every seed: the codes of any rollout in groups without routes and in both
route modes, those of routes and media where they arise, and those of an assembly in the replay too. Media siblings are
made of one history: equal sizes, transposed sizes, and other pixels, so that a row or a call that gets another one's
geometry or pixels shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from attrs import evolve
from hypothesis import reject
from hypothesis import strategies as st

from rollproof.properties.strategies.breaks.kinds import BREAKS, NEEDS, Needs, needed, reason
from rollproof.properties.strategies.breaks.lineage import LINEAGE_EDITS
from rollproof.properties.strategies.breaks.media import MEDIA, ROLLOUT_CODES, broken_media, other_kind
from rollproof.properties.strategies.breaks.rollout import ROLLOUT_EDITS
from rollproof.properties.strategies.rollouts.draft import Draft, Edit, Inapplicable, apply
from rollproof.properties.strategies.rollouts.history import Call, History, rehash
from rollproof.properties.strategies.rollouts.media import (
    MediaKind,
    Sizes,
    draw_kind,
    expand,
    illustrated,
    make_bundle,
    relaid,
    unused_token,
    wider,
    with_bundle,
)
from rollproof.properties.strategies.rollouts.routed import ROLLOUT_BREAKS, RoutedRollout, routed_rollouts, stage
from rollproof.properties.strategies.rollouts.routed_histories import with_routes
from rollproof.properties.strategies.rollouts.routes import model_shapes
from rollproof.properties.strategies.rollouts.worked import WORKED_EXAMPLE
from rollproof.properties.strategies.scalars import Bytes, draw_bytes
from rollproof.properties.strategies.stream import Stream, listed
from rollproof.properties.strategies.streams.media import unverifiable
from rollproof.spec.constants import ROUTED_EXPERTS
from rollproof.spec.judge.requests import Area, ChainMedia, FinalizeGroups, FinalizeRollout, GroupStep, ReplayGroup
from rollproof.spec.judge.staging import Staging
from rollproof.spec.records import GroupRequest, ReassemblerConfig
from rollproof.spec.rejections import Code

WEIGHT: Final = 0.08
"""Of a stream for one code: two examples in profile ``quick``, six in ``ci``."""

DIRECT: Final = ReassemblerConfig(router_replay_enabled=True)
DEFERRED: Final = evolve(DIRECT, defer_routed_experts_to_policy=True)


def in_one_group(config: ReassemblerConfig, requests: Sequence[FinalizeRollout]) -> FinalizeGroups:
    """Return a group of these rollouts, whatever their ids are; they must be distinct."""
    count = len(requests)
    group = GroupRequest(
        group_id="g",
        rollout_ids=tuple(one.rollout_id for one in requests),
        receipts=tuple(one.receipt for one in requests),
        rewards=tuple(one.reward for one in requests),
        mask_sample=(False,) * count,
        canonical_sample_ids=tuple(f"g_g{index}" for index in range(count)),
    )
    rows = {key: row for one in requests for key, row in one.staging.rows.items()}
    return FinalizeGroups(config, (GroupStep(group),), Staging(rows, on_miss=requests[count // 2].staging.on_miss))


# ── sections 4 and 5 ────────────────────────────────────────────────────────────────────────────────────────────────


EDITS: Final[dict[Code, tuple[Edit, ...]]] = {
    code: edits for code, edits in {**LINEAGE_EDITS, **ROLLOUT_EDITS}.items() if (Area.ROLLOUT, code) in BREAKS
}
"""Per code that every rollout can be rejected with, its edits."""


def beside(history: History, draft: Draft) -> FinalizeGroups:
    """Return a group of an edited rollout "b" between two with the calls of a history."""
    broken = draft.finalize()
    if broken.rollout_id != "b":
        broken = evolve(broken, rollout_id="b other")
    before, after = (history.renamed(name).finalize(draft.config) for name in ("a", "c"))
    return in_one_group(draft.config, (before, broken, after))


def edited() -> Iterator[FinalizeGroups]:
    """Yield one group for every edit of the worked example that breaks a rule of sections 3 to 5."""
    for edits in EDITS.values():
        for edit in edits:
            draft = Draft.of(WORKED_EXAMPLE.renamed("b"))
            try:
                edit(draft, Bytes(b""))
            except Inapplicable:
                continue
            yield beside(WORKED_EXAMPLE, draft)


@st.composite
def beside_broken(draw: st.DrawFn, base: ReassemblerConfig, code: Code) -> FinalizeGroups:
    """Draw a rollout that is rejected with a code of sections 3 to 5, between two of the same history."""
    history = draw(needed(NEEDS.get(code, Needs())))
    if base.router_replay_enabled:
        dims = draw(model_shapes(2, 2))
        history = draw(with_routes(history, dims))
        base = evolve(base, routed_dims=dims)
    draft = Draft.of(history.renamed("b"))
    draft.config = base
    decide = draw_bytes(draw)
    apply(decide.choose(EDITS[code]), draft, decide)
    size = draft.config.vocab_size
    if size is not None and any(token >= size for call in history.calls for token in call.staged.token_ids_delta):
        reject()  # the vocabulary is too small for the siblings too
    return beside(history, draft)


# ── routes ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@st.composite
def bad_routes(draw: st.DrawFn, reason: str) -> tuple[RoutedRollout, RoutedRollout]:
    """Draw a rollout with routes, and the same one with routes that are rejected with ``reason``."""
    dims = draw(st.tuples(st.integers(1, 2), st.integers(2, 3)))
    whole = draw(routed_rollouts(rollout_id="b", dims=dims, min_routed=1, max_calls=3))
    call = draw(st.sampled_from([call for call in whole.chain if ROUTED_EXPERTS in (call.extras or {})]))
    return whole, ROLLOUT_BREAKS[reason](draw, whole, call)


def between_routed(config: ReassemblerConfig, whole: RoutedRollout, broken: RoutedRollout) -> FinalizeGroups:
    """Return a group of a broken rollout between two that were made like the whole one."""
    before, after = (stage(name, whole.script, whole.terminal) for name in ("a", "c"))
    rollouts = (before, broken, after)
    requests = [FinalizeRollout(config, one.rollout_id, one.receipt, 1.0, Staging(one.rows)) for one in rollouts]
    return in_one_group(config, requests)


@st.composite
def beside_bad_routes(draw: st.DrawFn, base: ReassemblerConfig, reason: str) -> FinalizeGroups:
    """Draw a rollout whose routes are rejected with ``reason``, between two that were made like it."""
    whole, broken = draw(bad_routes(reason))
    dims = draw(st.sampled_from([whole.dims, None]))
    return between_routed(evolve(base, routed_dims=dims, num_experts=whole.num_experts), whole, broken)


@st.composite
def replayed_beside_bad_routes(draw: st.DrawFn, reason: str) -> ReplayGroup:
    """Draw the same group as the policy replays it: the broken row fails there, and neither of the others."""
    whole, broken = draw(bad_routes(reason))
    assert whole.dims is not None
    group = between_routed(evolve(DIRECT, num_experts=whole.num_experts), whole, broken)
    return ReplayGroup(group.config, group.steps[0].request, group.staging, whole.dims)


# ── media ───────────────────────────────────────────────────────────────────────────────────────────────────────────


BAD_MEDIA: Final[dict[Code, st.SearchStrategy[FinalizeRollout]]] = {
    Code.MEDIA_COMMITMENT: unverifiable(),
    **{code: broken_media(code) for code in ROLLOUT_CODES},
}
"""Per code of media, rollouts that are rejected with it."""


@st.composite
def beside_bad_media(draw: st.DrawFn, code: Code) -> FinalizeGroups:
    """Draw a rollout whose media are rejected with ``code``, between two with media of one kind."""
    kind = MediaKind()
    before, after = (draw(illustrated(kind, rollout_id=name)).finalize(MEDIA) for name in ("before", "after"))
    broken = draw(BAD_MEDIA[code].filter(lambda request: request.rollout_id not in ("before", "after")))
    return in_one_group(MEDIA, (before, broken, after))


@st.composite
def beside_other_media(draw: st.DrawFn) -> FinalizeGroups:
    """Draw a rollout with media of another kind than the two around it: valid by itself, but not in their group."""
    decide = draw_bytes(draw)
    kind = draw_kind(decide)
    kinds = {"a": kind, "b": other_kind(decide, kind), "c": kind}
    histories = [draw(illustrated(one, rollout_id=name, extras=st.none())) for name, one in kinds.items()]
    return in_one_group(MEDIA, [history.finalize(MEDIA) for history in histories])


WIDE: Final = relaid(evolve(WORKED_EXAMPLE, calls=tuple(wider(wider(call)) for call in WORKED_EXAMPLE.calls)))
"""The worked example with room for two items in each call."""

TALL, FLAT, SQUARE = (2, 1), (1, 2), (2, 2)
STILLS: Final[tuple[tuple[tuple[Sizes, ...], ...], ...]] = (
    (((FLAT,),), ((TALL,),)),
    (((TALL,),), ((FLAT,),)),
    (((FLAT,), (TALL,)), ((TALL,), (FLAT,))),
    (((SQUARE,),), ((SQUARE,),)),
    (((FLAT,), (FLAT,)), ((FLAT,),)),
)
"""Per history and call, the sizes of its images."""
VIDEOS: Final[tuple[tuple[tuple[Sizes, ...], ...], ...]] = (
    (((FLAT, TALL),), ((TALL, FLAT),)),
    (((FLAT, FLAT), (FLAT,)), ((FLAT,), (FLAT, FLAT))),
)
"""The same of videos: the frames of each."""


def with_pictures(name: str, sizes: Sequence[Sequence[Sizes]], *, video: bool, first_byte: int) -> History:
    """Return the wide history under another id, with items of these sizes, and pixels that begin with a byte."""
    history = WIDE.renamed(name)
    token_id = unused_token(history)
    kind = MediaKind(video=video)
    calls: list[Call] = []
    for index, (call, items) in enumerate(zip(history.calls, sizes, strict=True)):
        staged = call.staged
        carry = staged.token_mask_delta.count(0.0)
        made = expand(kind, items, staged.token_ids_delta[:carry], staged.prev_len, token_id, Bytes(b""))
        bundle = make_bundle(kind, items, Bytes(bytes((first_byte + 7 * index, 2))))
        changed = evolve(call, staged=evolve(staged, token_ids_delta=made.carry + staged.token_ids_delta[carry:]))
        calls.append(with_bundle(changed, kind, made.items, bundle))
    return rehash(evolve(history, calls=tuple(calls)))


def pictured() -> Iterator[FinalizeGroups | FinalizeRollout | ChainMedia]:
    """Yield groups, rollouts and chains whose media agree in size or area, and differ in pixels."""
    for video, lists in ((False, STILLS), (True, VIDEOS)):
        for sizes in lists:
            histories = [
                with_pictures(name, sizes, video=video, first_byte=16 * index) for index, name in enumerate("abc")
            ]
            yield in_one_group(MEDIA, [history.finalize(MEDIA) for history in histories])
            yield histories[0].finalize(MEDIA)
            kind = MediaKind(video=video)
            parts = [make_bundle(kind, items, Bytes(bytes((9 * index, 2)))) for index, items in enumerate(sizes)]
            yield ChainMedia(tuple(parts))
        turned = [
            with_pictures(name, sizes, video=video, first_byte=3) for name, sizes in zip("abc", lists, strict=False)
        ]
        yield in_one_group(MEDIA, [history.finalize(MEDIA) for history in turned])


# ── streams ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def streams(area: Area) -> Iterator[Stream]:
    """Yield the streams of the areas group, routes and media."""
    if area is Area.GROUP:
        yield listed("every code between siblings", area, edited())
        for code in EDITS:
            yield Stream(f"beside:{reason(Area.ROLLOUT, code)}", area, beside_broken(ReassemblerConfig(), code), WEIGHT)
    if area is Area.ROUTES:
        for name, base in (("direct", DIRECT), ("deferred", DEFERRED)):
            for code in EDITS:
                yield Stream(f"{name}:beside:{reason(Area.ROLLOUT, code)}", area, beside_broken(base, code), WEIGHT)
            for broken in ROLLOUT_BREAKS:
                yield Stream(f"{name}:beside:{broken}", area, beside_bad_routes(base, broken), WEIGHT)
        for broken in ROLLOUT_BREAKS:
            # A row that denies its routes has none to replay.
            if broken.startswith(Code.ROUTE_ASSEMBLY.code) and not broken.endswith(":"):
                yield Stream(f"replayed:beside:{broken}", area, replayed_beside_bad_routes(broken), WEIGHT)
    if area is Area.MEDIA:
        yield listed("siblings of one history", area, pictured())
        for code in BAD_MEDIA:
            yield Stream(f"beside:{code.code}", area, beside_bad_media(code), WEIGHT)
        yield Stream(f"beside:{Code.MEDIA_GROUP_INCOMPATIBLE.code}", area, beside_other_media(), WEIGHT)
