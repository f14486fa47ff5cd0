"""Faults that text groups and rollouts do not have: what sections 5 and 8 say is forgotten in one mode only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from attrs import evolve

from rollproof.properties.mutants.mutant import Mutant, Replacement, patches
from rollproof.spec.group import GroupFailed
from rollproof.spec.outcomes import Failure, RolloutOutcome
from rollproof.spec.plane import Outage
from rollproof.spec.records import FinalizedGroup, ReassemblerConfig

Where = Callable[[ReassemblerConfig], bool]
"""Whether a reassembler is in the mode."""


def configured(where: Where, **changes: Any) -> Replacement:
    """A function gets another configuration."""

    def replacement(function: Any) -> Any:
        return lambda config, *others: function(evolve(config, **changes) if where(config) else config, *others)

    return replacement


def asked(where: Where, **changes: Any) -> Replacement:
    """A function gets other arguments of the caller."""

    def replacement(function: Any) -> Any:
        def wrong(config: ReassemblerConfig, request: Any, *others: Any) -> Any:
            return function(config, evolve(request, **changes) if where(config) else request, *others)

        return wrong

    return replacement


def nobody_masked(where: Where) -> Replacement:
    """Rows are built as if no sample was masked."""

    def replacement(build_rows: Any) -> Any:
        def wrong(config: ReassemblerConfig, request: Any, *others: Any) -> Any:
            none = (False,) * len(request.mask_sample)
            return build_rows(config, evolve(request, mask_sample=none) if where(config) else request, *others)

        return wrong

    return replacement


def described(where: Where, change: Callable[[FinalizedGroup], Mapping[str, Any]]) -> Replacement:
    """The result of a group is changed."""

    def replacement(describe: Any) -> Any:
        def wrong(config: ReassemblerConfig, *others: Any) -> FinalizedGroup:
            result: FinalizedGroup = describe(config, *others)
            return evolve(result, **change(result)) if where(config) else result

        return wrong

    return replacement


def never_clears(where: Where) -> Replacement:
    """Staging stays."""
    return lambda clear: lambda config, *others: None if where(config) else clear(config, *others)


def clears_first(where: Where) -> Replacement:
    """Staging is cleared before the rows are published, and once more after it."""

    def replacement(publish: Any) -> Any:
        def wrong(config: ReassemblerConfig, request: Any, plane: Any, outcomes: Any, dims: Any) -> Any:
            owned = tuple(key for outcome in outcomes for key in outcome.own_keys)
            if where(config) and owned:
                plane.clear(config.staging_partition, owned)
            return publish(config, request, plane, outcomes, dims)

        return wrong

    return replacement


def rejection_raises(where: Where) -> Replacement:
    """A rejected rollout takes its group down."""

    def replacement(finalize_group: Any) -> Any:
        def wrong(config: ReassemblerConfig, *others: Any) -> Any:
            outcome = finalize_group(config, *others)
            if where(config) and not all(rollout.valid for rollout in outcome.rollouts):
                raise ValueError("a rollout was rejected")
            return outcome

        return wrong

    return replacement


def outage_is_a_rejection(where: Where) -> Replacement:
    """A rollout that cannot be read has no receipt."""

    def replacement(finalize_rollout: Any) -> Any:
        def wrong(config: ReassemblerConfig, rollout_id: Any, receipt: Any, *others: Any) -> Any:
            try:
                return finalize_rollout(config, rollout_id, receipt, *others)
            except Outage:
                if not where(config):
                    raise
                return finalize_rollout(config, rollout_id, None, *others)

        return wrong

    return replacement


def failed_put_looks_published(where: Where) -> Replacement:
    """A failed put is raised as a failed clear."""

    def replacement(publish: Any) -> Any:
        def wrong(config: ReassemblerConfig, *others: Any) -> Any:
            try:
                return publish(config, *others)
            except GroupFailed as failed:
                if where(config) and failed.failure is Failure.PUT:
                    raise GroupFailed(Failure.CLEAR) from None
                raise

        return wrong

    return replacement


def finalized(where: Where, change: Callable[[RolloutOutcome], Mapping[str, Any]]) -> Replacement:
    """A finalized rollout is changed."""

    def replacement(finalize_rollout: Any) -> Any:
        def wrong(config: ReassemblerConfig, *others: Any) -> RolloutOutcome:
            outcome: RolloutOutcome = finalize_rollout(config, *others)
            return evolve(outcome, rollout=evolve(outcome.rollout, **change(outcome))) if where(config) else outcome

        return wrong

    return replacement


def reads_twice(where: Where) -> Replacement:
    """Everything is read, and then read again."""

    def replacement(finalize_rollout: Any) -> Any:
        def wrong(config: ReassemblerConfig, *others: Any) -> RolloutOutcome:
            if where(config):
                finalize_rollout(config, *others)
            outcome: RolloutOutcome = finalize_rollout(config, *others)
            return outcome

        return wrong

    return replacement


def oldest_version_alone(result: FinalizedGroup) -> Mapping[str, Any]:
    """The newest version is said to be the oldest."""
    return {"group_max_wv": result.group_min_wv}


def rejections_counted_twice(result: FinalizedGroup) -> Mapping[str, Any]:
    """Counts of rejections by code are doubled."""
    twice = {name: 2 * value for name, value in result.metrics.items() if name.startswith("finalize/rejection_")}
    return {"metrics": {**result.metrics, **twice}}


def rejected_without_keys(outcome: RolloutOutcome) -> Mapping[str, Any]:
    """Rejected rollouts have no staging keys."""
    return {} if outcome.rollout.valid else {"staging_keys": ()}


def certain(outcome: RolloutOutcome) -> Mapping[str, Any]:
    """Every token was certain."""
    return {"logprobs": (0.0,) * len(outcome.rollout.logprobs)}


GROUP_FAULTS: Final[Mapping[str, tuple[str, Callable[[Where], dict[str, Replacement]]]]] = {
    "multiplier-lost": (
        "the loss multiplier is 1",
        lambda where: patches(group__build_rows=asked(where, loss_multiplier=1.0)),
    ),
    "masks-lost": ("no sample is masked", lambda where: patches(group__build_rows=nobody_masked(where))),
    "prompt-lost": ("every prompt is the first", lambda where: patches(group__build_rows=asked(where, prompt_idx=0))),
    "fallback-lost": (
        "groups without a valid row are of weight version 0",
        lambda where: patches(
            group__build_rows=asked(where, fallback_weight_version=0),
            group__describe=asked(where, fallback_weight_version=0),
        ),
    ),
    "current-version-lost": (
        "rows of a newer version than the trainer's are not counted",
        lambda where: patches(group__describe=asked(where, current_weight_version=None)),
    ),
    "group-key-lost": (
        "rows have no group key",
        lambda where: patches(group__build_rows=configured(where, publish_group_key=False)),
    ),
    "never-truncated": (
        "rows are of any length",
        lambda where: patches(group__build_rows=configured(where, max_seq_len=2**62)),
    ),
    "pad-token-zero": (
        "placeholders hold token 0",
        lambda where: patches(group__build_rows=configured(where, pad_token_id=0)),
    ),
    "never-cleared": (
        "nothing that was staged is ever cleared",
        lambda where: patches(group__clear=never_clears(where)),
    ),
    "cleared-first": (
        "staging is cleared before the rows are published",
        lambda where: patches(group__publish=clears_first(where)),
    ),
    "rejected-with-its-group": (
        "a rejected rollout takes its group down",
        lambda where: patches(judge__oracle__finalize_group=rejection_raises(where)),
    ),
    "outage-rejected": (
        "a rollout that cannot be read becomes a placeholder",
        lambda where: patches(group__finalize_rollout=outage_is_a_rejection(where)),
    ),
    "failed-put-looks-published": (
        "a failed put looks like a failed clear",
        lambda where: patches(group__publish=failed_put_looks_published(where)),
    ),
    "newest-version-lost": (
        "the newest weight version of a group is its oldest",
        lambda where: patches(group__describe=described(where, oldest_version_alone)),
    ),
    "rejections-counted-twice": (
        "every rejection is counted twice",
        lambda where: patches(group__describe=described(where, rejections_counted_twice)),
    ),
}
"""Per fault of groups, what it does and its patches."""

ROLLOUT_FAULTS: Final[Mapping[str, tuple[str, Callable[[Where], dict[str, Replacement]]]]] = {
    "any-token-id": (
        "token ids beyond the vocabulary are accepted",
        lambda where: patches(judge__oracle__finalize_rollout=configured(where, vocab_size=None)),
    ),
    "rejected-without-keys": (
        "a rejected rollout has no staging keys",
        lambda where: patches(judge__oracle__finalize_rollout=finalized(where, rejected_without_keys)),
    ),
    "log-probs-lost": (
        "log-probabilities are 0",
        lambda where: patches(judge__oracle__finalize_rollout=finalized(where, certain)),
    ),
    "read-twice": (
        "staged rows are read twice",
        lambda where: patches(judge__oracle__finalize_rollout=reads_twice(where)),
    ),
}
"""Per fault of single rollouts, what it does and its patches."""

MODES: Final[Mapping[str, tuple[str, Where, str, str]]] = {
    "direct": ("with direct router replay", lambda config: config.direct_routes, "ROUTE-18", "ROUTE-17"),
    "deferred": (
        "with deferred router replay",
        lambda config: config.defer_routed_experts_to_policy,
        "ROUTE-18",
        "ROUTE-17",
    ),
    "media": ("in a media partition", lambda config: config.capture_media, "MEDIA-11", "MEDIA-11"),
    "boundary": (
        "where boundaries are repaired",
        lambda config: config.route_boundary is not None,
        "BOUNDARY-12",
        "BOUNDARY-9",
    ),
    "sampler": ("with sampler columns", lambda config: config.top_logprobs > 0, "SAMPLER-7", "SAMPLER-5"),
}
"""Per mode, its words, whether a reassembler is in it, and the invariants of its groups and of its rollouts."""

PASSED_OVER: Final = frozenset({"deferred-never-cleared"})
"""What is no fault: in deferred mode the policy clears."""

MUTANTS: Final = tuple(
    Mutant(f"{mode}-{name}", invariant, f"contract section {section}", f"{words.capitalize()}, {what}.", make(where))
    for mode, (words, where, of_groups, of_rollouts) in MODES.items()
    for faults, invariant, section in ((GROUP_FAULTS, of_groups, "8"), (ROLLOUT_FAULTS, of_rollouts, "5"))
    for name, (what, make) in faults.items()
    if f"{mode}-{name}" not in PASSED_OVER
)
