"""Invariants of finalizing one rollout (section 5)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from rollproof.spec.invariant import Check, Invariant, describe, difference, invariant
from rollproof.spec.outcomes import Failure
from rollproof.spec.plane import Get
from rollproof.spec.records import FinalizedRollout
from rollproof.spec.rejections import Code
from rollproof.spec.requests import Accepted, Answer, Area, FinalizeRollout, RolloutAnswer
from rollproof.spec.tensor import is_float32, to_float32

WITH_SUBJECT: Final = {Code.REBUILD_FAILED.code, Code.ROLLOUT_FAILED.code, "route_assembly"}
"""Codes whose subject is normative."""


def rollout_rule(id: str, section: str, sentence: str) -> Callable[[Check], Invariant]:
    """Declare a check as an invariant of rollouts."""
    return invariant(id, Area.ROLLOUT, section, sentence, (FinalizeRollout,))


def outcome(answer: Answer) -> RolloutAnswer | None:
    """The accepted outcome of a rollout request."""
    return answer.value if isinstance(answer, Accepted) else None


def finalized(answer: Answer) -> FinalizedRollout | None:
    """The rollout, where there is one."""
    result = outcome(answer)
    return None if result is None else result.rollout


def same_reason(expected: str | None, actual: str | None) -> bool:
    """Whether two reasons agree in their normative part: the code, and for some codes the subject.

    A failed rollout's subject is free text of the receipt, so whatever may follow it has to follow a colon.
    """
    if expected is None or actual is None:
        return expected is actual
    code, _, rest = expected.partition(":")
    if code not in WITH_SUBJECT:
        return actual.partition(":")[0] == code
    if code == Code.ROLLOUT_FAILED.code:
        return actual == expected or actual.startswith(f"{expected}:")
    return actual.split(":")[:2] == [code, rest.partition(":")[0]]


@rollout_rule("ROLLOUT-1", "5", "Nothing a receipt, a reward or a staged row can contain raises.")
def never_raises(request: FinalizeRollout, expected: Answer, actual: Answer) -> str | None:
    """One bad rollout must not take its group down; nor may the contract itself be without an answer."""
    if outcome(expected) is None:
        return f"the contract {describe(expected)}"
    result = outcome(actual)
    if result is None:
        return f"it {describe(actual)}"
    if result.failure is not None and request.staging.faults.failing_get is None:
        return f"it raised ({result.failure}) on a healthy data plane"
    return None


@rollout_rule("ROLLOUT-2", "5", "An outage of the data plane propagates; it never becomes a rejection.")
def outage_propagates(_: FinalizeRollout, expected: Answer, actual: Answer) -> str | None:
    """A rollout that could not be read may be perfectly good."""
    wanted, result = outcome(expected), outcome(actual)
    if wanted is not None and wanted.failure is Failure.READ and result is not None and result.failure is None:
        return f"the read failed, and it answered {result.rollout and result.rollout.rejection_reason}"
    return None


@rollout_rule("ROLLOUT-3", "5", "Finalizing a rollout reads its staged rows at most once, and only reads.")
def reads_once(request: FinalizeRollout, _: Answer, actual: Answer) -> str | None:
    """Decision D15: one read for the base columns, one more for routes at most, one more for media at most."""
    result = outcome(actual)
    if result is None:
        return None
    others = [effect for effect in result.effects if not isinstance(effect, Get)]
    if others:
        return f"it wrote: {others[0]!r:.100}"
    base = [effect for effect in result.effects if isinstance(effect, Get) and "token_ids_delta" in effect.columns]
    extra = len(result.effects) - len(base)
    allowed = int(request.config.direct_routes) + int(request.config.capture_media)
    if len(base) > 1 or extra > allowed:
        return f"{len(base)} reads of base columns and {extra} others"
    return None


@rollout_rule("ROLLOUT-4", "5", "A rollout is accepted iff every check of section 5 passes.")
def same_verdict(_: FinalizeRollout, expected: Answer, actual: Answer) -> str | None:
    """The most important bit of the contract."""
    wanted, found = finalized(expected), finalized(actual)
    if wanted is None or found is None or wanted.valid == found.valid:
        return None
    if found.valid:
        return f"accepted, expected {wanted.rejection_reason}"
    return f"rejected as {found.rejection_reason}, expected a valid row"


@rollout_rule("ROLLOUT-5", "5", "A rejection names the first failing check, and the rule of section 4 behind it.")
def same_rejection(_: FinalizeRollout, expected: Answer, actual: Answer) -> str | None:
    """Operators act on these codes; two implementations must count the same ones."""
    wanted, found = finalized(expected), finalized(actual)
    if wanted is None or found is None or wanted.valid or found.valid:
        return None
    if same_reason(wanted.rejection_reason, found.rejection_reason):
        return None
    return f"rejected as {found.rejection_reason}, expected {wanted.rejection_reason}"


@rollout_rule("ROLLOUT-6", "5", "A rejected rollout has empty columns and no weight versions; it keeps its keys.")
def rejected_is_empty(_: FinalizeRollout, expected: Answer, actual: Answer) -> str | None:
    """The keys of its manifest, once each and in order, are what makes its staging clearable."""
    found, wanted = finalized(actual), finalized(expected)
    if found is None or found.valid:
        return None
    if found.token_ids or found.token_mask or found.logprobs or found.prompt_len:
        return "a rejected rollout carries tokens"
    if found.min_wv is not None or found.max_wv is not None:
        return "a rejected rollout carries weight versions"
    if wanted is not None and found.staging_keys != wanted.staging_keys:
        return f"staging_keys {found.staging_keys}, expected {wanted.staging_keys}"
    return None


@rollout_rule("ROLLOUT-7", "5", "An accepted row holds the tokens, masks and log-probabilities of its chain.")
def chain_columns(request: FinalizeRollout, _: Answer, actual: Answer) -> str | None:
    """Read off the staged rows along the receipt's parent links, without the spec's verifier."""
    found = finalized(actual)
    if found is None or not found.valid:
        return None
    wanted = staged_chain(request)
    for name in ("token_ids", "token_mask", "logprobs"):
        complaint = difference(wanted[name], getattr(found, name), name)
        if complaint:
            return complaint
    return None if found.prompt_len == wanted["prompt_len"] else f"prompt_len {found.prompt_len}"


def staged_chain(request: FinalizeRollout) -> dict[str, Any]:
    """The columns of the terminal chain as they are staged, and the root's carry length."""
    manifest = {row["model_call_id"]: row for row in request.receipt["manifest"]}
    columns: dict[str, tuple[Any, ...]] = {"token_ids": (), "token_mask": (), "logprobs": ()}
    prompt_len = 0
    current = request.receipt["terminal_model_call_id"]
    while current is not None:
        row = request.staging.rows[manifest[current]["staging_key"]]
        mask = row["token_mask_delta"].values()
        columns["token_ids"] = row["token_ids_delta"].values() + columns["token_ids"]
        columns["token_mask"] = mask + columns["token_mask"]
        columns["logprobs"] = row["generation_logprobs_delta"].values() + columns["logprobs"]
        prompt_len = mask.count(0.0)
        current = manifest[current].get("parent_call_id")
    return {**columns, "prompt_len": prompt_len}


@rollout_rule("ROLLOUT-8", "5", "The weight-version range spans the whole manifest, dead branches included.")
def version_range(request: FinalizeRollout, _: Answer, actual: Answer) -> str | None:
    """Staleness is decided on the oldest version that took part."""
    found = finalized(actual)
    if found is None or not found.valid:
        return None
    versions = [row["weight_version"] for row in request.receipt["manifest"]]
    if (found.min_wv, found.max_wv) != (min(versions), max(versions)):
        return f"range ({found.min_wv}, {found.max_wv}), the manifest spans ({min(versions)}, {max(versions)})"
    return None


@rollout_rule(
    "ROLLOUT-9",
    "5",
    "The reward is the argument as float32; an unusable one invalidates the row and becomes 0.0.",
)
def reward_is_usable(request: FinalizeRollout, _: Answer, actual: Answer) -> str | None:
    """Decision D6: one NaN spoils the whole group's baseline. ``receipt.reward`` is never used."""
    found = finalized(actual)
    if found is None:
        return None
    reward = request.reward
    usable = not isinstance(reward, bool) and isinstance(reward, int | float)
    try:
        value = to_float32(float(reward)) if usable else math.nan
    except OverflowError:
        value = math.nan
    if not math.isfinite(value):
        return "accepted with an unusable reward" if found.valid else difference(0.0, found.reward, "reward")
    return difference(value, found.reward, "reward")


@rollout_rule("ROLLOUT-10", "1", "Every log-probability of a row is a finite float32 value.")
def float32_logprobs(_: FinalizeRollout, __: Answer, actual: Answer) -> str | None:
    """A float64 that only rounds to it trains another ratio than the one that was sampled."""
    found = finalized(actual)
    wrong = [value for value in found.logprobs if not is_float32(value)] if found is not None else []
    return f"log-probability {wrong[0]!r}" if wrong else None


@rollout_rule("ROLLOUT-11", "5", "A finalized rollout is the contract's, in every field.")
def rollouts_agree(_: FinalizeRollout, expected: Answer, actual: Answer) -> str | None:
    """What no narrower invariant said."""
    wanted, found = outcome(expected), outcome(actual)
    if wanted is None or found is None:
        return None
    if wanted.failure is not found.failure:
        return f"failure {found.failure}, expected {wanted.failure}"
    if wanted.rollout is None or found.rollout is None or not wanted.rollout.valid:
        return None
    return difference(wanted.rollout, found.rollout)


INVARIANTS: Final[tuple[Invariant, ...]] = (
    never_raises,
    outage_propagates,
    reads_once,
    same_verdict,
    same_rejection,
    rejected_is_empty,
    chain_columns,
    version_range,
    reward_is_usable,
    float32_logprobs,
    rollouts_agree,
)
