"""Invariants of finalizing a group (section 8). Most are read off the request and the effects alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from rollproof.spec.constants import ROUTED_EXPERTS
from rollproof.spec.invariant import Check, Invariant, describe, difference, invariant
from rollproof.spec.outcomes import Failure, GroupOutcome
from rollproof.spec.plane import Clear, Get, PublishedRow, Put
from rollproof.spec.requests import Accepted, Answer, Area, FinalizeGroups, GroupStep
from rollproof.spec.rules.rollout import same_reason
from rollproof.spec.tensor import Tensor

GROUP: Final = (FinalizeGroups,)

StepCheck = Callable[[FinalizeGroups, GroupStep, GroupOutcome, GroupOutcome], str | None]
"""A check of one step: the request, the step, the contract's outcome, the implementation's."""

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
    """The outcomes, one per step; none where the implementation crashed."""
    return answer.value if isinstance(answer, Accepted) else ()


def each_step(check: StepCheck) -> Check:
    """Apply a check to every step of a request."""

    def over_all(request: FinalizeGroups, expected: Answer, actual: Answer) -> str | None:
        steps = zip(request.steps, outcomes(expected), outcomes(actual), strict=False)
        for index, (step, wanted, found) in enumerate(steps):
            complaint = check(request, step, wanted, found)
            if complaint:
                return f"step {index}: {complaint}" if len(request.steps) > 1 else complaint
        return None

    over_all.__doc__ = check.__doc__
    return over_all


def group_rule(id: str, section: str, sentence: str) -> Callable[[StepCheck], Invariant]:
    """Declare a per-step check as an invariant of groups."""
    return lambda check: invariant(id, Area.GROUP, section, sentence, GROUP)(each_step(check))


def values(row: PublishedRow, name: str) -> tuple[int | float | bool, ...]:
    """A published column's elements; none where it is missing."""
    return row.columns[name].values() if name in row.columns else ()


def placeholders(wanted: GroupOutcome, found: GroupOutcome) -> Iterator[tuple[PublishedRow, PublishedRow]]:
    """Pairs of rows (contract's, implementation's) whose rollout is rejected."""
    for rollout, left, right in zip(wanted.rollouts, wanted.rows or (), found.rows or (), strict=False):
        if not rollout.valid:
            yield left, right


@invariant("GROUP-1", Area.GROUP, "8", "Nothing escapes but the failures that the contract names.", GROUP)
def only_named_failures(_: FinalizeGroups, expected: Answer, actual: Answer) -> str | None:
    """Metrics, raw receipts and rewards included: none of them may take a group down, nor the contract itself."""
    if not isinstance(expected, Accepted):
        return f"the contract {describe(expected)}"
    return None if isinstance(actual, Accepted) else f"it {describe(actual)}"


@group_rule("GROUP-2", "8", "A group of N rollouts publishes exactly N rows under its N sample ids, or none.")
def n_rows(_: FinalizeGroups, step: GroupStep, wanted: GroupOutcome, found: GroupOutcome) -> str | None:
    """A lost row shifts every later reward to another rollout."""
    for put in (effect for effect in found.effects if isinstance(effect, Put)):
        count = len(step.request.rollout_ids)
        ids = tuple(f"{step.request.group_id}_g{index}" for index in range(count))
        if len(put.rows) != count or put.sample_ids != ids:
            return f"{len(put.rows)} rows under {put.sample_ids}, expected {count} under {ids}"
    if (wanted.rows is None) != (found.rows is None):
        return "published, expected no rows" if found.rows else "published no rows"
    return None


@group_rule("GROUP-3", "8", "A placeholder is one pad token that trains nothing: mask 0.0 and sample mask 0.0.")
def placeholders_train_nothing(
    request: FinalizeGroups, _: GroupStep, wanted: GroupOutcome, found: GroupOutcome
) -> str | None:
    """Never truncated, length 1."""
    for _wanted, row in placeholders(wanted, found):
        expected = {
            "input_ids": (request.config.pad_token_id,),
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


@group_rule("GROUP-4", "8", "A group clears only staging keys that its own rollouts own.")
def clears_only_own(request: FinalizeGroups, step: GroupStep, _: GroupOutcome, found: GroupOutcome) -> str | None:
    """Decision D14: a key is own iff it is rollout id, slash, call id of the manifest row that lists it."""
    own = set()
    for rollout_id, receipt in zip(step.request.rollout_ids, step.request.receipts, strict=False):
        manifest = receipt.get("manifest") if type(receipt) is dict else None
        for row in manifest if type(manifest) is list else []:
            key, call_id = (row.get("staging_key"), row.get("model_call_id")) if type(row) is dict else (None, None)
            if type(call_id) is str and key == f"{rollout_id}/{call_id}" and "/" not in rollout_id:
                own.add(key)
    for effect in found.effects:
        if isinstance(effect, Clear):
            foreign = [key for key in effect.keys if key not in own]
            if foreign or effect.partition != request.config.staging_partition:
                return f"cleared {foreign or effect.partition}"
    if found.group is not None:
        foreign = [key for key in found.group.staging_keys if key not in own]
        if foreign:
            return f"hands on {foreign} for cleanup"
    return None


@group_rule("GROUP-5", "8", "Reads come first, then one put of all rows, then at most one clear.")
def effects_in_order(request: FinalizeGroups, _: GroupStep, wanted: GroupOutcome, found: GroupOutcome) -> str | None:
    """A crash between two effects must leave either the staged rows or the published ones."""
    kinds = [["get", "put", "clear"][(Get, Put, Clear).index(type(effect))] for effect in found.effects]
    writes = [kind for kind in kinds if kind != "get"]
    expected = [type(effect).__name__.lower() for effect in wanted.effects if not isinstance(effect, Get)]
    if kinds != sorted(kinds, key=["get", "put", "clear"].index) or writes != expected:
        return f"effects {kinds}, expected the reads and then {expected}"
    return None


@group_rule("GROUP-6", "8", "An outage while reading propagates before any write.")
def outage_before_writes(_: FinalizeGroups, __: GroupStep, wanted: GroupOutcome, found: GroupOutcome) -> str | None:
    """It must never be published as placeholders and cleaned up."""
    if wanted.failure is Failure.READ and found.failure is not Failure.READ:
        return f"the read failed, and the outcome was {found.failure or 'a published group'}"
    return None


@group_rule("GROUP-7", "8", "Contradictory arguments are a ValueError before any read.")
def caller_errors(_: FinalizeGroups, __: GroupStep, wanted: GroupOutcome, found: GroupOutcome) -> str | None:
    """Decision D13."""
    if (wanted.failure is Failure.CALLER) != (found.failure is Failure.CALLER):
        return f"outcome {found.failure}, expected {wanted.failure or 'a group'}"
    if wanted.failure is Failure.CALLER and found.effects:
        return f"touched the data plane first: {found.effects[0]!r:.80}"
    return None


@group_rule("GROUP-8", "8", "A failed put or clear is raised, and the error says on which side of the put it was.")
def write_failures(_: FinalizeGroups, __: GroupStep, wanted: GroupOutcome, found: GroupOutcome) -> str | None:
    """After a failed put staging is whole and the group may be run again; after a failed clear it must not be."""
    failures = (Failure.PUT, Failure.CLEAR)
    if (wanted.failure in failures or found.failure in failures) and wanted.failure is not found.failure:
        return f"outcome {found.failure or 'a group'}, expected {wanted.failure or 'a group'}"
    return None


@group_rule("GROUP-9", "8", "The weight-version range is that of the valid rows; the fallback is for groups without.")
def weight_versions(_: FinalizeGroups, step: GroupStep, wanted: GroupOutcome, found: GroupOutcome) -> str | None:
    """Rows tagged with another version are dropped as stale, or trained although they are."""
    if wanted.group is None or found.group is None:
        return None
    valid = [rollout for rollout in wanted.rollouts if rollout.valid]
    fallback = step.request.fallback_weight_version
    minimum = min((rollout.min_wv for rollout in valid if rollout.min_wv is not None), default=fallback)
    maximum = max((rollout.max_wv for rollout in valid if rollout.max_wv is not None), default=fallback)
    if (found.group.group_min_wv, found.group.group_max_wv) != (minimum, maximum):
        return f"range ({found.group.group_min_wv}, {found.group.group_max_wv}), expected ({minimum}, {maximum})"
    tagged = [tag.get("weight_version") for tag in found.group.tags]
    return None if tagged in ([], [minimum] * len(tagged)) else f"tags say {tagged}, expected {minimum}"


@group_rule("GROUP-10", "8", "Every row carries the first valid row's prompt for the per-prompt baseline.")
def sibling_prompts(request: FinalizeGroups, _: GroupStep, wanted: GroupOutcome, found: GroupOutcome) -> str | None:
    """The pad token where no row is valid or the prompt is empty."""
    valid = [rollout for rollout in wanted.rollouts if rollout.valid]
    prompt = valid[0].token_ids[: valid[0].prompt_len] if valid else ()
    prompt = prompt or (request.config.pad_token_id,)
    wrong = [values(row, "prompt_ids_for_adv") for row in found.rows or ()]
    wrong = [ids for ids in wrong if ids != prompt]
    return f"prompt_ids_for_adv {wrong[0]}, expected {prompt}" if wrong else None


@group_rule("GROUP-11", "8", "Published columns have the contract's dtypes and one value per token where they say so.")
def column_types(_: FinalizeGroups, __: GroupStep, ___: GroupOutcome, found: GroupOutcome) -> str | None:
    """A trainer reads them without asking."""
    for row in found.rows or ():
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
def row_weights(_: FinalizeGroups, step: GroupStep, wanted: GroupOutcome, found: GroupOutcome) -> str | None:
    """A multiplier of 0 is a decision, not a missing value."""
    for index, (left, right) in enumerate(zip(wanted.rows or (), found.rows or (), strict=False)):
        for name in ("sample_mask", "mask_sample", "total_reward"):
            complaint = difference(values(left, name), values(right, name), f"row {index} {name}")
            if complaint:
                return complaint
    return None


@group_rule("GROUP-13", "8", "Metrics and advisories are the contract's, whatever the raw receipts hold.")
def metrics_agree(_: FinalizeGroups, __: GroupStep, wanted: GroupOutcome, found: GroupOutcome) -> str | None:
    """Only names under ``finalize/`` and ``advisory/`` are compared: an implementation may report more."""
    if wanted.group is None or found.group is None:
        return None
    left, right = (
        {name: value for name, value in group.metrics.items() if name.startswith(("finalize/", "advisory/"))}
        for group in (wanted.group, found.group)
    )
    for name in sorted(left.keys() | right.keys()):
        if left.get(name) != right.get(name):
            return f"{name}: expected {left.get(name)}, got {right.get(name)}"
    return None


@group_rule("GROUP-14", "8", "A row is marked truncated iff it is valid and at least max_seq_len tokens long.")
def truncation(request: FinalizeGroups, _: GroupStep, wanted: GroupOutcome, found: GroupOutcome) -> str | None:
    """Decision D12; lengths come from what was captured, never from token values."""
    for rollout, row in zip(wanted.rollouts, found.rows or (), strict=False):
        expected = rollout.valid and len(rollout.token_ids) >= request.config.max_seq_len
        if values(row, "truncated") != (expected,):
            return f"truncated {values(row, 'truncated')} for {len(rollout.token_ids)} tokens"
    return None


@group_rule("GROUP-15", "8", "Each valid row holds its own rollout's tokens, in the order of the rollouts.")
def rows_in_order(_: FinalizeGroups, __: GroupStep, wanted: GroupOutcome, found: GroupOutcome) -> str | None:
    """Compacted or reordered results would be zipped with the wrong rewards."""
    for index, (rollout, row) in enumerate(zip(wanted.rollouts, found.rows or (), strict=False)):
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
def reruns_are_identical(
    request: FinalizeGroups, step: GroupStep, wanted: GroupOutcome, found: GroupOutcome
) -> str | None:
    """Staging was left whole, so nothing may be lost. Rows are compared bit for bit."""
    retried = sum(other.request == step.request for other in request.steps) > 1
    if not retried or wanted.rows is None or found.rows is None:
        return None
    return difference(wanted.rows, found.rows, "rows")


@group_rule("GROUP-17", "8", "What a group publishes and returns is the contract's, in every field.")
def groups_agree(_: FinalizeGroups, __: GroupStep, wanted: GroupOutcome, found: GroupOutcome) -> str | None:
    """What no narrower invariant said: rows, tags, cleared keys, result."""
    if wanted.failure is not found.failure:
        return f"outcome {found.failure or 'a group'}, expected {wanted.failure or 'a group'}"
    writes = [[effect for effect in outcome.effects if not isinstance(effect, Get)] for outcome in (wanted, found)]
    complaint = difference(writes[0], writes[1], "effects") or difference(wanted.group, found.group, "group")
    if complaint:
        return complaint
    for left, right in zip(wanted.rollouts, found.rollouts, strict=False):
        if not same_reason(left.rejection_reason, right.rejection_reason):
            return f"rejected as {right.rejection_reason}, expected {left.rejection_reason}"
    return None


INVARIANTS: Final[tuple[Invariant, ...]] = (
    only_named_failures,
    n_rows,
    placeholders_train_nothing,
    clears_only_own,
    effects_in_order,
    outage_before_writes,
    caller_errors,
    write_failures,
    weight_versions,
    sibling_prompts,
    column_types,
    row_weights,
    metrics_agree,
    truncation,
    rows_in_order,
    reruns_are_identical,
    groups_agree,
)
