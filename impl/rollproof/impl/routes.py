"""Routes from a staged call to a published row (section 6): staging, the plan of a verified chain, direct assembly.

The plan is made from base columns alone. Fragments are the rows of the route column, as the data plane answered it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from attrs import frozen

from rollproof.impl.assembly import Dims, RouteFragment, execute, read_metadata
from rollproof.impl.columns import column_rows
from rollproof.impl.digest import extras_digest
from rollproof.impl.envelope import decode_routes
from rollproof.impl.lineage import ChainRow
from rollproof.impl.outcomes import FinalizedRollout
from rollproof.impl.plan import encode_plan, encoded_plan_size, has_routes, placeholder_plan, validate
from rollproof.impl.staged import StagedColumns
from rollproof.spec.constants import (
    ROUTE_BOUNDARY_SIDECAR,
    ROUTE_ENCODING_ENVELOPE,
    ROUTE_ENCODING_LIST,
    ROUTE_ENCODING_NONE,
    ROUTE_SENTINEL,
    ROUTED_EXPERTS,
)
from rollproof.spec.records import ReassemblerConfig, RouteAssemblyPlan, RouteSpan
from rollproof.spec.rejections import Code, Rejected

if TYPE_CHECKING:
    from rollproof.impl.staging import StagingSource

__all__ = [
    "ChainRoutes",
    "assemble_directly",
    "encode_plan",
    "encoded_plan_size",
    "group_routes",
    "has_routes",
    "placeholder_plan",
    "rollout_plan",
    "staged_columns",
]


def staged_columns(extras: Mapping[str, Any] | None, delta_len: int) -> tuple[int, torch.Tensor | None]:
    """How a call's routes are staged: (encoding, ``[1, delta_len, L, K]`` in the envelope's dtype), or (0, None).

    Raises ``ValueError`` for routes that are none, or that are not as long as the call's tokens.
    """
    if extras is None or ROUTED_EXPERTS not in extras:
        return ROUTE_ENCODING_NONE, None
    payload = extras[ROUTED_EXPERTS]
    try:
        routes = decode_routes(payload)
    except Rejected as rejected:
        raise ValueError(rejected.reason) from None
    if len(routes) != delta_len:
        raise ValueError(f"{Code.ROUTED_LEN_MISMATCH.code}: {len(routes)} routes for {delta_len} tokens")
    return ROUTE_ENCODING_ENVELOPE if type(payload) is str else ROUTE_ENCODING_LIST, routes[None]


def rollout_plan(
    config: ReassemblerConfig, chain: ChainRow, staged: StagedColumns, owned_keys: Sequence[str]
) -> RouteAssemblyPlan:
    """The valid plan of a verified chain. Raises ``Rejected`` with the first violated rule of section 6.

    The chain's link spans need no check of their own: ``ChainRow`` counts them off the calls' masks.
    """
    calls = chain.calls.tolist()
    routed, tokens = staged.routed_lens[chain.calls], staged.fields["delta_len"][chain.calls]
    wrong = (routed != 0) & (routed != tokens)
    if wrong.any():
        first = int(wrong.argmax())
        raise Rejected(
            Code.ROUTED_LEN_MISMATCH, f"{routed[first]} for {tokens[first]}", subject=chain.model_call_ids[first]
        )
    extras = [_read_metadata(staged.extras_metadata_json[call]) for call in calls]
    for call_id, value in zip(chain.model_call_ids, extras, strict=True):
        if isinstance(value, dict) and ROUTE_BOUNDARY_SIDECAR in value:
            raise Rejected(Code.UNSUPPORTED_ROUTE_BOUNDARY, subject=call_id)
    keys = [f"{chain.rollout_id}/{call_id}" for call_id in chain.model_call_ids]
    commitments = chain.extras_commitments
    columns = (keys, chain.carry_lens.tolist(), chain.generation_lens.tolist(), routed.tolist(), commitments)
    plan = validate(
        RouteAssemblyPlan(
            staging_partition=config.staging_partition,
            spans=tuple(
                RouteSpan(key, carry, generation, length, commitment.extras_digest_version, commitment.extras_digest)
                for key, carry, generation, length, commitment in zip(*columns, strict=True)
            ),
            cleanup_staging_keys=tuple(owned_keys),
            expected_token_length=len(chain.token_ids),
        )
    )
    for span, value in zip(plan.spans, extras, strict=True):
        if not span.staged_route_len:
            _check_routeless(span, value)
    return plan


def _read_metadata(data: bytes) -> dict[str, Any] | ValueError | None:
    """Staged extras, or why they are none."""
    try:
        return read_metadata(data)
    except ValueError as error:
        return error


def _check_routeless(span: RouteSpan, extras: dict[str, Any] | ValueError | None) -> None:
    """A call without routes has extras without any: a forged routed_len of 0 must not turn them into sentinels."""
    try:
        if isinstance(extras, ValueError):
            raise extras
        intact = extras_digest(extras) == span.extras_digest
    except ValueError as error:
        raise _assembly(Code.FRAGMENT_INTEGRITY, f"{span.staging_key}: {error}") from None
    if not intact:
        raise _assembly(Code.FRAGMENT_INTEGRITY, f"{span.staging_key}: it staged more than its row says")


def _assembly(code: Code, detail: str) -> Rejected:
    return Rejected(Code.ROUTE_ASSEMBLY, detail, subject=code.code)


@frozen(eq=False, slots=False)
class ChainRoutes:
    """The staged routes of a verified chain, in direct router replay."""

    chain: ChainRow
    staged: StagedColumns
    source: StagingSource

    @cached_property
    def fragments(self) -> dict[int, RouteFragment]:
        """The fragments of the chain's routed calls, by their position in the manifest; none if one is missing.

        A data plane drops a column that any row of a batch lacks: then the routed calls are read again by themselves
        (D15), and if the column is still not there, one of them has none.
        """
        staged, call_ids = self.staged, self.staged.fields["model_call_id"]
        routed = [call for call in self.chain.calls.tolist() if staged.routed_lens[call]]
        column, positions = staged.routed_experts, routed
        if column is None and routed:
            keys = [f"{self.chain.rollout_id}/{call_ids[call]}" for call in routed]
            column = self.source.read(keys, [ROUTED_EXPERTS]).get(ROUTED_EXPERTS, None)
            positions = list(range(len(routed)))
        try:
            rows = [] if column is None else column_rows(column)
        except ValueError:
            rows = []
        if not rows:
            return {}
        return {
            call: RouteFragment(rows[position], int(staged.route_encodings[call]), staged.extras_metadata_json[call])
            for call, position in zip(routed, positions, strict=True)
        }


def assemble_directly(
    config: ReassemblerConfig, plan: RouteAssemblyPlan, fetched: ChainRoutes, dims: Dims | None
) -> tuple[torch.Tensor | None, Dims | None]:
    """The row's routes, int16 ``[tokens, L, K]``, or None where its calls staged none; and (L, K) as known after it.

    ``dims`` None lets the rollout itself say (L, K). Raises ``Rejected(ROUTE_ASSEMBLY)``, subject the reason.
    """
    if not has_routes(plan):
        return None, dims
    try:
        routes = execute(
            plan,
            _fragments(plan, fetched),
            dims,
            plan.expected_token_length,
            num_experts=config.num_experts,
            allow_repeated_experts=config.allow_repeated_experts,
        )
    except Rejected as rejected:
        if rejected.code is Code.MISSING_STAGING_ROW:
            raise
        raise _assembly(rejected.code, rejected.detail) from None
    return routes, (routes.shape[1], routes.shape[2])


def _fragments(plan: RouteAssemblyPlan, fetched: ChainRoutes) -> dict[str, RouteFragment]:
    """The chain's fragments by staging key."""
    found = fetched.fragments
    keys = {call: span.staging_key for span, call in zip(plan.spans, fetched.chain.calls.tolist(), strict=True)}
    if not found:
        raise Rejected(Code.MISSING_FRAGMENT, f"one of {', '.join(keys.values())}")
    return {keys[call]: fragment for call, fragment in found.items()}


def group_routes(rollouts: Sequence[FinalizedRollout], lengths: Sequence[int], dims: Dims) -> torch.Tensor:
    """The route column of a group: int16, jagged ``[N, j, L, K]``; all sentinel where a rollout has no routes."""
    offsets = torch.zeros(len(lengths) + 1, dtype=torch.int64)
    torch.cumsum(torch.tensor(lengths), 0, out=offsets[1:])
    values = torch.empty((sum(lengths), *dims), dtype=torch.int16)
    start = 0
    for rollout, length in zip(rollouts, lengths, strict=True):
        row = values[start : start + length]
        if rollout.routed_experts is None:
            row.fill_(ROUTE_SENTINEL)
        else:
            row.copy_(rollout.routed_experts)
        start += length
    return torch.nested.nested_tensor_from_jagged(values, offsets)
