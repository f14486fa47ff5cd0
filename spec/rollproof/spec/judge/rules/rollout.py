"""Invariants of finalizing one rollout (section 5)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from attrs import evolve

from rollproof.spec.judge.invariant import Case, Invariant, Rule, describe, difference, invariant
from rollproof.spec.judge.latitude import comparable_rollout
from rollproof.spec.judge.requests import Accepted, Answer, Area, FinalizeRollout, RolloutAnswer
from rollproof.spec.outcomes import Failure
from rollproof.spec.plane import Get
from rollproof.spec.records import FinalizedRollout
from rollproof.spec.rejections import WITH_SUBJECT, Code
from rollproof.spec.rollout import as_number
from rollproof.spec.tensor import is_float32, to_float32

NORMATIVE_SUBJECT: Final = {code.code for code in WITH_SUBJECT}


def rollout_rule(id: str, section: str, sentence: str) -> Callable[[Rule], Invariant]:
    """Declare a check as an invariant of rollouts."""
    return invariant(id, Area.ROLLOUT, section, sentence, (FinalizeRollout,))


def outcome(answer: Answer) -> RolloutAnswer | None:
    """Return the accepted outcome of a rollout request."""
    return answer.value if isinstance(answer, Accepted) else None


def finalized(answer: Answer) -> FinalizedRollout | None:
    """Return the rollout, where there is one."""
    result = outcome(answer)
    return None if result is None else result.rollout


def same_reason(expected: str | None, actual: str | None) -> bool:
    """Return whether two reasons agree in their normative part: the code, and for some codes the subject.

    A failed rollout's subject is free text of the receipt, so whatever may follow it has to follow a colon.
    """
    if expected is None or actual is None:
        return expected is actual
    code, _, rest = expected.partition(":")
    if code not in NORMATIVE_SUBJECT:
        return actual.partition(":")[0] == code
    if code == Code.ROLLOUT_FAILED.code:
        return actual == expected or actual.startswith(f"{expected}:")
    return actual.split(":")[:2] == [code, rest.partition(":")[0]]


def rollout_complaint(case: Case[Any]) -> str | None:
    """Return where a rollout is read or finalized otherwise than the contract says, up to its reason's free text."""
    if (complaint := reads_beyond(case)) is not None:
        return complaint
    answers = outcome(case.contract), outcome(case.answer)
    if answers[0] is None or answers[1] is None:
        return None if answers[0] is answers[1] else f"it {describe(case.answer)}"
    if answers[0].failure is not answers[1].failure:
        return f"failure {answers[1].failure}, expected {answers[0].failure}"
    wanted, found = answers[0].rollout, answers[1].rollout
    if wanted is None or found is None:
        return None if wanted is found else "no rollout"
    if not same_reason(wanted.rejection_reason, found.rejection_reason):
        return f"{found.rejection_reason or 'accepted'}, expected {wanted.rejection_reason or 'a valid row'}"
    same = [evolve(comparable_rollout(one), rejection_reason=None) for one in (wanted, found)]
    return difference(same[0], same[1], "rollout")


@rollout_rule("ROLLOUT-1", "5", "No content of a receipt, a reward or a staged row makes finalization raise.")
def never_raises(case: Case[FinalizeRollout]) -> str | None:
    """One bad rollout must not make its group fail; nor may the contract itself be without an answer."""
    if outcome(case.contract) is None:
        return f"the contract {describe(case.contract)}"
    result = outcome(case.answer)
    if result is None:
        return f"it {describe(case.answer)}"
    if result.failure is not None and case.request.staging.faults.failing_get is None:
        return f"it raised ({result.failure}) on a healthy data plane"
    return None


@rollout_rule("ROLLOUT-2", "5", "An outage of the data plane propagates; it never becomes a rejection.")
def outage_propagates(case: Case[FinalizeRollout]) -> str | None:
    """A rollout that could not be read may be perfectly good."""
    wanted, result = outcome(case.contract), outcome(case.answer)
    if wanted is not None and wanted.failure is Failure.READ and result is not None and result.failure is None:
        return f"the read failed, and it answered {result.rollout and result.rollout.rejection_reason}"
    return None


def reads_beyond(case: Case[Any]) -> str | None:
    """Return what a rollout does to the data plane beyond what decision D15 lets it, or None.

    It may read base columns, with them or after them routes in direct mode, and media in a media partition. Where
    boundaries are repaired, direct mode has one read of sidecars beside. Who reads media with the base columns may
    read the base columns again where that read found too little, in place of a read of media.
    """
    result = outcome(case.answer)
    if result is None:
        return None
    others = [effect for effect in result.effects if not isinstance(effect, Get)]
    if others:
        return f"it wrote: {others[0]!r:.100}"
    base = [effect for effect in result.effects if isinstance(effect, Get) and "token_ids_delta" in effect.columns]
    again = max(0, len(base) - 1)
    extra = len(result.effects) - len(base)
    config = case.request.config
    sidecars = config.direct_routes and config.route_boundary is not None
    allowed = int(config.direct_routes) + int(config.capture_media) + int(sidecars)
    if again > config.capture_media or again + extra > allowed:
        return f"{len(base)} reads of base columns and {extra} others"
    return None


@rollout_rule("ROLLOUT-3", "5", "Finalizing a rollout reads each set of columns at most once, and writes nothing.")
def reads_once(case: Case[FinalizeRollout]) -> str | None:
    """One read costs as much as all the work on its rows."""
    return reads_beyond(case)


@rollout_rule("ROLLOUT-4", "5", "A rollout is accepted iff every check of section 5 passes.")
def same_verdict(case: Case[FinalizeRollout]) -> str | None:
    """The most important bit of the contract."""
    wanted, found = finalized(case.contract), finalized(case.answer)
    if wanted is None or found is None or wanted.valid == found.valid:
        return None
    if found.valid:
        return f"accepted, expected {wanted.rejection_reason}"
    return f"rejected as {found.rejection_reason}, expected a valid row"


@rollout_rule("ROLLOUT-5", "5", "A rejection names the first failing check, and the rule of section 4 behind it.")
def same_rejection(case: Case[FinalizeRollout]) -> str | None:
    """Operators act on these codes; two implementations must count the same ones."""
    wanted, found = finalized(case.contract), finalized(case.answer)
    if wanted is None or found is None or wanted.valid or found.valid:
        return None
    if same_reason(wanted.rejection_reason, found.rejection_reason):
        return None
    return f"rejected as {found.rejection_reason}, expected {wanted.rejection_reason}"


@rollout_rule("ROLLOUT-6", "5", "A rejected rollout has empty columns and no weight versions; it keeps its keys.")
def rejected_is_empty(case: Case[FinalizeRollout]) -> str | None:
    """The keys of its manifest, once each and in order, are what makes its staging clearable."""
    found, wanted = finalized(case.answer), finalized(case.contract)
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
def chain_columns(case: Case[FinalizeRollout]) -> str | None:
    """Checked on the staged rows along the receipt's parent links, without the spec's verifier."""
    found = finalized(case.answer)
    if found is None or not found.valid:
        return None
    wanted = staged_chain(case.request)
    for name in ("token_ids", "token_mask", "logprobs"):
        complaint = difference(wanted[name], getattr(found, name), name)
        if complaint:
            return complaint
    return None if found.prompt_len == wanted["prompt_len"] else f"prompt_len {found.prompt_len}"


def staged_chain(request: FinalizeRollout) -> dict[str, Any]:
    """Return the columns of the terminal chain as they are staged, and the root's carry length."""
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
def version_range(case: Case[FinalizeRollout]) -> str | None:
    """Staleness is decided on the oldest version that took part."""
    found = finalized(case.answer)
    if found is None or not found.valid:
        return None
    versions = [row["weight_version"] for row in case.request.receipt["manifest"]]
    if (found.min_wv, found.max_wv) != (min(versions), max(versions)):
        return f"range ({found.min_wv}, {found.max_wv}), the manifest spans ({min(versions)}, {max(versions)})"
    return None


@rollout_rule(
    "ROLLOUT-9",
    "5",
    "The reward is the argument as float32; an unusable one invalidates the row and becomes 0.0.",
)
def reward_is_usable(case: Case[FinalizeRollout]) -> str | None:
    """Decision D6: one NaN spoils the whole group's baseline. ``receipt.reward`` is never used."""
    found = finalized(case.answer)
    if found is None:
        return None
    number = as_number(case.request.reward)
    try:
        value = math.nan if number is None else to_float32(float(number))
    except OverflowError:
        value = math.nan
    if not math.isfinite(value):
        return "accepted with an unusable reward" if found.valid else difference(0.0, found.reward, "reward")
    return difference(value, found.reward, "reward")


@rollout_rule("ROLLOUT-10", "1", "Every log-probability of a row is a finite float32 value.")
def float32_logprobs(case: Case[FinalizeRollout]) -> str | None:
    """A float64 that only rounds to it trains another ratio than the one that was sampled."""
    found = finalized(case.answer)
    wrong = [value for value in found.logprobs if not is_float32(value)] if found is not None else []
    return f"log-probability {wrong[0]!r}" if wrong else None


@rollout_rule("ROLLOUT-11", "5", "A finalized rollout equals the contract's in every field.")
def rollouts_agree(case: Case[FinalizeRollout]) -> str | None:
    """Everything that no narrower invariant covers."""
    wanted, found = outcome(case.contract), outcome(case.answer)
    if wanted is None or found is None:
        return None
    if wanted.failure is not found.failure:
        return f"failure {found.failure}, expected {wanted.failure}"
    if wanted.rollout is None or found.rollout is None or not wanted.rollout.valid:
        return None
    return difference(comparable_rollout(wanted.rollout), comparable_rollout(found.rollout))
