"""The groups that the machine stages, and what the contract says about each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import evolve, frozen

from rollproof.spec.constants import MODE_TEXT, MODE_TOKEN_IN
from rollproof.spec.digest import call_digest, chain_digest, extras_digest, prefix_digest
from rollproof.spec.group import finalize_group
from rollproof.spec.plane import PublishedRow, Put, Staging
from rollproof.spec.records import GroupRequest, ReassemblerConfig, StagedCall
from rollproof.spec.staged import Row, encode_row
from rollproof.spec.values import owned_key

TRAIN, STAGING = "train", "staging"
CONFIG = ReassemblerConfig(partition_id=TRAIN, staging_partition=STAGING, pad_token_id=0, max_seq_len=8)

COPIED = (
    *("model_call_id", "parent_call_id", "mode", "prev_len", "delta_len", "cum_len", "weight_version"),
    *("digest", "extras_digest", "chain_hash", "cumulative_hash"),
)
"""What a manifest row repeats of its call."""


@frozen
class RolloutPlan:
    """One rollout to stage: the (carry, generation) lengths of its calls, and what is wrong with it."""

    calls: tuple[tuple[int, int], ...]
    flaw: str = ""
    """``"no receipt"``, ``"poisoned"``, ``"unstaged"`` (its last call never arrived), or ``"foreign"``: its manifest
    also names a staging key of the rollout staged before it."""


@frozen
class Group:
    """A group as it was staged."""

    request: GroupRequest
    rows: Mapping[str, Row]
    owned: frozenset[str]

    @property
    def sample_ids(self) -> tuple[str, ...]:
        """The ids of its published rows."""
        return self.request.rollout_ids

    def published(self, valid: frozenset[int], staged: Mapping[str, Row]) -> tuple[PublishedRow, ...]:
        """The contract's rows where just these rollouts are valid, and the others placeholders for some reason.

        ``staged`` is everything that was ever staged: a flawed receipt may name rows of other groups.
        """
        receipts = tuple(receipt if index in valid else None for index, receipt in enumerate(self.request.receipts))
        outcome = finalize_group(CONFIG, evolve(self.request, receipts=receipts), Staging(dict(staged)))
        (put,) = (effect for effect in outcome.effects if isinstance(effect, Put))
        return put.rows

    def valid(self, staged: Mapping[str, Row]) -> frozenset[int]:
        """The rollouts that the contract accepts, given all that was ever staged."""
        outcome = finalize_group(CONFIG, self.request, Staging(dict(staged)))
        return frozenset(index for index, rollout in enumerate(outcome.rollouts) if rollout.valid)


def group_of(number: int, plans: Sequence[RolloutPlan], earlier: Sequence[Group]) -> Group:
    """The group of the given number; a foreign key is one of the last rollout that was staged before."""
    group_id = f"g{number}"
    rows: dict[str, Row] = {}
    receipts: list[Any] = []
    owned: set[str] = set()
    before = next((key for group in reversed(earlier) for key in sorted(group.owned)), None)
    for index, plan in enumerate(plans):
        calls = chain(f"{group_id}_g{index}", plan.calls, first_id=7 * number + index)
        keys = [owned_key(call.rollout_id, call.model_call_id) for call in calls]
        staged = dict(zip(keys, map(encode_row, calls), strict=True))
        receipt = receipt_of(calls)
        if plan.flaw == "unstaged":
            staged.pop(keys[-1])
        if plan.flaw == "poisoned":
            receipt |= {"capture_poisoned": True}
        if plan.flaw == "foreign" and before is not None:
            receipt["manifest"][0]["staging_key"] = before
        rows |= staged
        named = {row["staging_key"] for row in receipt["manifest"]}
        owned |= set() if plan.flaw == "no receipt" else named & set(keys)
        receipts.append(None if plan.flaw == "no receipt" else receipt)
        before = keys[0]
    ids = tuple(f"{group_id}_g{index}" for index in range(len(plans)))
    request = GroupRequest(
        group_id=group_id,
        rollout_ids=ids,
        receipts=tuple(receipts),
        rewards=tuple(float(index) for index in range(len(plans))),
        mask_sample=(False,) * len(plans),
        prompt_idx=number,
    )
    return Group(request, rows, frozenset(owned))


def chain(rollout_id: str, lengths: Sequence[tuple[int, int]], first_id: int) -> list[StagedCall]:
    """Calls one after the other, each of some carry and some generated tokens."""
    calls: list[StagedCall] = []
    whole: list[int] = []
    nothing = extras_digest(None)
    for index, (carry, generation) in enumerate(lengths):
        parent = calls[-1] if calls else None
        ids = tuple(range(first_id + len(whole), first_id + len(whole) + carry + generation))
        whole += ids
        call = StagedCall(
            rollout_id=rollout_id,
            model_call_id=f"c{index}",
            parent_call_id=None if parent is None else parent.model_call_id,
            mode=MODE_TEXT if parent is None else MODE_TOKEN_IN,
            prev_len=len(whole) - len(ids),
            delta_len=len(ids),
            cum_len=len(whole),
            weight_version=first_id + index,
            token_ids_delta=ids,
            token_mask_delta=(0.0,) * carry + (1.0,) * generation,
            generation_log_probs_delta=(0.0,) * carry + (-0.5,) * generation,
            extras_digest=nothing,
            chain_hash=chain_digest(None if parent is None else parent.chain_hash, ids),
            cumulative_hash=prefix_digest(whole),
            digest="0" * 64,
        )
        calls.append(evolve(call, digest=call_digest(call)))
    return calls


def receipt_of(calls: Sequence[StagedCall]) -> dict[str, Any]:
    """The receipt of a rollout whose last call is its terminal one."""
    manifest = [
        {name: getattr(call, name) for name in COPIED}
        | {"staging_key": owned_key(call.rollout_id, call.model_call_id), "response_id": call.model_call_id}
        for call in calls
    ]
    return {
        "rollout_id": calls[0].rollout_id,
        "reward": 1.0,
        "terminal_model_call_id": calls[-1].model_call_id,
        "terminal_selection": "declared",
        "manifest": manifest,
    }
