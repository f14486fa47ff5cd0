"""Mutants of publishing a group that are faults met in public, and those of the invariants beside them (section 8)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from attrs import evolve

from rollproof.properties.mutants.mutant import Mutant, patches
from rollproof.spec.judge.staging import FailingPlane
from rollproof.spec.outcomes import Failure, GroupOutcome, RolloutOutcome
from rollproof.spec.plane import DataPlane, PublishedRow
from rollproof.spec.records import FinalizedRollout, GroupRequest, ReassemblerConfig
from rollproof.spec.tensor import Tensor, to_float32

# ── rows ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def each_row(change: Callable[[ReassemblerConfig, GroupRequest, PublishedRow], dict[str, Tensor | None]]) -> Any:
    """Change every published row: replace its columns by those of ``change``, or drop those that are None there."""

    def replacement(build_rows: Any) -> Any:
        def wrong(config: Any, request: Any, *rest: Any) -> tuple[PublishedRow, ...]:
            rows = []
            for row in build_rows(config, request, *rest):
                columns = {**row.columns, **change(config, request, row)}
                rows.append(evolve(row, columns={name: held for name, held in columns.items() if held is not None}))
            return tuple(rows)

        return wrong

    return replacement


def weight_of_all(_: Any, request: GroupRequest, __: Any) -> dict[str, Tensor | None]:
    """Weigh rejected rows as much as valid ones."""
    return {"sample_mask": Tensor.of("float32", [abs(to_float32(float(request.loss_multiplier)))], ())}


def never_truncated(*_: Any) -> dict[str, Tensor | None]:
    """Mark no row as truncated."""
    return {"truncated": Tensor.of("bool", [False], ())}


def without_truncated(*_: Any) -> dict[str, Tensor | None]:
    """Drop the column."""
    return {"truncated": None}


def truncated_if_longer(config: ReassemblerConfig, _: Any, row: PublishedRow) -> dict[str, Tensor | None]:
    """Treat a row of exactly the largest length as whole."""
    longer = row.columns["input_ids"].count > config.max_seq_len
    return {"truncated": Tensor.of("bool", [longer], ())}


def multiplier_or_one(build_rows: Any) -> Any:
    """Take a loss multiplier of 0 for a missing one."""

    def wrong(config: Any, request: GroupRequest, *rest: Any) -> Any:
        return build_rows(config, evolve(request, loss_multiplier=request.loss_multiplier or 1.0), *rest)

    return wrong


def compacted(build_rows: Any) -> Any:
    """Put the valid rollouts first, and zip them with the rewards and masks of all."""

    def wrong(config: Any, request: Any, outcomes: Sequence[RolloutOutcome], dims: Any) -> Any:
        return build_rows(config, request, sorted(outcomes, key=lambda outcome: not outcome.rollout.valid), dims)

    return wrong


def one_row_more(build_rows: Any) -> Any:
    """Publish a rollout with several calls as a row for each of two segments."""
    return lambda *arguments: (lambda rows: (*rows, rows[-1]))(build_rows(*arguments))


def pad_is_padding(token_columns: Any) -> Any:
    """End a row before its first run of pad tokens that reaches the end."""

    def wrong(config: ReassemblerConfig, rollout: FinalizedRollout) -> Any:
        length = len(rollout.token_ids)
        while length > 1 and rollout.token_ids[length - 1] == config.pad_token_id:
            length -= 1
        cut = {name: getattr(rollout, name)[:length] for name in ("token_ids", "token_mask", "logprobs")}
        return token_columns(config, evolve(rollout, **cut))

    return wrong


# ── arguments, effects and results ──────────────────────────────────────────────────────────────────────────────────


def zipped(finalize_group: Any) -> Any:
    """Cut arguments of different lengths to the shortest."""

    def wrong(config: Any, request: GroupRequest, *rest: Any) -> Any:
        names = ("rollout_ids", "receipts", "rewards", "mask_sample")
        length = min(len(getattr(request, name)) for name in names)
        return finalize_group(
            config, evolve(request, **{name: getattr(request, name)[:length] for name in names}), *rest
        )

    return wrong


def put_failure_ignored(finalize_group: Any) -> Any:
    """Report a failed publication as done."""

    def wrong(config: Any, request: Any, plane: DataPlane, *rest: Any) -> GroupOutcome:
        outcome: GroupOutcome = finalize_group(config, request, plane, *rest)
        if outcome.failure is not Failure.PUT:
            return outcome
        done: GroupOutcome = finalize_group(config, request, DataPlane(plane.rows), *rest)
        return done

    return wrong


def sides_confused(finalize_group: Any) -> Any:
    """Report a failed clear as a failed put."""

    def wrong(*arguments: Any) -> GroupOutcome:
        outcome: GroupOutcome = finalize_group(*arguments)
        return evolve(outcome, failure=Failure.PUT) if outcome.failure is Failure.CLEAR else outcome

    return wrong


def cleared_anyway(finalize_group: Any) -> Any:
    """Clear staging whether or not the publication succeeded."""

    def wrong(config: ReassemblerConfig, request: Any, plane: FailingPlane, *rest: Any) -> GroupOutcome:
        outcome: GroupOutcome = finalize_group(config, request, plane, *rest)
        if outcome.failure is not Failure.PUT or plane.faults.clear:
            return outcome
        keys = tuple(key for rollout in outcome.rollouts for key in rollout.staging_keys)
        plane.clear(config.staging_partition, keys)
        return evolve(outcome, effects=tuple(plane.effects))

    return wrong


def response_length(describe: Any) -> Any:
    """Count every token after the prompt as generated."""

    def wrong(config: Any, request: Any, outcomes: Sequence[RolloutOutcome]) -> Any:
        rollouts = [outcome.rollout for outcome in outcomes if outcome.rollout.valid]
        count = sum(len(rollout.token_ids) - rollout.prompt_len for rollout in rollouts)
        return evolve(describe(config, request, outcomes), canonical_output_tokens=count)

    return wrong


def uncounted(name: str) -> Any:
    """Report 0 for one advisory, always."""
    return patches(metrics__advisories=lambda advisories: lambda *given: advisories(*given) | {f"advisory/{name}": 0.0})


MUTANTS: Final = (
    Mutant(
        "segment-counted-as-row",
        "GROUP-2",
        "radixark/miles 1325",
        "A rollout that was cut into two segments is two rows.",
        patches(group__build_rows=one_row_more),
    ),
    Mutant(
        "lengths-zipped",
        "GROUP-7",
        "contract decision D13",
        "Three rewards for four rollouts: the fourth rollout is silently left out.",
        patches(judge__oracle__finalize_group=zipped),
    ),
    Mutant(
        "failed-put-ignored",
        "GROUP-8",
        "contract section 8",
        "A failed publication is reported as done, and its staging cleared.",
        patches(judge__oracle__finalize_group=put_failure_ignored),
    ),
    Mutant(
        "failed-clear-looks-like-failed-put",
        "GROUP-8",
        "contract section 8",
        "After a failed clear the caller is told to run the group again, which would publish placeholders.",
        patches(judge__oracle__finalize_group=sides_confused),
    ),
    Mutant(
        "truncated-column-missing",
        "GROUP-11",
        "NVIDIA-NeMo/RL 4042, 2163",
        "There is no column that says which rows were truncated.",
        patches(group__build_rows=each_row(without_truncated)),
    ),
    Mutant(
        "masked-rows-vote",
        "GROUP-12",
        "NVIDIA-NeMo/RL 4160; OpenRLHF/OpenRLHF 1239",
        "Rejected rows weigh as much as valid ones in the group's baseline.",
        patches(group__build_rows=each_row(weight_of_all)),
    ),
    Mutant(
        "zero-multiplier-lost",
        "GROUP-12",
        "NVIDIA-NeMo/RL 3786",
        "A loss multiplier of 0 is taken for a missing one.",
        patches(group__build_rows=multiplier_or_one),
    ),
    Mutant(
        "zero-logprobs-unnoticed",
        "GROUP-13",
        "vllm-project/vllm 17876",
        "Calls whose log-probabilities are all 0.0 are not counted.",
        uncounted("zero_logprob_generations"),
    ),
    Mutant(
        "positive-logprobs-unnoticed",
        "GROUP-13",
        "AI-Hypercomputer/maxtext 5231",
        "Log-probabilities above zero are not counted.",
        uncounted("positive_logprob_tokens"),
    ),
    Mutant(
        "weight-version-falls-unnoticed",
        "GROUP-13",
        "rllm-org/rllm 622; areal-project/AReaL 1342; radixark/miles 2244; Tencent-Hunyuan/UniRL 324",
        "A weight version that is read late, reset or restarted falls along the chain, and is not counted.",
        uncounted("weight_version_falls"),
    ),
    Mutant(
        "overlong-rows-unnoticed",
        "GROUP-13",
        "THUDM/slime 2260",
        "A resumed rollout that got its whole budget again is longer than allowed, and is not counted.",
        uncounted("overlong_rows"),
    ),
    Mutant(
        "truncated-hard-coded",
        "GROUP-14",
        "NVIDIA-NeMo/RL 3837",
        "Every row says that it was not truncated.",
        patches(group__build_rows=each_row(never_truncated)),
    ),
    Mutant(
        "truncated-only-beyond-the-limit",
        "GROUP-14",
        "contract decision D12",
        "A row of exactly the largest length counts as whole.",
        patches(group__build_rows=each_row(truncated_if_longer)),
    ),
    Mutant(
        "padding-read-off-tokens",
        "GROUP-15",
        "huggingface/trl 4970",
        "A generated end token that is also the pad token is cut off as padding.",
        patches(rows__token_columns=pad_is_padding),
    ),
    Mutant(
        "compacted-results-zipped",
        "GROUP-15",
        "NVIDIA-NeMo/RL 3923, 3794",
        "The results of valid rollouts move up, and meet the inputs of others.",
        patches(group__build_rows=compacted),
    ),
    Mutant(
        "failed-put-clears",
        "GROUP-16",
        "contract section 8",
        "Staging is cleared after a failed publication too: running the group again publishes placeholders.",
        patches(judge__oracle__finalize_group=cleared_anyway),
    ),
    Mutant(
        "tool-tokens-counted-as-output",
        "GROUP-17",
        "OpenRLHF/OpenRLHF 1252; NovaSky-AI/SkyRL 1821",
        "Response length counts what tools returned: 12 instead of 9.",
        patches(group__describe=response_length),
    ),
)
