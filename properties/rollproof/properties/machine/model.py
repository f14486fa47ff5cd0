"""The groups that the machine stages, and what the contract says about each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from attrs import evolve, frozen

from rollproof.properties.strategies.rollouts.staged_calls import raw_receipt, staged_call
from rollproof.spec.constants import (
    ROUTE_BOUNDARY,
    ROUTE_BOUNDARY_INDEX,
    ROUTED_EXPERTS,
    TOPK_IDS,
    TOPK_LOGPROBS,
    UNREPAIRED_SENTINEL,
)
from rollproof.spec.envelope import encode_routes
from rollproof.spec.group import finalize_group
from rollproof.spec.judge.area import Area
from rollproof.spec.plane import DataPlane, PublishedRow, Put
from rollproof.spec.records import GroupRequest, ReassemblerConfig, StagedCall
from rollproof.spec.route_boundary import staged_boundary
from rollproof.spec.routes import staged_routes
from rollproof.spec.staged import Row, encode_row
from rollproof.spec.tensor import Tensor
from rollproof.spec.values import owned_key

TRAIN, STAGING = "train", "staging"
CONFIG = ReassemblerConfig(partition_id=TRAIN, staging_partition=STAGING, pad_token_id=0, max_seq_len=8)
EXPERTS: Final = 8
PLACEHOLDER: Final = (0, 1)
"""What workers stage for the route of a call's last token."""
CAPABLE: Final[Mapping[Area, Mapping[str, Any]]] = {
    Area.BOUNDARY: {
        "router_replay_enabled": True,
        "routed_dims": (1, len(PLACEHOLDER)),
        "num_experts": EXPERTS,
        "route_boundary": UNREPAIRED_SENTINEL,
    },
    Area.SAMPLER: {"top_logprobs": 2},
}
"""The arguments that switch a capability on."""


def config_with(capabilities: Iterable[Area]) -> ReassemblerConfig:
    """Return the arguments of a reassembler with some capabilities on."""
    return evolve(CONFIG, **{name: value for one in capabilities for name, value in CAPABLE[one].items()})


@frozen
class RolloutPlan:
    """One rollout to stage: the (carry, generation) lengths of its calls, and what is wrong with it."""

    calls: tuple[tuple[int, int], ...]
    flaw: str = ""
    """``"no receipt"``, ``"poisoned"``, ``"unstaged"`` (its last call never arrived), or ``"foreign"``: its manifest
    also names a staging key of the rollout staged before it. With capabilities, ``"no sidecar"`` (that of its last call
    was lost), or ``"one candidate"`` (a token's candidates are one id twice)."""


@frozen
class Group:
    """A group as it was staged."""

    request: GroupRequest
    rows: Mapping[str, Row]
    owned: frozenset[str]
    config: ReassemblerConfig = CONFIG

    @property
    def sample_ids(self) -> tuple[str, ...]:
        """The ids of its published rows."""
        return self.request.rollout_ids

    def published(self, valid: frozenset[int], staged: Mapping[str, Row]) -> tuple[PublishedRow, ...]:
        """Return the contract's rows where just these rollouts are valid, and the others placeholders for some reason.

        ``staged`` is everything that was ever staged: a flawed receipt may name rows of other groups.
        """
        receipts = tuple(receipt if index in valid else None for index, receipt in enumerate(self.request.receipts))
        outcome = finalize_group(self.config, evolve(self.request, receipts=receipts), DataPlane(staged))
        (put,) = (effect for effect in outcome.effects if isinstance(effect, Put))
        return put.rows

    def valid(self, staged: Mapping[str, Row]) -> frozenset[int]:
        """Return the rollouts that the contract accepts, given all that was ever staged."""
        outcome = finalize_group(self.config, self.request, DataPlane(staged))
        return frozenset(index for index, rollout in enumerate(outcome.rollouts) if rollout.valid)


def group_of(
    number: int, plans: Sequence[RolloutPlan], earlier: Sequence[Group], config: ReassemblerConfig = CONFIG
) -> Group:
    """Return the group of the given number; a foreign key is one of the last rollout that was staged before."""
    group_id = f"g{number}"
    rows: dict[str, Row] = {}
    receipts: list[Any] = []
    owned: set[str] = set()
    before = next((key for group in reversed(earlier) for key in sorted(group.owned)), None)
    for index, plan in enumerate(plans):
        calls = chain(f"{group_id}_g{index}", plan.calls, 7 * number + index, config)
        keys = [owned_key(call.rollout_id, call.model_call_id) for call in calls]
        staged = {key: row_of(call, config) for key, call in zip(keys, calls, strict=True)}
        receipt = raw_receipt(calls, reward=1.0)
        if plan.flaw == "unstaged":
            staged.pop(keys[-1])
        if plan.flaw == "no sidecar":
            staged[keys[-1]] = {name: column for name, column in staged[keys[-1]].items() if name != ROUTE_BOUNDARY}
        if plan.flaw == "one candidate":
            known = staged[keys[-1]][TOPK_IDS]
            staged[keys[-1]] = {**staged[keys[-1]], TOPK_IDS: Tensor.of("int32", [1] * known.count, known.shape)}
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
    return Group(request, rows, frozenset(owned), config)


def chain(
    rollout_id: str, lengths: Sequence[tuple[int, int]], first_id: int, config: ReassemblerConfig
) -> list[StagedCall]:
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
                extras=extras_of(config, len(whole), len(ids)),
            )
        )
        whole += ids
    return calls


def extras_of(config: ReassemblerConfig, prev_len: int, delta_len: int) -> dict[str, Any] | None:
    """Return the extras of a call at ``prev_len``: routes, the last one a placeholder, and its parent's last route."""
    if config.route_boundary is None:
        return None
    routes = [*(expert for at in range(delta_len - 1) for expert in route(prev_len + at)), *PLACEHOLDER]
    extras: dict[str, Any] = {ROUTED_EXPERTS: envelope(routes)}
    if prev_len:
        extras |= {ROUTE_BOUNDARY: envelope(route(prev_len - 1)), ROUTE_BOUNDARY_INDEX: prev_len - 1}
    return extras


def route(position: int) -> tuple[int, int]:
    """Return the experts of a token."""
    return position % (EXPERTS - 1), EXPERTS - 1


def envelope(ids: Sequence[int]) -> str:
    """Return an envelope of the routes of some tokens."""
    return encode_routes(Tensor.of("int16", ids, (len(ids) // len(PLACEHOLDER), 1, len(PLACEHOLDER))))


def row_of(call: StagedCall, config: ReassemblerConfig) -> Row:
    """Return the staged row of a call, with what the capabilities need."""
    extras = extras_of(config, call.prev_len, call.delta_len)
    encoding, routes = staged_routes(extras, call.delta_len)
    boundary = staged_boundary(extras, call.prev_len)
    row = encode_row(call, extras, routed_experts_encoding=encoding, routes=routes, boundary=boundary)
    return {**row, **(candidates(call, config.top_logprobs) if config.top_logprobs else {})}


def candidates(call: StagedCall, width: int) -> Row:
    """Return the sampler columns of a call: each generated token is its own first candidate."""
    carry = call.token_mask_delta.count(0.0)
    sampled = call.token_ids_delta[carry:]
    values = call.generation_log_probs_delta[carry:]
    shape = (1, len(sampled), width)
    ids = [token + slot for token in sampled for slot in range(width)]
    logprobs = [value - slot for value in values for slot in range(width)]
    return {TOPK_IDS: Tensor.of("int32", ids, shape), TOPK_LOGPROBS: Tensor.of("float32", logprobs, shape)}
