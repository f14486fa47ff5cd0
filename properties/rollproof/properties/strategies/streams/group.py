"""Groups of rollouts: valid ones, rejected ones and ones without a receipt side by side, on a data plane that may fail.

The rollouts of a group are made from a few drawn histories under their own ids, as rollouts of one prompt are alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import Any, Final, TypeAlias

from attrs import define, evolve, field, frozen
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from rollproof.properties.strategies.breaks.kinds import IN_ROLLOUTS, try_edits
from rollproof.properties.strategies.breaks.pair import other_rollout
from rollproof.properties.strategies.breaks.receipt import INVALID_RECEIPTS
from rollproof.properties.strategies.breaks.rollout import (
    HARMLESS,
    failed,
    key_of_a_longer_call,
    keys_of_others,
    no_receipt,
    some_rows_missing,
)
from rollproof.properties.strategies.hostile import hostile_receipt
from rollproof.properties.strategies.rollouts.draft import Draft
from rollproof.properties.strategies.rollouts.histories import histories
from rollproof.properties.strategies.rollouts.history import Call, History
from rollproof.properties.strategies.rollouts.worked import WORKED_EXAMPLE
from rollproof.properties.strategies.scalars import (
    MAX_FLOAT32,
    REWARDS,
    UNUSABLE_REWARDS,
    Bytes,
    check_range,
    draw_bytes,
)
from rollproof.properties.strategies.stream import Stream, listed
from rollproof.spec.constants import INT63_LIMIT
from rollproof.spec.judge.requests import Area, FinalizeGroups, GroupStep
from rollproof.spec.judge.staging import Faults, OnMiss, Staging
from rollproof.spec.records import GroupRequest, ReassemblerConfig
from rollproof.spec.staged import Row

SIZES: Final = (1,) * 6 + (2,) * 12 + (3,) * 8 + (4, 4, 5, 6, 9, 16)
"""Rollouts per group: mostly few, because a read of the data plane costs more than everything else."""

GROUP_IDS: Final = ("g", "g7", "g_g", "é", "a b", "g" * 100, "g:0", "\U0001f600")
SLASHED_GROUP_ID: Final = "a/b"
"""With a "/" in the group id no rollout id of the group is valid, and none owns anything (decision D14)."""

LOSS_MULTIPLIERS: Final[tuple[float, ...]] = (1.0, 0.0, 0.5, -0.0, 2, 0.1, 1e-50, MAX_FLOAT32, 1)
FALLBACKS: Final = (0, 3, 2**53 + 1, INT63_LIMIT - 1)
CURRENT_VERSIONS: Final = (None, None, 0, 4, INT63_LIMIT - 1)
PROMPTS: Final = (0, 1, 2**31)


class Mix(Enum):
    """The kinds of rollouts in a group."""

    VALID = "valid"
    """All are accepted, if their rewards are usable."""
    MIXED = "mixed"
    """About half of them are accepted."""
    HOSTILE = "hostile"
    """Most of their receipts are hostile JSON."""


class Course(Enum):
    """The events in a request's groups."""

    ONE = "one"
    """One group, on a healthy data plane."""
    FAULTS = "faults"
    """One group with a failing operation, and the same group again."""
    SEVERAL = "several"
    """Up to three groups one after the other, any of which may meet a fault or be run again."""


Histories: TypeAlias = Callable[[int], SearchStrategy[History]]
"""From the most calls of a rollout to a strategy for what the rollouts of a group are made from."""

TEXT: Final = ReassemblerConfig()


@define
class _Stage:
    """State that the groups of one request share while they are drawn."""

    rows: dict[str, Row] = field(factory=dict)
    histories: list[History] = field(factory=list)


@frozen
class _Rollout:
    """One finished rollout of a group."""

    receipt: Any
    reward: Any


# ── one rollout ─────────────────────────────────────────────────────────────────────────────────────────────────────


def make_rollout(stage: _Stage, rollout_id: str, decide: Bytes, mix: Mix) -> _Rollout:
    """Make a rollout from one of the drawn histories; its rows are added to the stage."""
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
    """Make a manifest row list a staged key of a sibling or of another group."""
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
    """Draw one group; every rollout is a draw of its own."""
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
        current_weight_version=decide.choose(CURRENT_VERSIONS),
    )


def draw_config(stage: _Stage, decide: Bytes, mix: Mix, base: ReassemblerConfig) -> ReassemblerConfig:
    """Return ``base`` with constructor arguments that matter for these histories."""
    history = stage.histories[0]
    chain = history.chain()
    length = sum(call.staged.delta_len for call in chain)
    config = base
    if decide.chance(96):
        config = evolve(config, max_seq_len=decide.choose((length, length + 1, max(1, length - 1), 1)))
    if decide.chance(96):
        # A generated token that is also the padding: lengths must not be read off token values.
        config = evolve(config, pad_token_id=decide.choose((chain[-1].staged.token_ids_delta[-1], 1, 2**31)))
    if decide.chance(48):
        config = with_vocabulary(config, stage.histories if mix is Mix.VALID else [history], decide, mix)
    if decide.chance(64):
        config = evolve(config, publish_group_key=True)
    if decide.chance(96):
        lowest = min(0.0, *(value for call in chain for value in call.staged.generation_log_probs_delta))
        least = decide.choose((-1.0, 0.0, -1e300, float(f"{lowest:.8g}")))
        config = evolve(config, stop_token_ids=carry_starts(chain), least_plausible_logprob=least)
    if decide.chance(32):
        config = evolve(config, partition_id="rows/é", staging_partition="staged rows")
    return config


def with_vocabulary(config: ReassemblerConfig, drawn: Sequence[History], decide: Bytes, mix: Mix) -> ReassemblerConfig:
    """Return the configuration with a vocabulary that ends about where the token ids of histories do."""
    ids = sorted({token for history in drawn for call in history.calls for token in call.staged.token_ids_delta})
    size = ids[-1] + 1 if mix is Mix.VALID else decide.choose((ids[-1] + 1, ids[-1], ids[0] + 1))
    return evolve(config, vocab_size=max(1, size)) if size < INT63_LIMIT else config


def carry_starts(chain: Sequence[Call]) -> tuple[int, ...]:
    """Return the tokens that calls after the first begin with, and one that none has."""
    return (*(call.staged.token_ids_delta[0] for call in chain[1:]), 2**31 + 5)


def draw_faults(decide: Bytes) -> Faults:
    """Return one failing operation, or several."""
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
def _groups(
    draw: DrawFn, mix: Mix, course: Course, max_rollouts: int, base: ReassemblerConfig, alike: Histories
) -> FinalizeGroups:
    decide = draw_bytes(draw)
    stage = _Stage()
    for index in range(1 + decide.below(2)):
        stage.histories.append(draw(alike(2 + index)))
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
    return FinalizeGroups(draw_config(stage, draw_bytes(draw), mix, base), tuple(steps), staging)


def plain_histories(max_calls: int) -> SearchStrategy[History]:
    """Draw what the rollouts of a text group are made from."""
    return histories(rollout_id="r", max_calls=max_calls)


def groups(
    *,
    mix: Mix = Mix.MIXED,
    course: Course = Course.ONE,
    max_rollouts: int = 16,
    base: ReassemblerConfig = TEXT,
    alike: Histories = plain_histories,
) -> SearchStrategy[FinalizeGroups]:
    """Draw requests to finalize groups of 1 to 16 rollouts.

    Args:
        mix: What the rollouts are.
        course: How many groups there are, and what fails.
        max_rollouts: Most rollouts of a group.
        base: The mode of the reassembler; its other arguments are drawn.
        alike: From the most calls of a rollout to what the rollouts are made from.
    """
    check_range("rollouts", 1, max_rollouts, 1)
    return _groups(mix, course, max_rollouts, base, alike)


# ── receipts that do not parse ──────────────────────────────────────────────────────────────────────────────────────


@st.composite
def unreadable_groups(draw: DrawFn) -> FinalizeGroups:
    """Groups with receipts that do not parse, though some of what they list can be read (decision D34)."""
    request = draw(groups(mix=Mix.VALID, max_rollouts=3))
    decide = draw_bytes(draw)
    step = request.steps[0]
    keys = tuple(request.staging.rows)
    receipts = list(step.request.receipts)
    for index in {decide.below(len(receipts)) for _ in range(2)}:
        rollout_id = step.request.rollout_ids[index]
        listed = list(receipts[index]["manifest"])
        strangers: list[Any] = [
            5,
            {},
            {"staging_key": f"{rollout_id}/", "model_call_id": ""},
            {"staging_key": f"{rollout_id}/x", "model_call_id": "y"},
            {"staging_key": decide.choose(keys), "model_call_id": "z"},
            {"staging_key": [], "model_call_id": rollout_id},
        ]
        for stranger in strangers[decide.below(6) :]:
            listed.insert(decide.below(len(listed) + 1), stranger)
        receipts[index] = {**receipts[index], "manifest": listed, "unknown": None}
    return evolve(request, steps=(evolve(step, request=evolve(step.request, receipts=tuple(receipts))),))


# ── small groups ────────────────────────────────────────────────────────────────────────────────────────────────────


def small_group(group_id: str, count: int) -> tuple[GroupRequest, Staging]:
    """Return a sound group of the worked example, and what was staged of it."""
    members = [WORKED_EXAMPLE.renamed(f"{group_id}_g{index}") for index in range(count)]
    request = GroupRequest(
        group_id,
        tuple(history.rollout_id for history in members),
        tuple(history.raw_receipt() for history in members),
        (1.0,) * count,
        (False,) * count,
    )
    return request, Staging({key: row for history in members for key, row in history.rows().items()})


def every_failure() -> Iterator[FinalizeGroups]:
    """Yield small groups of which one operation fails, each read too, and then run again."""
    for count in (1, 2, 4):
        request, staging = small_group("g", count)
        reads = (Faults(failing_get=index) for index in range(count + 1))
        for faults in (*reads, Faults(put=True), Faults(clear=True)):
            yield FinalizeGroups(ReassemblerConfig(), (GroupStep(request, faults), GroupStep(request)), staging)


def streams(area: Area) -> Iterator[Stream]:
    """Yield the streams of the area group."""
    if area is not Area.GROUP:
        return
    yield Stream("valid", area, groups(mix=Mix.VALID))
    yield Stream("mixed", area, groups(mix=Mix.MIXED), 1.5)
    yield Stream("faults", area, groups(course=Course.FAULTS, max_rollouts=4), 0.7)
    yield listed("each failing operation", area, every_failure())
    yield Stream("several", area, groups(course=Course.SEVERAL, max_rollouts=4), 0.6)
    yield Stream("hostile", area, groups(mix=Mix.HOSTILE, max_rollouts=5), 0.7)
    yield Stream("unreadable receipts", area, unreadable_groups(), 0.5)
