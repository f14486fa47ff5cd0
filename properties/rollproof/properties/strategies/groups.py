"""Groups of rollouts: valid ones, rejected ones and ones without a receipt side by side, on a data plane that may fail.

The rollouts of a group are made from a few drawn histories under their own ids, as rollouts of one prompt are alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import Any, Final

from attrs import define, evolve, field, frozen
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from rollproof.properties.strategies.breaks import IN_ROLLOUTS, try_edits
from rollproof.properties.strategies.draft import Draft
from rollproof.properties.strategies.histories import histories
from rollproof.properties.strategies.history import History
from rollproof.properties.strategies.hostile import hostile_receipt
from rollproof.properties.strategies.pair_breaks import other_rollout
from rollproof.properties.strategies.receipt_breaks import INVALID_RECEIPTS
from rollproof.properties.strategies.requests import Stream
from rollproof.properties.strategies.rollout_breaks import (
    HARMLESS,
    failed,
    key_of_a_longer_call,
    keys_of_others,
    no_receipt,
    some_rows_missing,
)
from rollproof.properties.strategies.values import (
    MAX_FLOAT32,
    REWARDS,
    UNUSABLE_REWARDS,
    Bytes,
    check_range,
    draw_bytes,
)
from rollproof.spec.constants import INT63_LIMIT
from rollproof.spec.plane import Faults, OnMiss, Staging
from rollproof.spec.records import GroupRequest, ReassemblerConfig
from rollproof.spec.requests import Area, FinalizeGroups, GroupStep
from rollproof.spec.staged import Row

SIZES: Final = (1,) * 6 + (2,) * 12 + (3,) * 8 + (4, 4, 5, 6, 9, 16)
"""Rollouts per group: mostly few, because a read of the data plane costs more than everything else."""

GROUP_IDS: Final = ("g", "g7", "g_g", "é", "a b", "g" * 100, "g:0", "\U0001f600")
SLASHED_GROUP_ID: Final = "a/b"
"""With a "/" in the group id no rollout id of the group is one, and nobody owns anything (decision D14)."""

LOSS_MULTIPLIERS: Final[tuple[float, ...]] = (1.0, 0.0, 0.5, -0.0, 2, 0.1, 1e-50, MAX_FLOAT32, 1)
FALLBACKS: Final = (0, 3, 2**53 + 1, INT63_LIMIT - 1)
PROMPTS: Final = (0, 1, 2**31)


class Mix(Enum):
    """What the rollouts of a group are."""

    VALID = "valid"
    """All are accepted, if their rewards are usable."""
    MIXED = "mixed"
    """About half of them are accepted."""
    HOSTILE = "hostile"
    """Their receipts are hostile JSON, but for some."""


class Course(Enum):
    """What happens to the groups of a request."""

    ONE = "one"
    """One group, on a healthy data plane."""
    FAULTS = "faults"
    """One group with a failing operation, and the same group again."""
    SEVERAL = "several"
    """Up to three groups one after the other, any of which may meet a fault or be run again."""


@define
class _Stage:
    """What the groups of one request have in common while they are drawn."""

    rows: dict[str, Row] = field(factory=dict)
    histories: list[History] = field(factory=list)


@frozen
class _Rollout:
    """One finished rollout of a group."""

    receipt: Any
    reward: Any


# ── one rollout ─────────────────────────────────────────────────────────────────────────────────────────────────────


def make_rollout(stage: _Stage, rollout_id: str, decide: Bytes, mix: Mix) -> _Rollout:
    """A rollout from one of the drawn histories; its rows are added to the stage."""
    kind = decide.next()
    draft = Draft.of(decide.choose(stage.histories).renamed(rollout_id))
    draft.reward = decide.choose(REWARDS if not decide.chance(24) else UNUSABLE_REWARDS)
    if mix is Mix.VALID:
        if kind >= 192:
            try_edits(draft, [decide.choose([edit for edit in HARMLESS if edit.__name__ in KEEPS_CONFIG])], decide)
    elif mix is Mix.MIXED:
        spoil(stage, draft, decide, kind)
    elif kind >= 64:
        draft.receipt = hostile_receipt(draft.receipt, decide)
    if "/" in rollout_id and type(draft.receipt) is dict and decide.chance(128):
        # The receipt of another rollout, "a", lists keys that look as if "a/b" owned them.
        draft.receipt["rollout_id"] = rollout_id.partition("/")[0]
    # What is called a stranger may be a sibling: it must not take the place of that one's own rows.
    stage.rows.update({key: row for key, row in draft.rows().items() if key not in draft.strangers.keys() & stage.rows})
    return _Rollout(draft.receipt, draft.reward)


KEEPS_CONFIG: Final = (
    "dead_branch_damaged",
    "inner_prefix_damaged",
    "scalar_with_two_dimensions",
    "strangers_around",
    "odd_metadata",
)
"""Harmless edits that concern the rollout alone."""


def spoil(stage: _Stage, draft: Draft, decide: Bytes, kind: int) -> None:
    """Make something wrong, for about half of the bytes."""
    if kind < 128:
        return
    if kind < 144:
        try_edits(draft, [no_receipt], decide)
    elif kind < 156:
        try_edits(draft, [some_rows_missing], decide)
    elif kind < 168:
        try_edits(draft, [failed], decide)
    elif kind < 180:
        try_edits(draft, [decide.choose(INVALID_RECEIPTS)], decide)
    elif kind < 192:
        draft.receipt = hostile_receipt(draft.receipt, decide)
    elif kind < 206 and stage.rows:
        lists_anothers_key(stage, draft, decide)
    elif kind < 224:
        try_edits(draft, [decide.choose((key_of_a_longer_call, other_rollout, keys_of_others))], decide)
    else:
        try_edits(draft, [decide.choose(decide.choose(IN_ROLLOUTS))], decide)


def lists_anothers_key(stage: _Stage, draft: Draft, decide: Bytes) -> None:
    """A manifest row lists a key of a sibling or of another group, which is staged."""
    keys = list(stage.rows)
    key = keys[decide.next() * len(keys) >> 8]
    index = draft.pick(decide)
    draft.list_as(index, staging_key=key)
    if decide.chance(128):
        # Take the identity along as well: then the row is the key's, and only its rollout is wrong.
        call_id = key.partition("/")[2]
        draft.list_as(index, model_call_id=call_id)
        if draft.receipt.get("terminal_model_call_id") == draft.calls[index].id:
            draft.receipt["terminal_model_call_id"] = call_id


# ── one group ───────────────────────────────────────────────────────────────────────────────────────────────────────


def draw_group(draw: DrawFn, stage: _Stage, group_id: str, decide: Bytes, mix: Mix, max_rollouts: int) -> GroupRequest:
    """One group; every rollout is a draw of its own."""
    count = decide.choose([size for size in SIZES if size <= max_rollouts])
    sample_ids = tuple(f"{group_id}_g{index}" for index in range(count))
    rollout_ids, canonical = sample_ids, None
    if decide.chance(32):
        canonical = sample_ids
    if decide.chance(24):
        rollout_ids, canonical = tuple(f"{group_id}-{index}" for index in range(count)), sample_ids
    masks = decide.next() << 8 | decide.next()
    rollouts = [make_rollout(stage, rollout_id, draw_bytes(draw), mix) for rollout_id in rollout_ids]
    return GroupRequest(
        group_id=group_id,
        rollout_ids=rollout_ids,
        receipts=tuple(rollout.receipt for rollout in rollouts),
        rewards=tuple(rollout.reward for rollout in rollouts),
        mask_sample=tuple(bool(masks >> index & 1) for index in range(count)),
        fallback_weight_version=decide.choose(FALLBACKS),
        prompt_idx=decide.choose(PROMPTS),
        loss_multiplier=decide.choose(LOSS_MULTIPLIERS),
        canonical_sample_ids=canonical,
    )


def draw_config(stage: _Stage, decide: Bytes, mix: Mix) -> ReassemblerConfig:
    """Constructor arguments that matter for these histories."""
    history = stage.histories[0]
    chain = history.chain()
    length = sum(call.staged.delta_len for call in chain)
    config = ReassemblerConfig()
    if decide.chance(96):
        config = evolve(config, max_seq_len=decide.choose((length, length + 1, max(1, length - 1), 1)))
    if decide.chance(96):
        # A generated token that is also the padding: lengths must not be read off token values.
        config = evolve(config, pad_token_id=decide.choose((chain[-1].staged.token_ids_delta[-1], 1, 2**31)))
    if decide.chance(48):
        drawn = stage.histories if mix is Mix.VALID else [history]
        ids = sorted({token for each in drawn for call in each.calls for token in call.staged.token_ids_delta})
        size = ids[-1] + 1 if mix is Mix.VALID else decide.choose((ids[-1] + 1, ids[-1], ids[0] + 1))
        if size < INT63_LIMIT:
            config = evolve(config, vocab_size=max(1, size))
    if decide.chance(32):
        config = evolve(config, partition_id="rows/é", staging_partition="staged rows")
    return config


def draw_faults(decide: Bytes) -> Faults:
    """One failing operation, or several."""
    failing = decide.choose((0, 0, 1, 2, 5))
    return decide.choose(
        (
            Faults(put=True),
            Faults(clear=True),
            Faults(failing_get=failing),
            Faults(failing_get=failing),
            Faults(put=True, clear=True),
            Faults(failing_get=failing, put=True, clear=True),
        )
    )


@st.composite
def _groups(draw: DrawFn, mix: Mix, course: Course, max_rollouts: int) -> FinalizeGroups:
    decide = draw_bytes(draw)
    stage = _Stage()
    for index in range(1 + decide.below(2)):
        stage.histories.append(draw(histories(rollout_id="r", max_calls=2 + index)))
    count = 1 + decide.below(3) if course is Course.SEVERAL else 1
    steps = []
    for index in range(count):
        own = draw_bytes(draw) if index else decide
        group_id = own.choose(GROUP_IDS) if own.chance(40) else f"g{index or ''}"
        if mix is not Mix.VALID and own.chance(12):
            group_id = SLASHED_GROUP_ID
        request = draw_group(draw, stage, group_id, own, mix, max_rollouts)
        if course is Course.ONE or (course is Course.SEVERAL and not own.chance(96)):
            steps.append(GroupStep(request))
            continue
        steps.append(GroupStep(request, draw_faults(own)))
        if course is Course.FAULTS or own.chance(128):
            steps.append(GroupStep(request))
    staging = Staging(stage.rows, on_miss=decide.choose(tuple(OnMiss)))
    return FinalizeGroups(draw_config(stage, draw_bytes(draw), mix), tuple(steps), staging)


def groups(
    *, mix: Mix = Mix.MIXED, course: Course = Course.ONE, max_rollouts: int = 16
) -> SearchStrategy[FinalizeGroups]:
    """Requests to finalize groups of 1 to 16 rollouts.

    Args:
        mix: What the rollouts are.
        course: How many groups there are, and what fails.
        max_rollouts: Most rollouts of a group.
    """
    check_range("rollouts", 1, max_rollouts, 1)
    return _groups(mix, course, max_rollouts)


# ── contradictory arguments ─────────────────────────────────────────────────────────────────────────────────────────

ArgumentBreak = Callable[[GroupRequest, Bytes], GroupRequest]
"""Makes the caller's arguments contradict each other (decision D13)."""

NO_WEIGHTS: Final = (-1.0, math.nan, math.inf, -math.inf, 1e39, -0.5, 10**400)


def unequal_lengths(request: GroupRequest, decide: Bytes) -> GroupRequest:
    """One argument is longer or shorter than the others."""
    name = decide.choose(("receipts", "rewards", "mask_sample", "rollout_ids"))
    values = getattr(request, name)
    return evolve(request, **{name: values + values[:1] if decide.chance(128) else values[:-1]})


def nothing(request: GroupRequest, decide: Bytes) -> GroupRequest:
    """A group without rollouts."""
    return evolve(request, rollout_ids=(), receipts=(), rewards=(), mask_sample=(), canonical_sample_ids=None)


def repeated_ids(request: GroupRequest, decide: Bytes) -> GroupRequest:
    """A rollout id is there twice."""
    ids = (*request.rollout_ids[:-1], request.rollout_ids[0])
    if len(ids) == 1:
        return nothing(request, decide)
    return evolve(request, rollout_ids=ids, canonical_sample_ids=decide.choose((None, sample_ids(request))))


def no_weight(request: GroupRequest, decide: Bytes) -> GroupRequest:
    """The loss multiplier is negative, or not finite as float32."""
    return evolve(request, loss_multiplier=decide.choose(NO_WEIGHTS))


def other_samples(request: GroupRequest, decide: Bytes) -> GroupRequest:
    """The canonical sample ids are others, in another order, or too few."""
    ids = sample_ids(request)
    others: Sequence[tuple[str, ...]] = (ids[:-1], (*ids, "more"), ids[::-1], ("other", *ids[1:]), ())
    return evolve(request, canonical_sample_ids=decide.choose([other for other in others if other != ids]))


def other_rollouts(request: GroupRequest, decide: Bytes) -> GroupRequest:
    """The rollout ids are not the sample ids, and nothing says that they need not be."""
    ids = tuple(f"{rollout_id}x" for rollout_id in sample_ids(request))
    return evolve(request, rollout_ids=ids, canonical_sample_ids=None)


def sample_ids(request: GroupRequest) -> tuple[str, ...]:
    """The ids under which the group is published."""
    return tuple(f"{request.group_id}_g{index}" for index in range(len(request.rollout_ids)))


ARGUMENT_BREAKS: Final[tuple[ArgumentBreak, ...]] = (
    unequal_lengths,
    nothing,
    repeated_ids,
    no_weight,
    other_samples,
    other_rollouts,
)


@st.composite
def _contradictions(draw: DrawFn) -> FinalizeGroups:
    request = draw(groups(max_rollouts=4))
    decide = draw_bytes(draw)
    step = evolve(request.steps[0], request=decide.choose(ARGUMENT_BREAKS)(request.steps[0].request, decide))
    return evolve(request, steps=(step, *request.steps) if decide.chance(64) else (step,))


def contradictory_groups() -> SearchStrategy[FinalizeGroups]:
    """Groups whose arguments contradict each other; now and then the sound group follows."""
    return _contradictions()


def streams(area: Area) -> Iterator[Stream]:
    """Requests of the area group."""
    if area is not Area.GROUP:
        return
    yield Stream("valid", area, groups(mix=Mix.VALID))
    yield Stream("mixed", area, groups(mix=Mix.MIXED), 1.5)
    yield Stream("faults", area, groups(course=Course.FAULTS, max_rollouts=4), 0.7)
    yield Stream("several", area, groups(course=Course.SEVERAL, max_rollouts=4), 0.6)
    yield Stream("hostile", area, groups(mix=Mix.HOSTILE, max_rollouts=5), 0.7)
    yield Stream("caller", area, contradictory_groups(), 0.5)
