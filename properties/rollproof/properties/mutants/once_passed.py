"""Faults that the gate once passed, because what it drew was too thin to show them: they keep it thick enough."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from attrs import evolve

from rollproof.properties.mutants.mutant import Mutant, patches
from rollproof.spec.constants import BUNDLE_SIZES, PIXEL_VALUES
from rollproof.spec.outcomes import GroupOutcome
from rollproof.spec.records import FinalizedRollout, ReassemblerConfig
from rollproof.spec.rejections import Code
from rollproof.spec.tensor import Tensor, to_float32

LOST_WITH: Final = (
    Code.EMPTY_GENERATION,
    Code.CORRUPT_DIGEST,
    Code.MISSING_PARENT,
    Code.PARENT_LENGTH_MISMATCH,
    Code.LINEAGE_CYCLE,
    Code.CHAIN_HASH_MISMATCH,
    Code.REBUILD_DUPLICATE_STAGING_KEY,
)
"""Codes of section 4 that no group met at seed 0."""

LOST_WITH_ROUTES: Final = (
    Code.FRAGMENT_VALUE_RANGE,
    Code.FRAGMENT_PARTIAL_SENTINEL,
    Code.FRAGMENT_DUPLICATE_EXPERT,
    Code.FRAGMENT_INTEGRITY,
    Code.ROUTED_LEN_MISMATCH,
)
"""Codes of section 6 that no group could meet."""


LOST_WHEN_ROUTED: Final = (
    ("direct", Code.CORRUPT_DIGEST),
    ("direct", Code.MISSING_STAGING_ROW),
    ("direct", Code.INVALID_REWARD),
    ("deferred", Code.EMPTY_GENERATION),
    ("deferred", Code.CALL_ID_MISMATCH),
    ("deferred", Code.UNSUPPORTED_ROUTE_BOUNDARY),
)
"""Codes that no group with router replay met by construction, by route mode."""


def anywhere(_config: ReassemblerConfig) -> bool:
    """Return True."""
    return True


def routed(mode: str) -> Callable[[ReassemblerConfig], bool]:
    """Return a check whether a reassembler replays routes in a mode."""
    return lambda config: config.router_replay_enabled and config.defer_routed_experts_to_policy == (mode == "deferred")


def lost_with(code: Code, where: Callable[[ReassemblerConfig], bool] = anywhere) -> Any:
    """The group raises where one of its rollouts is rejected with a code, alone or as the subject of another."""

    def replacement(finalize_group: Any) -> Any:
        def wrong(*arguments: Any) -> GroupOutcome:
            outcome: GroupOutcome = finalize_group(*arguments)
            for rollout in outcome.rollouts if where(arguments[0]) else ():
                if code.code in (rollout.rejection_reason or "").split(":")[:2]:
                    raise ValueError(f"{rollout.rollout_id}: {rollout.rejection_reason}")
            return outcome

        return wrong

    return replacement


def lost_replay(code: Code) -> Any:
    """The policy's replay raises where a row fails with a code, instead of making that row sentinel."""

    def replacement(execute: Any) -> Any:
        def wrong(*arguments: Any, **options: Any) -> Any:
            row = execute(*arguments, **options)
            if row.failure == code.code:
                raise ValueError(row.failure)
            return row

        return wrong

    return replacement


def weight_of_empty_answers(build_rows: Any) -> Any:
    """A rollout without generated tokens is a placeholder, but it weighs as much as a valid one."""

    def wrong(config: Any, request: Any, outcomes: Sequence[Any], dims: Any) -> Any:
        weight = Tensor.of("float32", [abs(to_float32(float(request.loss_multiplier)))], ())
        return tuple(
            evolve(row, columns={**row.columns, "sample_mask": weight})
            if outcome.rollout.rejection_reason and Code.EMPTY_GENERATION.code in outcome.rollout.rejection_reason
            else row
            for row, outcome in zip(build_rows(config, request, outcomes, dims), outcomes, strict=True)
        )

    return wrong


def pixels_of_the_first(group_fields: Any) -> Any:
    """Rows whose sizes are those of the group's first media row get its pixels."""

    def wrong(rollouts: Sequence[FinalizedRollout]) -> Any:
        first = next((rollout.media for rollout in rollouts if rollout.media), None)
        return group_fields(
            [
                evolve(rollout, media={**rollout.media, PIXEL_VALUES: first[PIXEL_VALUES]})
                if first and rollout.media and rollout.media[BUNDLE_SIZES] == first[BUNDLE_SIZES]
                else rollout
                for rollout in rollouts
            ]
        )

    return wrong


def sizes_of_the_first(join: Any) -> Any:
    """A call whose images are as many and as large as the first call's gets the sizes of those."""

    def areas(part: Mapping[str, Tensor]) -> tuple[int, int]:
        values = [int(value) for value in part[BUNDLE_SIZES].values()]
        return len(values), sum(height * width for height, width in zip(values[::2], values[1::2], strict=True))

    def wrong(parts: Sequence[Mapping[str, Tensor]], *names: Any) -> Any:
        first = parts[0]
        sizes = {BUNDLE_SIZES: first[BUNDLE_SIZES]}
        return join([{**part, **sizes} if areas(part) == areas(first) else part for part in parts], *names)

    return wrong


def plain_numbers(as_number: Any) -> Any:
    """Only Python's own numbers count."""
    return lambda value: as_number(value) if isinstance(value, int | float) else None


def any_single_element(as_number: Any) -> Any:
    """Whatever has one element counts as that."""

    def wrong(value: Any) -> Any:
        single = getattr(value, "shape", None) in ((1,), (1, 1), (1, 1, 1))
        return as_number(value.reshape(()) if single else value)

    return wrong


def truth_too(as_number: Any) -> Any:
    """A bool of a library counts as a number."""

    def wrong(value: Any) -> Any:
        try:
            held = value.item() if getattr(value, "shape", None) == () else None
        except Exception:
            held = None
        return int(held) if isinstance(held, bool) else as_number(value)

    return wrong


MUTANTS: Final = (
    *(
        Mutant(
            f"group-lost-with-{code.code.replace('_', '-')}",
            "GROUP-1",
            "contract section 8",
            f"A rollout that is rejected with {code.code} takes its group down.",
            patches(judge__oracle__finalize_group=lost_with(code)),
        )
        for code in LOST_WITH
    ),
    *(
        Mutant(
            f"group-lost-with-{code.code.replace('_', '-')}",
            "ROUTE-14",
            "contract section 6",
            f"A rollout that is rejected with {code.code} takes its group down.",
            patches(judge__oracle__finalize_group=lost_with(code)),
        )
        for code in LOST_WITH_ROUTES
    ),
    *(
        Mutant(
            f"{mode}-group-lost-with-{code.code.replace('_', '-')}",
            "ROUTE-14",
            "contract section 8",
            f"With {mode} router replay a rollout that is rejected with {code.code} takes its group down.",
            patches(judge__oracle__finalize_group=lost_with(code, routed(mode))),
        )
        for mode, code in LOST_WHEN_ROUTED
    ),
    *(
        Mutant(
            f"replay-lost-with-{code.code.replace('_', '-')}",
            "ROUTE-12",
            "contract section 6",
            f"A row that fails with {code.code} in the policy's replay takes its batch down.",
            patches(judge__oracle__execute_published_plan=lost_replay(code)),
        )
        for code in (Code.FRAGMENT_INTEGRITY, Code.FRAGMENT_VALUE_RANGE, Code.FRAGMENT_MODEL_SHAPE)
    ),
    Mutant(
        "media-group-lost-with-media-commitment",
        "MEDIA-11",
        "contract section 8",
        "A rollout that is rejected with media_commitment takes its group down.",
        patches(judge__oracle__finalize_group=lost_with(Code.MEDIA_COMMITMENT)),
    ),
    Mutant(
        "array-rewards-refused",
        "ROLLOUT-9",
        "contract section 5",
        "A reward that is a number of numpy or torch rejects its rollout, and its staging is cleared.",
        patches(rollout__as_number=plain_numbers),
    ),
    Mutant(
        "array-weights-refused",
        "GROUP-7",
        "contract section 8",
        "A loss multiplier that is a number of numpy or torch is taken for an error of the caller.",
        patches(group__as_number=plain_numbers),
    ),
    Mutant(
        "one-element-is-a-reward",
        "ROLLOUT-9",
        "contract section 5",
        "An array or tensor of one element is taken for a number, whatever its shape.",
        patches(rollout__as_number=any_single_element),
    ),
    Mutant(
        "truth-is-a-reward",
        "ROLLOUT-9",
        "contract section 5",
        "A bool of numpy or torch is the reward 0 or 1.",
        patches(rollout__as_number=truth_too),
    ),
    Mutant(
        "empty-answers-keep-their-weight",
        "GROUP-3",
        "NVIDIA-NeMo/RL 4001",
        "The placeholder of an answer without tokens weighs as much as a valid row.",
        patches(group__build_rows=weight_of_empty_answers),
    ),
    Mutant(
        "pixels-of-the-first-row",
        "MEDIA-9",
        "NVIDIA-NeMo/RL 4188",
        "A row gets the pixels of the group's first media row where both have the same sizes.",
        patches(media__group_fields=pixels_of_the_first),
    ),
    Mutant(
        "sizes-of-the-first-call",
        "MEDIA-11",
        "NVIDIA-NeMo/RL 4188",
        "A later call gets the first call's sizes where number and area agree: (2, 1) becomes (1, 2).",
        patches(media__join=sizes_of_the_first),
    ),
    Mutant(
        "sizes-of-the-first-part",
        "MEDIA-2",
        "NVIDIA-NeMo/RL 4188",
        "The same where media are joined: a later part gets the first one's sizes.",
        patches(bundles__join=sizes_of_the_first),
    ),
)
