"""Mutants of publishing a group (section 8)."""

from __future__ import annotations

from typing import Any, Final

from attrs import evolve

from rollproof.properties.mutants.mutant import Mutant, patches
from rollproof.spec.outcomes import GroupOutcome, RolloutOutcome
from rollproof.spec.plane import Clear, Outage, Put
from rollproof.spec.receipt import parse_receipt
from rollproof.spec.records import FinalizedRollout, GroupRequest
from rollproof.spec.tensor import Tensor


def one_row_less(build_rows: Any) -> Any:
    """The last row is lost."""
    return lambda *arguments: build_rows(*arguments)[:-1] or build_rows(*arguments)


def training_placeholders(token_columns: Any) -> Any:
    """The pad token of a placeholder is unmasked."""

    def wrong(config: Any, rollout: FinalizedRollout) -> dict[str, Tensor]:
        columns: dict[str, Tensor] = token_columns(config, rollout)
        return columns if rollout.valid else columns | {"token_mask": Tensor.of("float32", [1.0])}

    return wrong


def every_manifest_key(_: Any) -> Any:
    """Whatever a receipt lists is cleared."""

    def wrong(_request: GroupRequest, outcomes: list[RolloutOutcome]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(key for outcome in outcomes for key in outcome.rollout.staging_keys))

    return wrong


def keys_by_prefix(_: Any) -> Any:
    """A key is own iff it starts with the rollout's id and a slash."""

    def wrong(request: GroupRequest, outcomes: list[RolloutOutcome]) -> tuple[str, ...]:
        return tuple(
            key
            for rollout_id, outcome in zip(request.rollout_ids, outcomes, strict=True)
            for key in outcome.rollout.staging_keys
            if key.startswith(f"{rollout_id}/")
        )

    return wrong


def clear_first(finalize_group: Any) -> Any:
    """Staging is cleared before the rows are published."""

    def wrong(*arguments: Any) -> GroupOutcome:
        outcome: GroupOutcome = finalize_group(*arguments)
        order = sorted(outcome.effects, key=lambda effect: isinstance(effect, Put) - isinstance(effect, Clear))
        reads = [effect for effect in outcome.effects if not isinstance(effect, Put | Clear)]
        return evolve(outcome, effects=(*reads, *(effect for effect in order if isinstance(effect, Put | Clear))))

    return wrong


def outage_is_a_rejection(finalize_rollout: Any) -> Any:
    """A failed read is taken for a missing row: a placeholder is published and staging cleared."""

    def wrong(config: Any, rollout_id: str, receipt: Any, reward: Any, *rest: Any) -> RolloutOutcome:
        try:
            outcome: RolloutOutcome = finalize_rollout(config, rollout_id, receipt, reward, *rest)
        except Outage:
            parsed = parse_receipt(receipt)
            keys = tuple(record.staging_key for record in parsed.manifest)
            return RolloutOutcome(FinalizedRollout(rollout_id, False, "missing_staging_row", 0.0, keys), receipt=parsed)
        return outcome

    return wrong


def trusting_metrics(_: Any) -> Any:
    """The manifest of a raw receipt is taken for a list of objects."""

    def wrong(receipt: Any) -> list[Any]:
        return list(receipt.get("manifest", []))

    return wrong


def always_fallback(_: Any) -> Any:
    """The fallback weight version stamps every group."""
    return lambda request, _rollouts: (request.fallback_weight_version, request.fallback_weight_version)


def last_prompt(sibling_prompt: Any) -> Any:
    """The prompt is taken from the last valid row."""
    return lambda config, rollouts: sibling_prompt(config, list(rollouts)[::-1])


MUTANTS: Final = (
    Mutant(
        "n-minus-one-rows",
        "GROUP-2",
        "NVIDIA-NeMo/labs-molt 109; THUDM/slime 1918",
        "A group publishes one row less than it has rollouts.",
        patches(group__build_rows=one_row_less),
    ),
    Mutant(
        "placeholder-trains",
        "GROUP-3",
        "awslabs/agentcore-rl-toolkit 122",
        "A failed rollout trains as one pad token.",
        patches(group__token_columns=training_placeholders),
    ),
    Mutant(
        "clears-listed-keys",
        "GROUP-4",
        "contract decision D14",
        "A receipt that lists another group's staging keys gets them cleared.",
        patches(group__cleanup_keys=every_manifest_key),
    ),
    Mutant(
        "clears-keys-by-prefix",
        "GROUP-4",
        "contract decision D14",
        "Key a/b/c, listed for another call, is taken for a's own because it starts with a/.",
        patches(group__cleanup_keys=keys_by_prefix),
    ),
    Mutant(
        "put-after-clear",
        "GROUP-5",
        "contract section 8",
        "Staging is cleared before the rows are published: a crash in between loses them.",
        patches(oracle__finalize_group=clear_first),
    ),
    Mutant(
        "outage-becomes-placeholder",
        "GROUP-6",
        "contract section 5",
        "An outage is published as placeholders, and the staged rows are cleared.",
        patches(group__finalize_rollout=outage_is_a_rejection),
    ),
    Mutant(
        "metrics-trust-receipts",
        "GROUP-1",
        "contract section 8",
        'Metrics raise on a receipt with "manifest": 5.',
        patches(metrics__manifest_rows=trusting_metrics),
    ),
    Mutant(
        "fallback-version-on-valid-group",
        "GROUP-9",
        "rllm-org/rllm 622; areal-project/AReaL 1342",
        "A group with valid rows is stamped with the fallback weight version.",
        patches(group__weight_range=always_fallback),
    ),
    Mutant(
        "wrong-sibling-prompt",
        "GROUP-10",
        "contract section 8",
        "The baseline groups by the last valid row's prompt instead of the first's.",
        patches(group__sibling_prompt=last_prompt),
    ),
)
