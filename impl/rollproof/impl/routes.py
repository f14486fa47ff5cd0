"""Routes from a staged call to a published row (section 6): staging, the plan of a verified chain, direct assembly.

The plan is made from base columns alone. Fragments are the rows of the route column, as the data plane answered it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from attrs import evolve, frozen

from rollproof.impl.assembly import Dims, RouteFragment, execute, expect_commitment, read_metadata
from rollproof.impl.checks import fault, first_of
from rollproof.impl.columns import column_rows
from rollproof.impl.digest import extras_digest
from rollproof.impl.host_memory import empty
from rollproof.impl.in_place import InPlace, Place, is_at, owned
from rollproof.impl.lineage import ChainRow
from rollproof.impl.nested import nested_from
from rollproof.impl.outcomes import FinalizedRow
from rollproof.impl.plan import (
    RouteAssemblyPlan,
    RouteSpan,
    encode_plan,
    encoded_plan_size,
    has_routes,
    placeholder_plan,
    schema_of,
    validate,
)
from rollproof.impl.route_boundary import sidecar_keys, unsupported_field
from rollproof.impl.staged import StagedColumns
from rollproof.impl.staging import StagingSource
from rollproof.spec.constants import (
    AS_STAGED,
    BOUNDARY_REQUIRED,
    ROUTE_BOUNDARY,
    ROUTE_BOUNDARY_INDEX,
    ROUTE_ENCODING_ATTACHMENT,
    ROUTE_SENTINEL,
    ROUTED_EXPERTS,
)
from rollproof.spec.records import ReassemblerConfig
from rollproof.spec.rejections import Code, Rejected

__all__ = [
    "ChainRoutes",
    "assemble_directly",
    "encode_plan",
    "encoded_plan_size",
    "group_routes",
    "has_routes",
    "placeholder_plan",
    "rollout_plan",
]


def rollout_plan(
    config: ReassemblerConfig, chain: ChainRow, staged: StagedColumns, owned_keys: Sequence[str]
) -> RouteAssemblyPlan:
    """Return the valid plan of a verified chain. Raises ``Rejected`` with the first violated rule of section 6.

    The chain's link spans need no check of their own: ``ChainRow`` counts them from the calls' masks.
    """
    calls = chain.calls.tolist()
    routed, tokens = staged.routed_lens[chain.calls], staged.fields["delta_len"][chain.calls]
    foreign = staged.route_encodings[chain.calls] == ROUTE_ENCODING_ATTACHMENT
    if foreign.any():
        detail = fault("routed_experts_encoding", ROUTE_ENCODING_ATTACHMENT, "0, 1 or 2")
        raise Rejected(Code.UNSUPPORTED_ROUTE_ENCODING, detail, subject=chain.model_call_ids[int(foreign.argmax())])
    wrong = (routed != 0) & (routed != tokens)
    if wrong.any():
        first = int(wrong.argmax())
        detail = fault("routed_len", int(routed[first]), f"0 or delta_len {tokens[first]}")
        raise Rejected(Code.ROUTED_LEN_MISMATCH, detail, subject=chain.model_call_ids[first])
    extras = [_read_metadata(staged.extras_metadata_json[call]) for call in calls]
    indices = _boundary_indices(config, chain, extras, routed.tolist())
    keys = [f"{chain.rollout_id}/{call_id}" for call_id in chain.model_call_ids]
    commitments = chain.extras_commitments
    columns = (keys, chain.carry_lens.tolist(), chain.generation_lens.tolist(), routed.tolist(), commitments, indices)
    spans = tuple(
        RouteSpan(
            key,
            carry,
            generation,
            length,
            commitment.extras_digest_version,
            commitment.extras_digest,
            boundary_token_index=index,
            repair_previous_token=index is not None,
        )
        for key, carry, generation, length, commitment, index in zip(*columns, strict=True)
    )
    plan = validate(
        RouteAssemblyPlan(
            schema_version=schema_of(spans),
            staging_partition=config.staging_partition,
            spans=spans,
            cleanup_staging_keys=tuple(owned_keys),
            expected_token_length=len(chain.token_ids),
        )
    )
    for span, value in zip(plan.spans, extras, strict=True):
        if not span.staged_route_len:
            _check_routeless(span, value)
    return plan


def _boundary_indices(
    config: ReassemblerConfig,
    chain: ChainRow,
    extras: Sequence[dict[str, Any] | ValueError | None],
    routed: Sequence[int],
) -> list[int | None]:
    """Return per call of a chain where the token is that its sidecar is about, None without one (section 10)."""
    repaired = config.route_boundary is not None
    known = [value if isinstance(value, dict) else {} for value in extras]
    for call_id, value in zip(chain.model_call_ids, known, strict=True):
        field = unsupported_field(value, repaired=repaired)
        if field is not None:
            detail = fault("extras", field, "a boundary of section 10" if repaired else "no route boundary")
            raise Rejected(Code.UNSUPPORTED_ROUTE_BOUNDARY, detail, subject=call_id)
    indices: list[int | None] = [value.get(ROUTE_BOUNDARY_INDEX) for value in known]
    if config.route_boundary == BOUNDARY_REQUIRED:
        for call_id, parent_len, index in zip(chain.model_call_ids[1:], routed, indices[1:], strict=False):
            if parent_len and index is None:
                detail = fault(ROUTE_BOUNDARY, None, "the route of its parent's last token")
                raise Rejected(Code.MISSING_ROUTE_BOUNDARY, detail, subject=call_id)
    return indices


def _read_metadata(data: bytes) -> dict[str, Any] | ValueError | None:
    """Return staged extras, or why they are not valid."""
    try:
        return read_metadata(data)
    except ValueError as error:
        return error


def _check_routeless(span: RouteSpan, extras: dict[str, Any] | ValueError | None) -> None:
    """Check that a call without routes has extras without any: a forged routed_len of 0 must not drop routes."""
    try:
        if isinstance(extras, ValueError):
            raise extras
        expect_commitment(extras_digest(extras), span.extras_digest)
    except ValueError as error:
        raise _assembly(Code.FRAGMENT_INTEGRITY, f"{span.staging_key}: {error}") from None


def _assembly(code: Code, detail: str) -> Rejected:
    return Rejected(Code.ROUTE_ASSEMBLY, detail, subject=code.code)


def _read_column(source: StagingSource, keys: Sequence[str], name: str) -> Any:
    """Return a route column of these rows, or None where the plane says that one of them has none."""
    try:
        return source.read(keys, [name]).get(name, None)
    except Rejected as rejected:
        if rejected.code is Code.INVALID_STAGING_ROW:
            return None
        raise


@frozen(eq=False, slots=False)
class ChainRoutes:
    """The staged routes of a verified chain, in direct router replay."""

    chain: ChainRow
    staged: StagedColumns
    source: StagingSource

    @cached_property
    def fragments(self) -> dict[int, RouteFragment]:
        """The fragments of the chain's routed calls, by their position in the manifest; none if one is missing.

        A data plane drops a column that any row of a batch lacks: then the routed calls are read again separately
        (D15), and if the column is still not there, one of them has none.
        """
        staged, call_ids = self.staged, self.staged.fields["model_call_id"]
        routed = [call for call in self.chain.calls.tolist() if staged.routed_lens[call]]
        column, positions = staged.routed_experts, routed
        if column is None and routed:
            keys = [f"{self.chain.rollout_id}/{call_ids[call]}" for call in routed]
            column = _read_column(self.source, keys, ROUTED_EXPERTS)
            positions = list(range(len(routed)))
        try:
            rows = [] if column is None else column_rows(column, ROUTED_EXPERTS)
        except ValueError:
            rows = []
        if not rows:
            return {}
        return {
            call: RouteFragment(rows[position], int(staged.route_encodings[call]), staged.extras_metadata_json[call])
            for call, position in zip(routed, positions, strict=True)
        }


def assemble_directly(
    config: ReassemblerConfig,
    plan: RouteAssemblyPlan,
    fetched: ChainRoutes,
    dims: Dims | None,
    place: Place | None = None,
) -> tuple[torch.Tensor | None, Dims | None]:
    """Return the row's int16 routes ``[tokens, L, K]``, or None where its calls staged none; and (L, K) after it.

    They are in their ``place`` in the group where (L, K) is known.

    With ``dims`` None the rollout itself determines (L, K). Raises ``Rejected(ROUTE_ASSEMBLY)``, subject the reason.
    """
    if not has_routes(plan):
        return None, dims
    try:
        fragments = _fragments(plan, fetched)
        here = all(fragment.routes.device.type == "cpu" for fragment in fragments.values())
        routes = execute(
            plan,
            fragments,
            dims,
            plan.expected_token_length,
            num_experts=config.num_experts,
            allow_repeated_experts=config.allow_repeated_experts,
            route_boundary=config.route_boundary or AS_STAGED,
            out=place.for_routes(plan.expected_token_length, dims) if here and place and dims else None,
        )
    except Rejected as rejected:
        if rejected.code is Code.MISSING_STAGING_ROW:
            raise
        raise _assembly(rejected.code, rejected.detail) from None
    return routes, (routes.shape[1], routes.shape[2])


def _fragments(plan: RouteAssemblyPlan, fetched: ChainRoutes) -> dict[str, RouteFragment]:
    """Return the chain's fragments by staging key."""
    found = fetched.fragments
    keys = {call: span.staging_key for span, call in zip(plan.spans, fetched.chain.calls.tolist(), strict=True)}
    if not found:
        routed = [span.staging_key for span in plan.spans if span.staged_route_len]
        raise Rejected(Code.MISSING_FRAGMENT, f"{first_of(routed)}: {fault(ROUTED_EXPERTS, None, 'routes')}")
    fragments = {keys[call]: fragment for call, fragment in found.items()}
    return fragments | _with_sidecars(fragments, sidecar_keys(plan), fetched.source)


def _with_sidecars(
    fragments: dict[str, RouteFragment], keys: Sequence[str], source: StagingSource
) -> dict[str, RouteFragment]:
    """Return the fragments of these rows with their sidecars, from one read of exactly these rows (section 10)."""
    if not keys:
        return {}
    # The data plane may use the memory of its last answer again.
    owned = [evolve(fragments[key], routes=fragments[key].routes.clone()) for key in keys]
    for key in fragments.keys() - set(keys):
        fragments[key] = evolve(fragments[key], routes=fragments[key].routes.clone())
    try:
        column = _read_column(source, keys, ROUTE_BOUNDARY)
        rows = [] if column is None else column_rows(column, ROUTE_BOUNDARY)
    except Rejected as rejected:
        raise Rejected(Code.MISSING_FRAGMENT, rejected.detail) from None
    except ValueError:
        rows = []
    if not rows:
        raise Rejected(Code.MISSING_FRAGMENT, f"{first_of(keys)}: {fault(ROUTE_BOUNDARY, None, 'sidecars')}")
    return {key: evolve(one, boundary=row) for key, one, row in zip(keys, owned, rows, strict=True)}


def group_routes(
    rollouts: Sequence[FinalizedRow], lengths: Sequence[int], dims: Dims, memory: InPlace | None = None
) -> torch.Tensor:
    """Return a group's route column: int16, jagged ``[N, j, L, K]``; all sentinel where a rollout has no routes.

    Routes that were written in their place in ``memory`` stay there.
    """
    offsets = torch.zeros(len(lengths) + 1, dtype=torch.int64)
    torch.cumsum(torch.tensor(lengths), 0, out=offsets[1:])
    values = None if memory is None else memory.column(sum(lengths), dims, torch.int16)
    if values is None:
        values = empty((sum(lengths), *dims), torch.int16)
    start = 0
    for rollout, length in zip(rollouts, lengths, strict=True):
        row = values[start : start + length]
        if rollout.routed_experts is None:
            row.fill_(ROUTE_SENTINEL)
        elif not is_at(rollout.routed_experts, row):
            row.copy_(rollout.routed_experts)
        start += length
    return nested_from(owned(values), offsets)
