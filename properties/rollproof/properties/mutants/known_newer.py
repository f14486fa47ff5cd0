"""Faults met in public that a third search found, each written down before it was known whether the gate notices it.

``docs/findings.md`` says which of them lived at first, and what was missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from attrs import evolve

from rollproof.properties.mutants.known_group import each_row
from rollproof.properties.mutants.mutant import Mutant, patches
from rollproof.spec.constants import PIXEL_VALUES
from rollproof.spec.outcomes import RolloutOutcome
from rollproof.spec.plane import DataPlane, PublishedRow
from rollproof.spec.records import FinalizedRollout, GroupRequest, LinearizedRow, ReassemblerConfig, Receipt, StagedCall
from rollproof.spec.rejections import Code, Rejected
from rollproof.spec.rollout import says_length
from rollproof.spec.tensor import Tensor

# ── rows ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def masked_where_prefixes_differ(linearize: Any) -> Any:
    """A chain that does not continue what was sampled becomes a row that trains nothing."""

    def wrong(receipt: Receipt, calls: Sequence[StagedCall]) -> LinearizedRow:
        try:
            row: LinearizedRow = linearize(receipt, calls)
            return row
        except Rejected as rejected:
            if rejected.code is not Code.CUMULATIVE_HASH_MISMATCH:
                raise
            ids = tuple(token for call in calls for token in call.token_ids_delta)
            nothing = (0.0,) * len(ids)
            names = tuple(call.model_call_id for call in calls)
            versions = tuple(call.weight_version for call in calls)
            return LinearizedRow(receipt.rollout_id, ids, nothing, nothing, len(ids), names, versions, (), (), ())

    return wrong


def cut_to_one_generation(linearize: Any) -> Any:
    """The response of a whole chain is cut to the length of its longest generation."""

    def wrong(receipt: Receipt, calls: Sequence[StagedCall]) -> LinearizedRow:
        row: LinearizedRow = linearize(receipt, calls)
        end = row.prompt_len + max(span.generation_len for span in row.link_spans)
        return evolve(row, token_ids=row.token_ids[:end], token_mask=row.token_mask[:end], logprobs=row.logprobs[:end])

    return wrong


def read_at_the_end(version_range: Any) -> Any:
    """The newest version is that of the call that was recorded last."""

    def wrong(receipt: Receipt) -> tuple[int, int]:
        return version_range(receipt)[0], receipt.manifest[-1].weight_version

    return wrong


def cut_off_by_any_call(accept: Any) -> Any:
    """Every call of the chain says whether the row is cut off."""

    def wrong(config: Any, receipt: Any, row: LinearizedRow, staged: Any, *rest: Any) -> RolloutOutcome:
        outcome: RolloutOutcome = accept(config, receipt, row, staged, *rest)
        chain = [item for item in staged if item.call.model_call_id in row.model_call_ids]
        return evolve(outcome, stopped_for_length=any(says_length(item) for item in chain))

    return wrong


# ── groups ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def whole_partition(clear: Any) -> Any:
    """Clearing a group's staged rows clears whatever is staged."""

    def wrong(config: ReassemblerConfig, plane: DataPlane, keys: Sequence[str]) -> None:
        clear(config, plane, tuple(dict.fromkeys((*keys, *plane.rows))) if keys else keys)

    return wrong


def mask_on_the_right(build_rows: Any) -> Any:
    """The mask is padded on the left and the tokens on the right, and both are cut to the row."""

    def wrong(*arguments: Any) -> tuple[PublishedRow, ...]:
        rows: tuple[PublishedRow, ...] = build_rows(*arguments)
        longest = max(row.columns["token_mask"].count for row in rows)
        return tuple(evolve(row, columns={**row.columns, "token_mask": moved(row, longest)}) for row in rows)

    return wrong


def moved(row: PublishedRow, longest: int) -> Tensor:
    """Return a row's mask as far to the right as its padding is long."""
    mask = row.columns["token_mask"].values()
    return Tensor.of("float32", ((0.0,) * (longest - len(mask)) + mask)[: len(mask)])


def whole_rewards(_: Any, request: GroupRequest, row: PublishedRow) -> dict[str, Tensor | None]:
    """The first reward's type is the column's: a whole number makes all of them whole."""
    if type(request.rewards[0]) is not int:
        return {}
    return {"total_reward": Tensor.of("int64", [int(row.columns["total_reward"].values()[0])], ())}


# ── media and routes ────────────────────────────────────────────────────────────────────────────────────────────────


def pixels_left_behind(group_fields: Any) -> Any:
    """The rows keep their placeholders, and nobody hands their pixels on."""
    return lambda _rollouts: {}


def pixels_in_bfloat16(group_fields: Any) -> Any:
    """Pixels are published as bfloat16, whatever the engine saw."""

    def wrong(rollouts: Sequence[FinalizedRollout]) -> Any:
        fields = group_fields(rollouts)
        if PIXEL_VALUES in fields:
            fields[PIXEL_VALUES] = tuple(None if one is None else halved(one) for one in fields[PIXEL_VALUES])
        return fields

    return wrong


def halved(pixels: Tensor) -> Tensor:
    """Return float32 values as bfloat16: the upper half of their bits."""
    if pixels.dtype != "float32":
        return pixels
    upper = b"".join(pixels.data[at + 2 : at + 4] for at in range(0, len(pixels.data), 4))
    return Tensor("bfloat16", pixels.shape, upper)


def prompt_routes_zero(assemble_directly: Any) -> Any:
    """The prompt's routes come from another buffer, which nobody filled."""

    def wrong(config: Any, plan: Any, chain: Any, dims: Any) -> Tensor | None:
        routes: Tensor | None = assemble_directly(config, plan, chain, dims)
        if routes is None:
            return None
        width, carry = routes.shape[1] * routes.shape[2], plan.spans[0].carry_len
        ids = [0 if at < carry * width and expert >= 0 else expert for at, expert in enumerate(routes.values())]
        return Tensor.of(routes.dtype, ids, routes.shape)

    return wrong


MUTANTS: Final = (
    Mutant(
        "mismatch-trains-nothing",
        "LINEAGE-3",
        "rllm-org/rllm 352",
        "Where a later prompt does not continue what was sampled, the row is kept and its mask is all zeros.",
        patches(judge__oracle__linearize=masked_where_prefixes_differ),
    ),
    Mutant(
        "row-cut-to-one-generation",
        "ROLLOUT-7",
        "rllm-org/rllm 575",
        "A row of several calls is cut to the length that one call may have: later turns are lost.",
        patches(rollout__linearize=cut_to_one_generation),
    ),
    Mutant(
        "version-read-at-the-end",
        "ROLLOUT-8",
        "areal-project/AReaL 1569",
        "The version is read again when the answer is there: tokens get a version that did not sample them.",
        patches(rollout__version_range=read_at_the_end),
    ),
    Mutant(
        "cut-off-by-any-call",
        "GROUP-14",
        "PrimeIntellect-ai/prime-rl 855",
        "One earlier call that reached its limit marks the whole rollout as cut off.",
        patches(rollout__accept=cut_off_by_any_call),
    ),
    Mutant(
        "clears-the-partition",
        "GROUP-4",
        "TransferQueue/TransferQueue 159",
        "There is one way to clear, and it takes the whole partition: what others staged is lost.",
        patches(group__clear=whole_partition),
    ),
    Mutant(
        "mask-padded-on-the-left",
        "GROUP-15",
        "huggingface/trl 5785",
        "Two columns of a batch are padded on different sides, so that the shorter rows are misaligned.",
        patches(group__build_rows=mask_on_the_right),
    ),
    Mutant(
        "rewards-become-whole",
        "GROUP-12",
        "THUDM/slime 2121",
        "A first reward that is an int makes the column one of integers.",
        patches(group__build_rows=each_row(whole_rewards)),
    ),
    Mutant(
        "pixels-left-behind",
        "MEDIA-8",
        "microsoft/agent-lightning 559",
        "Rows with images reach the trainer without their pixels.",
        patches(media__group_fields=pixels_left_behind),
    ),
    Mutant(
        "pixels-in-bfloat16",
        "MEDIA-9",
        "NVIDIA-NeMo/RL 3527",
        "The dtype of pixels is hard-coded on the way to the trainer.",
        patches(media__group_fields=pixels_in_bfloat16),
    ),
    Mutant(
        "prompt-routes-zero",
        "ROUTE-17",
        "vllm-project/tpu-inference 3583",
        "The prompt's routes are read from a buffer that was filled for other layers: they are all 0.",
        patches(routes__assemble_directly=prompt_routes_zero),
    ),
)
