"""Mutants of publishing a group (section 8)."""

from __future__ import annotations

import re
from typing import Any, Final, cast

from attrs import evolve

from rollproof.properties.mutants.mutant import Mutant, patches
from rollproof.spec.group import sample_ids
from rollproof.spec.outcomes import GroupOutcome, RolloutOutcome
from rollproof.spec.plane import Clear, Outage, Put
from rollproof.spec.receipt import parse_receipt
from rollproof.spec.records import FinalizedRollout, GroupRequest
from rollproof.spec.tensor import Tensor


def one_row_less(build_rows: Any) -> Any:
    """Lose the last row."""
    return lambda *arguments: build_rows(*arguments)[:-1] or build_rows(*arguments)


def training_placeholders(token_columns: Any) -> Any:
    """Unmask the pad token of a placeholder."""

    def wrong(config: Any, rollout: FinalizedRollout) -> dict[str, Tensor]:
        columns: dict[str, Tensor] = token_columns(config, rollout)
        return columns if rollout.valid else columns | {"token_mask": Tensor.of("float32", [1.0])}

    return wrong


def every_manifest_key(_: Any) -> Any:
    """Clear every key that a receipt lists."""

    def wrong(outcomes: list[RolloutOutcome]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(key for outcome in outcomes for key in outcome.rollout.staging_keys))

    return wrong


def keys_by_prefix(_: Any) -> Any:
    """Treat a key as the rollout's own iff it starts with the rollout's id and a slash."""

    def wrong(outcomes: list[RolloutOutcome]) -> tuple[str, ...]:
        rollouts = [outcome.rollout for outcome in outcomes]
        keys = [(rollout.rollout_id, key) for rollout in rollouts for key in rollout.staging_keys]
        return tuple(key for rollout_id, key in keys if key.startswith(f"{rollout_id}/"))

    return wrong


def clear_first(finalize_group: Any) -> Any:
    """Clear staging before the rows are published."""

    def wrong(*arguments: Any) -> GroupOutcome:
        outcome: GroupOutcome = finalize_group(*arguments)
        order = sorted(outcome.effects, key=lambda effect: isinstance(effect, Put) - isinstance(effect, Clear))
        reads = [effect for effect in outcome.effects if not isinstance(effect, Put | Clear)]
        return evolve(outcome, effects=(*reads, *(effect for effect in order if isinstance(effect, Put | Clear))))

    return wrong


def outage_is_a_rejection(finalize_rollout: Any) -> Any:
    """Take a failed read for a missing row: a placeholder is published and staging cleared."""

    def wrong(config: Any, rollout_id: str, receipt: Any, reward: Any, *rest: Any) -> RolloutOutcome:
        try:
            outcome: RolloutOutcome = finalize_rollout(config, rollout_id, receipt, reward, *rest)
        except Outage:
            parsed = parse_receipt(receipt)
            keys = tuple(record.staging_key for record in parsed.manifest)
            rollout = FinalizedRollout(rollout_id, False, "missing_staging_row", 0.0, keys)
            return RolloutOutcome(rollout, receipt=parsed, own_keys=keys)
        return outcome

    return wrong


def trusting_metrics(_: Any) -> Any:
    """Take the manifest of a raw receipt for a list of objects."""

    def wrong(receipt: Any) -> list[Any]:
        return list(receipt.get("manifest", []))

    return wrong


def always_fallback(_: Any) -> Any:
    """Stamp every group with the fallback weight version."""
    return lambda request, _rollouts: (request.fallback_weight_version, request.fallback_weight_version)


def last_prompt(sibling_prompt: Any) -> Any:
    """Take the prompt from the last valid row."""
    return lambda config, rollouts: sibling_prompt(config, list(rollouts)[::-1])


def ids_by_pattern(argument_error: Any) -> Any:
    """Canonical sample ids are matched as the public pattern does: up to a line feed, in any script's digits."""

    def wrong(request: GroupRequest) -> str | None:
        found = [re.match(r"^(.+)_g(\d+)$", sample_id) for sample_id in request.canonical_sample_ids or ()]
        read = [(match[1], int(match[2])) for match in found if match is not None]
        if read == [(request.group_id, index) for index in range(len(request.rollout_ids))]:
            request = evolve(request, canonical_sample_ids=sample_ids(request))
        return cast("str | None", argument_error(request))

    return wrong


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
        patches(rows__token_columns=training_placeholders),
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
        patches(judge__oracle__finalize_group=clear_first),
    ),
    Mutant(
        "outage-becomes-placeholder",
        "GROUP-6",
        "contract section 5",
        "An outage is published as placeholders, and the staged rows are cleared.",
        patches(group__finalize_rollout=outage_is_a_rejection),
    ),
    Mutant(
        "sample-ids-by-pattern",
        "GROUP-7",
        "contract decision D23",
        "A sample id with a trailing line feed, a leading zero or an Arabic digit is taken for the canonical one.",
        patches(group__argument_error=ids_by_pattern),
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
        patches(group__weight_range=always_fallback, rows__weight_range=always_fallback),
    ),
    Mutant(
        "wrong-sibling-prompt",
        "GROUP-10",
        "contract section 8",
        "The baseline groups by the last valid row's prompt instead of the first's.",
        patches(rows__sibling_prompt=last_prompt),
    ),
)
