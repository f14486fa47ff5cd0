"""Faults that text groups and rollouts do not have: what sections 5 and 8 say is forgotten in one mode only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from attrs import evolve

from rollproof.properties.mutants.mutant import Mutant, Replacement
from rollproof.spec.group import GroupFailed
from rollproof.spec.outcomes import Failure, RolloutOutcome
from rollproof.spec.plane import Outage
from rollproof.spec.records import FinalizedGroup, ReassemblerConfig

Where = Callable[[ReassemblerConfig], bool]
"""Whether a reassembler is in the mode."""

Fault = Callable[..., Any]
"""What is called in place of a function of the spec: with that function, the configuration, and its other arguments."""


def in_mode(where: Where, fault: Fault) -> Replacement:
    """Replace a function in one mode; in all others it stays as it is."""
    return lambda function: (
        lambda config, *others: fault(function, config, *others) if where(config) else function(config, *others)
    )


# ── faults ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def configured(**changes: Any) -> Fault:
    """The function gets another configuration."""
    return lambda function, config, *others: function(evolve(config, **changes), *others)


def asked(**changes: Any) -> Fault:
    """The function gets other arguments of the caller."""
    return lambda function, config, request, *others: function(config, evolve(request, **changes), *others)


def nobody_masked(build_rows: Any, config: Any, request: Any, *others: Any) -> Any:
    """Rows are built as if no sample was masked."""
    return build_rows(config, evolve(request, mask_sample=(False,) * len(request.mask_sample)), *others)


def never_clears(*_: Any) -> None:
    """Staging stays."""


def clears_first(publish: Any, config: Any, request: Any, plane: Any, outcomes: Any, dims: Any) -> Any:
    """Staging is cleared before the rows are published, and once more after it."""
    owned = tuple(key for outcome in outcomes for key in outcome.own_keys)
    if owned:
        plane.clear(config.staging_partition, owned)
    return publish(config, request, plane, outcomes, dims)


def rejection_raises(finalize_group: Any, *given: Any) -> Any:
    """A rejected rollout takes its group down."""
    outcome = finalize_group(*given)
    if not all(rollout.valid for rollout in outcome.rollouts):
        raise ValueError("a rollout was rejected")
    return outcome


def outage_is_a_rejection(finalize_rollout: Any, config: Any, rollout_id: Any, receipt: Any, *others: Any) -> Any:
    """A rollout that cannot be read has no receipt."""
    try:
        return finalize_rollout(config, rollout_id, receipt, *others)
    except Outage:
        return finalize_rollout(config, rollout_id, None, *others)


def failed_put_looks_published(publish: Any, *given: Any) -> Any:
    """A failed put is raised as a failed clear."""
    try:
        return publish(*given)
    except GroupFailed as failed:
        raise GroupFailed(Failure.CLEAR if failed.failure is Failure.PUT else failed.failure) from None


def oldest_version_alone(describe: Any, *given: Any) -> FinalizedGroup:
    """The newest version is said to be the oldest."""
    result: FinalizedGroup = describe(*given)
    return evolve(result, group_max_wv=result.group_min_wv)


def rejections_counted_twice(describe: Any, *given: Any) -> FinalizedGroup:
    """Counts of rejections by code are doubled."""
    result: FinalizedGroup = describe(*given)
    twice = {name: 2 * value for name, value in result.metrics.items() if name.startswith("finalize/rejection_")}
    return evolve(result, metrics={**result.metrics, **twice})


def rejected_without_keys(finalize_rollout: Any, *given: Any) -> RolloutOutcome:
    """Rejected rollouts have no staging keys."""
    outcome: RolloutOutcome = finalize_rollout(*given)
    return outcome if outcome.rollout.valid else evolve(outcome, rollout=evolve(outcome.rollout, staging_keys=()))


def certain(finalize_rollout: Any, *given: Any) -> RolloutOutcome:
    """Every token was certain."""
    outcome: RolloutOutcome = finalize_rollout(*given)
    return evolve(outcome, rollout=evolve(outcome.rollout, logprobs=(0.0,) * len(outcome.rollout.logprobs)))


def reads_twice(finalize_rollout: Any, *given: Any) -> Any:
    """Everything is read, and then read again."""
    finalize_rollout(*given)
    return finalize_rollout(*given)


# ── mutants ─────────────────────────────────────────────────────────────────────────────────────────────────────────

ROWS, RESULT, PUBLISH, CLEAR = "group.build_rows", "group.describe", "group.publish", "group.clear"
GROUP, IN_GROUP, ROLLOUT = "judge.oracle.finalize_group", "group.finalize_rollout", "judge.oracle.finalize_rollout"
"""The functions of the spec that are replaced."""

GROUP_FAULTS: Final[Mapping[str, tuple[str, Fault, tuple[str, ...]]]] = {
    "multiplier-lost": ("the loss multiplier is 1", asked(loss_multiplier=1.0), (ROWS,)),
    "masks-lost": ("no sample is masked", nobody_masked, (ROWS,)),
    "prompt-lost": ("every prompt is the first", asked(prompt_idx=0), (ROWS,)),
    "fallback-lost": (
        "groups without a valid row are of weight version 0",
        asked(fallback_weight_version=0),
        (ROWS, RESULT),
    ),
    "current-version-lost": (
        "rows of a newer version than the trainer's are not counted",
        asked(current_weight_version=None),
        (RESULT,),
    ),
    "group-key-lost": ("rows have no group key", configured(publish_group_key=False), (ROWS,)),
    "never-truncated": ("rows are of any length", configured(max_seq_len=2**62), (ROWS,)),
    "pad-token-zero": ("placeholders hold token 0", configured(pad_token_id=0), (ROWS,)),
    "never-cleared": ("nothing that was staged is ever cleared", never_clears, (CLEAR,)),
    "cleared-first": ("staging is cleared before the rows are published", clears_first, (PUBLISH,)),
    "rejected-with-its-group": ("a rejected rollout takes its group down", rejection_raises, (GROUP,)),
    "outage-rejected": ("a rollout that cannot be read becomes a placeholder", outage_is_a_rejection, (IN_GROUP,)),
    "failed-put-looks-published": ("a failed put looks like a failed clear", failed_put_looks_published, (PUBLISH,)),
    "newest-version-lost": ("the newest weight version of a group is its oldest", oldest_version_alone, (RESULT,)),
    "rejections-counted-twice": ("every rejection is counted twice", rejections_counted_twice, (RESULT,)),
}
"""Per fault of groups, what it does, and in place of which functions."""

ROLLOUT_FAULTS: Final[Mapping[str, tuple[str, Fault, tuple[str, ...]]]] = {
    "any-token-id": ("token ids beyond the vocabulary are accepted", configured(vocab_size=None), (ROLLOUT,)),
    "rejected-without-keys": ("a rejected rollout has no staging keys", rejected_without_keys, (ROLLOUT,)),
    "log-probs-lost": ("log-probabilities are 0", certain, (ROLLOUT,)),
    "read-twice": ("staged rows are read twice", reads_twice, (ROLLOUT,)),
}
"""The same of single rollouts."""

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
    Mutant(
        f"{mode}-{name}",
        invariant,
        f"contract section {section}",
        f"{words.capitalize()}, {what}.",
        {path: in_mode(where, fault) for path in paths},
    )
    for mode, (words, where, of_groups, of_rollouts) in MODES.items()
    for faults, invariant, section in ((GROUP_FAULTS, of_groups, "8"), (ROLLOUT_FAULTS, of_rollouts, "5"))
    for name, (what, fault, paths) in faults.items()
    if f"{mode}-{name}" not in PASSED_OVER
)
