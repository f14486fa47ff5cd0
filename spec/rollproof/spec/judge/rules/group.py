"""Invariants of finalizing a group (section 8). Most need only the request and the effects."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from attrs import evolve, frozen

from rollproof.spec.constants import GROUP_KEY, ROUTED_EXPERTS, STEP_TIMES
from rollproof.spec.judge.invariant import Case, Invariant, Rule, describe, difference, invariant
from rollproof.spec.judge.latitude import LATER_ADVISORIES, METRIC_PREFIXES, REJECTION_METRICS, comparable
from rollproof.spec.judge.requests import Accepted, Answer, Area, FinalizeGroups, GroupStep
from rollproof.spec.judge.rules.rollout import same_reason
from rollproof.spec.outcomes import Failure, GroupOutcome
from rollproof.spec.plane import Clear, Get, PublishedRow, Put
from rollproof.spec.tensor import Tensor
from rollproof.spec.values import is_identifier, is_rollout_id

GROUP: Final = (FinalizeGroups,)


@frozen
class StepCase:
    """One step of a request: the contract's outcome of it, and that of the implementation under test."""

    request: FinalizeGroups
    step: GroupStep
    contract: GroupOutcome
    answer: GroupOutcome


StepRule: TypeAlias = Callable[[StepCase], str | None]

COLUMN_DTYPES: Final = {
    "input_ids": ("int64", 1),
    "input_lengths": ("int64", 0),
    "generation_logprobs": ("float32", 1),
    "token_mask": ("float32", 1),
    "sample_mask": ("float32", 0),
    "prompt_ids_for_adv": ("int64", 1),
    "total_reward": ("float32", 0),
    "mask_sample": ("bool", 0),
    "truncated": ("bool", 0),
    ROUTED_EXPERTS: ("int16", 3),
}
"""Per published column: dtype, and number of dimensions of one row."""


def outcomes(answer: Answer) -> tuple[GroupOutcome, ...]:
    """Return the outcomes, one per step; none where the implementation crashed."""
    return answer.value if isinstance(answer, Accepted) else ()


def each_step(rule: StepRule) -> Rule:
    """Return a rule that holds where ``rule`` holds for every step of a request."""

    def over_all(case: Case[FinalizeGroups]) -> str | None:
        steps = zip(case.request.steps, outcomes(case.contract), outcomes(case.answer), strict=False)
        for index, (step, wanted, found) in enumerate(steps):
            complaint = rule(StepCase(case.request, step, wanted, found))
            if complaint:
                return f"step {index}: {complaint}" if len(case.request.steps) > 1 else complaint
        return None

    over_all.__doc__ = rule.__doc__
    return over_all


def group_rule(id: str, section: str, sentence: str) -> Callable[[StepRule], Invariant]:
    """Declare a rule of each step as an invariant of groups."""
    return lambda rule: invariant(id, Area.GROUP, section, sentence, GROUP)(each_step(rule))


def values(row: PublishedRow, name: str) -> tuple[int | float | bool, ...]:
    """Return a published column's elements; none where it is missing."""
    return row.columns[name].values() if name in row.columns else ()


def placeholders(wanted: GroupOutcome, found: GroupOutcome) -> Iterator[tuple[PublishedRow, PublishedRow]]:
    """Yield pairs of rows (contract's, implementation's) whose rollout is rejected."""
    for rollout, left, right in zip(wanted.rollouts, wanted.rows or (), found.rows or (), strict=False):
        if not rollout.valid:
            yield left, right


def group_difference(wanted: GroupOutcome, found: GroupOutcome) -> str | None:
    """Return where two results differ first, or None."""
    if wanted.group is None or found.group is None:
        return difference(wanted.group, found.group, "group")
    metrics = comparable_metrics(wanted.group.metrics, found.group.metrics)
    left, right = evolve(wanted.group, metrics=metrics[0]), evolve(found.group, metrics=metrics[1])
    return difference(left, right, "group")


def comparable_metrics(
    wanted: Mapping[str, float], found: Mapping[str, float]
) -> tuple[dict[str, float], dict[str, float]]:
    """Return the metrics of both sides that can be compared.

    Step times are measurements: no two runs share them. Counts of rejections by code, and some advisories, are newer
    than the contract's other metrics: an implementation, or a recorded run, that has none of a kind is judged without.
    """
    newer = [kind for kind in (REJECTION_METRICS, LATER_ADVISORIES) if not any(name.startswith(kind) for name in found)]
    without = (*STEP_TIMES, *(name for kind in newer for name in kind))
    left, right = ({name: side[name] for name in side if not name.startswith(without)} for side in (wanted, found))
    return left, right


@invariant("GROUP-1", Area.GROUP, "8", "Only the failures that the contract names are raised.", GROUP)
def only_named_failures(case: Case[FinalizeGroups]) -> str | None:
    """Metrics, raw receipts and rewards included: none of them may make a group fail, nor the contract itself."""
    if not isinstance(case.contract, Accepted):
        return f"the contract {describe(case.contract)}"
    return None if isinstance(case.answer, Accepted) else f"it {describe(case.answer)}"


@group_rule("GROUP-2", "8", "A group of N rollouts publishes exactly N rows under its N sample ids, or none.")
def n_rows(case: StepCase) -> str | None:
    """A lost row shifts every later reward to another rollout."""
    for put in (effect for effect in case.answer.effects if isinstance(effect, Put)):
        count = len(case.step.request.rollout_ids)
        ids = tuple(f"{case.step.request.group_id}_g{index}" for index in range(count))
        if len(put.rows) != count or put.sample_ids != ids:
            return f"{len(put.rows)} rows under {put.sample_ids}, expected {count} under {ids}"
    if (case.contract.rows is None) != (case.answer.rows is None):
        return "published, expected no rows" if case.answer.rows else "published no rows"
    return None


@group_rule("GROUP-3", "8", "A placeholder is one pad token that trains nothing: mask 0.0 and sample mask 0.0.")
def placeholders_train_nothing(case: StepCase) -> str | None:
    """Never truncated, length 1."""
    for _wanted, row in placeholders(case.contract, case.answer):
        expected = {
            "input_ids": (case.request.config.pad_token_id,),
            "input_lengths": (1,),
            "token_mask": (0.0,),
            "generation_logprobs": (0.0,),
            "sample_mask": (0.0,),
            "truncated": (False,),
        }
        for name, value in expected.items():
            if values(row, name) != value:
                return f"placeholder {name} is {values(row, name)}, expected {value}"
    return None


def listed_own_keys(case: StepCase) -> set[str]:
    """Return what the receipts list of their own rollouts, read off them as they are, well-formed or not."""
    own = set()
    for rollout_id, receipt in zip(case.step.request.rollout_ids, case.step.request.receipts, strict=False):
        manifest = receipt.get("manifest") if type(receipt) is dict else None
        for row in manifest if type(manifest) is list else []:
            key, call_id = (row.get("staging_key"), row.get("model_call_id")) if type(row) is dict else (None, None)
            if is_identifier(call_id) and key == f"{rollout_id}/{call_id}" and is_rollout_id(rollout_id):
                own.add(f"{rollout_id}/{call_id}")
    return own


@group_rule("GROUP-4", "8", "A group clears only staging keys that its own rollouts own.")
def clears_only_own(case: StepCase) -> str | None:
    """Decision D14: a key is own iff it is rollout id, slash, call id of the manifest row that lists it."""
    own = listed_own_keys(case)
    for effect in case.answer.effects:
        if isinstance(effect, Clear):
            foreign = [key for key in effect.keys if key not in own]
            if foreign or effect.partition != case.request.config.staging_partition:
                return f"cleared {foreign or effect.partition}"
    if case.answer.group is not None:
        foreign = [key for key in case.answer.group.staging_keys if key not in own]
        if foreign:
            return f"hands on {foreign} for cleanup"
    return None


def in_order(case: StepCase) -> str | None:
    """Return a complaint where effects do not come in the contract's order: reads, one put, at most one clear."""
    kinds = [["get", "put", "clear"][(Get, Put, Clear).index(type(effect))] for effect in case.answer.effects]
    writes = [kind for kind in kinds if kind != "get"]
    expected = [type(effect).__name__.lower() for effect in case.contract.effects if not isinstance(effect, Get)]
    if kinds != sorted(kinds, key=["get", "put", "clear"].index) or writes != expected:
        return f"effects {kinds}, expected the reads and then {expected}"
    return None


@group_rule("GROUP-5", "8", "Reads come first, then one put of all rows, then at most one clear.")
def effects_in_order(case: StepCase) -> str | None:
    """A crash between two effects must leave either the staged rows or the published ones."""
    return in_order(case)


@group_rule("GROUP-6", "8", "An outage while reading propagates before any write.")
def outage_before_writes(case: StepCase) -> str | None:
    """It must never be published as placeholders and cleaned up."""
    if case.contract.failure is Failure.READ and case.answer.failure is not Failure.READ:
        return f"the read failed, and the outcome was {case.answer.failure or 'a published group'}"
    return None


@group_rule("GROUP-7", "8", "Contradictory arguments are a ValueError before any read.")
def caller_errors(case: StepCase) -> str | None:
    """Decision D13."""
    if (case.contract.failure is Failure.CALLER) != (case.answer.failure is Failure.CALLER):
        return f"outcome {case.answer.failure}, expected {case.contract.failure or 'a group'}"
    if case.contract.failure is Failure.CALLER and case.answer.effects:
        return f"touched the data plane first: {case.answer.effects[0]!r:.80}"
    return None


@group_rule("GROUP-8", "8", "A failed put or clear raises an error that tells whether the put had happened.")
def write_failures(case: StepCase) -> str | None:
    """After a failed put staging is whole and the group may be run again; after a failed clear it must not be."""
    failures = (Failure.PUT, Failure.CLEAR)
    if (
        case.contract.failure in failures or case.answer.failure in failures
    ) and case.contract.failure is not case.answer.failure:
        return f"outcome {case.answer.failure or 'a group'}, expected {case.contract.failure or 'a group'}"
    return None


@group_rule("GROUP-9", "8", "The weight-version range is that of the valid rows, or the fallback where there is none.")
def weight_versions(case: StepCase) -> str | None:
    """Rows tagged with another version are dropped as stale, or trained although they are."""
    if case.contract.group is None or case.answer.group is None:
        return None
    valid = [rollout for rollout in case.contract.rollouts if rollout.valid]
    fallback = case.step.request.fallback_weight_version
    minimum = min((rollout.min_wv for rollout in valid if rollout.min_wv is not None), default=fallback)
    maximum = max((rollout.max_wv for rollout in valid if rollout.max_wv is not None), default=fallback)
    found = case.answer.group.group_min_wv, case.answer.group.group_max_wv
    if found != (minimum, maximum):
        return f"range {found}, expected {(minimum, maximum)}"
    tags = [*case.answer.group.tags, *(row.tags for row in case.answer.rows or ())]
    tagged = [tag.get("weight_version") for tag in tags]
    return None if tagged in ([], [minimum] * len(tagged)) else f"tags say {tagged}, expected {minimum}"


@group_rule("GROUP-10", "8", "Every row carries the first valid row's prompt for the per-prompt baseline.")
def sibling_prompts(case: StepCase) -> str | None:
    """The pad token where no row is valid or the prompt is empty."""
    valid = [rollout for rollout in case.contract.rollouts if rollout.valid]
    prompt = valid[0].token_ids[: valid[0].prompt_len] if valid else ()
    prompt = prompt or (case.request.config.pad_token_id,)
    wrong = [values(row, "prompt_ids_for_adv") for row in case.answer.rows or ()]
    wrong = [ids for ids in wrong if ids != prompt]
    return f"prompt_ids_for_adv {wrong[0]}, expected {prompt}" if wrong else None


@group_rule("GROUP-19", "8", "Where a group key is asked for, every row has that of its group, placeholders included.")
def group_keys(case: StepCase) -> str | None:
    """Decision D39: two groups with one prompt are two groups, each with a baseline of its own."""
    for wanted, row in zip(case.contract.rows or (), case.answer.rows or (), strict=False):
        complaint = difference(wanted.columns.get(GROUP_KEY), row.columns.get(GROUP_KEY), GROUP_KEY)
        if complaint:
            return complaint
    return None


@group_rule("GROUP-11", "8", "Published columns have the contract's dtypes, and per-token columns one value per token.")
def column_types(case: StepCase) -> str | None:
    """A trainer reads them without checking."""
    for row in case.answer.rows or ():
        for name, (dtype, rank) in COLUMN_DTYPES.items():
            column: Tensor | None = row.columns.get(name)
            if column is None:
                if name != ROUTED_EXPERTS:
                    return f"column {name} is missing"
                continue
            if column.dtype != dtype or len(column.shape) != rank:
                return f"{name} is {column.dtype}{list(column.shape)}, expected {dtype} of {rank} dimensions"
        lengths = {name: row.columns[name].shape[0] for name in ("input_ids", "token_mask", "generation_logprobs")}
        if set(lengths.values()) != set(values(row, "input_lengths")):
            return f"token columns of {lengths} values, input_lengths {values(row, 'input_lengths')}"
    return None


@group_rule("GROUP-12", "8", "The loss multiplier and mask_sample reach the rows unchanged; rejected rows weigh 0.0.")
def row_weights(case: StepCase) -> str | None:
    """A multiplier of 0 is a decision, not a missing value."""
    for index, (left, right) in enumerate(zip(case.contract.rows or (), case.answer.rows or (), strict=False)):
        for name in ("sample_mask", "mask_sample", "total_reward"):
            complaint = difference(values(left, name), values(right, name), f"row {index} {name}")
            if complaint:
                return complaint
    return None


@group_rule("GROUP-13", "8", "Metrics and advisories equal the contract's, whatever the raw receipts hold.")
def metrics_agree(case: StepCase) -> str | None:
    """Only names under ``finalize/`` and ``advisory/`` are compared; step times need only be times."""
    if case.contract.group is None or case.answer.group is None:
        return None
    for name in STEP_TIMES:
        if not 0.0 <= case.answer.group.metrics.get(name, 0.0) < float("inf"):
            return f"{name}: got {case.answer.group.metrics[name]}, expected milliseconds"
    metrics = comparable_metrics(case.contract.group.metrics, case.answer.group.metrics)
    left, right = (
        {name: value for name, value in side.items() if name.startswith(METRIC_PREFIXES)} for side in metrics
    )
    for name in sorted(left.keys() | right.keys()):
        if left.get(name) != right.get(name):
            return f"{name}: expected {left.get(name)}, got {right.get(name)}"
    return None


@group_rule(
    "GROUP-14",
    "8",
    "A row is marked truncated iff it is valid, and at least max_seq_len tokens long or stopped for its length.",
)
def truncation(case: StepCase) -> str | None:
    """Decisions D12 and D38; lengths come from what was captured, never from token values."""
    for wanted, row in zip(case.contract.rows or (), case.answer.rows or (), strict=False):
        if values(row, "truncated") != values(wanted, "truncated"):
            return f"truncated {values(row, 'truncated')} for {values(wanted, 'input_lengths')} tokens"
    return None


@group_rule("GROUP-15", "8", "Each valid row holds its own rollout's tokens, in the order of the rollouts.")
def rows_in_order(case: StepCase) -> str | None:
    """Compacted or reordered results would be zipped with the wrong rewards."""
    for index, (rollout, row) in enumerate(zip(case.contract.rollouts, case.answer.rows or (), strict=False)):
        if not rollout.valid:
            continue
        pairs = (
            ("input_ids", rollout.token_ids),
            ("token_mask", rollout.token_mask),
            ("generation_logprobs", rollout.logprobs),
            ("input_lengths", (len(rollout.token_ids),)),
        )
        for name, expected in pairs:
            complaint = difference(expected, values(row, name), f"row {index} {name}")
            if complaint:
                return complaint
    return None


@group_rule("GROUP-16", "8", "Running a group again after a failed put publishes the same rows.")
def reruns_are_identical(case: StepCase) -> str | None:
    """Staging was left whole, so nothing may be lost. Rows are compared bit for bit."""
    retried = [step.request.group_id for step in case.request.steps].count(case.step.request.group_id) > 1
    if not retried or case.contract.rows is None or case.answer.rows is None:
        return None
    return difference(comparable(case.contract).rows, comparable(case.answer).rows, "rows")


@group_rule("GROUP-18", "8", "A group cleans up every key that its receipts list of their own rollouts.")
def clears_all_own(case: StepCase) -> str | None:
    """Decision D34: a receipt that does not parse too. Nobody else will ever clear what its calls staged."""
    if case.answer.group is None:
        return None
    cleared = {key for effect in case.answer.effects if isinstance(effect, Clear) for key in effect.keys}
    left = sorted(listed_own_keys(case) - cleared - set(case.answer.group.staging_keys))
    return f"left {left[0]} staged" if left else None


def group_complaint(case: StepCase) -> str | None:
    """Return where a group ends otherwise than the contract says: outcome, effects, result, or a rollout's reason."""
    if (complaint := in_order(case)) is not None:
        return complaint
    if case.contract.failure is not case.answer.failure:
        return f"outcome {case.answer.failure or 'a group'}, expected {case.contract.failure or 'a group'}"
    wanted, found = comparable(case.contract), comparable(case.answer)
    writes = [[effect for effect in outcome.effects if not isinstance(effect, Get)] for outcome in (wanted, found)]
    complaint = difference(writes[0], writes[1], "effects") or group_difference(wanted, found)
    if complaint:
        return complaint
    for left, right in zip(case.contract.rollouts, case.answer.rollouts, strict=False):
        if not same_reason(left.rejection_reason, right.rejection_reason):
            return f"rejected as {right.rejection_reason}, expected {left.rejection_reason}"
    return None


def groups_complaint(case: Case[Any]) -> str | None:
    """Return where groups end otherwise than the contract says, or that they end in a crash, or not at all."""
    if not isinstance(case.answer, Accepted):
        return f"it {describe(case.answer)}"
    count = len(outcomes(case.answer))
    if count != len(case.request.steps):
        return f"{count} outcomes of {len(case.request.steps)} groups"
    return each_step(group_complaint)(case)


@invariant(
    "GROUP-17", Area.GROUP, "8", "The rows and the result of a group equal the contract's in every field.", GROUP
)
def groups_agree(case: Case[FinalizeGroups]) -> str | None:
    """Everything that no narrower invariant covers."""
    return groups_complaint(case)
