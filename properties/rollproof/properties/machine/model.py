"""The groups that the machine stages, and what the contract says about each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import evolve, frozen

from rollproof.properties.strategies.rollouts.staged_calls import raw_receipt, staged_call
from rollproof.spec.group import finalize_group
from rollproof.spec.plane import DataPlane, PublishedRow, Put
from rollproof.spec.records import GroupRequest, ReassemblerConfig, StagedCall
from rollproof.spec.staged import Row, encode_row
from rollproof.spec.values import owned_key

TRAIN, STAGING = "train", "staging"
CONFIG = ReassemblerConfig(partition_id=TRAIN, staging_partition=STAGING, pad_token_id=0, max_seq_len=8)


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
        """Return the contract's rows where just these rollouts are valid, and the others placeholders for some reason.

        ``staged`` is everything that was ever staged: a flawed receipt may name rows of other groups.
        """
        receipts = tuple(receipt if index in valid else None for index, receipt in enumerate(self.request.receipts))
        outcome = finalize_group(CONFIG, evolve(self.request, receipts=receipts), DataPlane(staged))
        (put,) = (effect for effect in outcome.effects if isinstance(effect, Put))
        return put.rows

    def valid(self, staged: Mapping[str, Row]) -> frozenset[int]:
        """Return the rollouts that the contract accepts, given all that was ever staged."""
        outcome = finalize_group(CONFIG, self.request, DataPlane(staged))
        return frozenset(index for index, rollout in enumerate(outcome.rollouts) if rollout.valid)


def group_of(number: int, plans: Sequence[RolloutPlan], earlier: Sequence[Group]) -> Group:
    """Return the group of the given number; a foreign key is one of the last rollout that was staged before."""
    group_id = f"g{number}"
    rows: dict[str, Row] = {}
    receipts: list[Any] = []
    owned: set[str] = set()
    before = next((key for group in reversed(earlier) for key in sorted(group.owned)), None)
    for index, plan in enumerate(plans):
        calls = chain(f"{group_id}_g{index}", plan.calls, first_id=7 * number + index)
        keys = [owned_key(call.rollout_id, call.model_call_id) for call in calls]
        staged = dict(zip(keys, map(encode_row, calls), strict=True))
        receipt = raw_receipt(calls, reward=1.0)
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
    """Return calls one after the other, each of some carry and some generated tokens."""
    calls: list[StagedCall] = []
    whole: list[int] = []
    for index, (carry, generation) in enumerate(lengths):
        parent = calls[-1] if calls else None
        ids = tuple(range(first_id + len(whole), first_id + len(whole) + carry + generation))
        version = first_id + index
        calls.append(
            staged_call(
                ids,
                carry,
                rollout_id=rollout_id,
                call_id=f"c{index}",
                parent=parent,
                before=whole,
                weight_version=version,
            )
        )
        whole += ids
    return calls
