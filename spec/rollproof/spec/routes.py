"""Routes of a mixture-of-experts model, from a rollout's staged rows to its published row (section 6).

The plan of a row is made from the verified chain alone. Direct mode executes it at once; deferred mode publishes it and
leaves the routes where they are staged, until the policy executes it. Padding, placeholders and rows without routes are
all sentinel: replay then uses the model's own router.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import evolve

from rollproof.spec.assembly import all_sentinel, execute, missing_fragment
from rollproof.spec.constants import (
    AS_STAGED,
    ROUTE_BOUNDARY,
    ROUTE_ENCODING_ATTACHMENT,
    ROUTE_ENCODING_ENVELOPE,
    ROUTE_ENCODING_LIST,
    ROUTE_ENCODING_NONE,
    ROUTED_EXPERTS,
)
from rollproof.spec.envelope import decode_routes
from rollproof.spec.extras import RouteFragment, committed_extras
from rollproof.spec.outcomes import Dims
from rollproof.spec.plan import SpanMode, check_plan, has_routes, plan_schema, span_mode
from rollproof.spec.plane import DataPlane
from rollproof.spec.records import FinalizedRollout, LinearizedRow, ReassemblerConfig, RouteAssemblyPlan, RouteSpan
from rollproof.spec.rejections import Code, Rejected
from rollproof.spec.route_boundary import boundary_indices, sidecar_keys
from rollproof.spec.staged import StagedRow
from rollproof.spec.tensor import Tensor
from rollproof.spec.values import fault, first_repeated, refusing

# ── one call ────────────────────────────────────────────────────────────────────────────────────────────────────────


def staged_routes(extras: Mapping[str, Any] | None, delta_len: int) -> tuple[int, Tensor | None]:
    """Return how a call stages routes: encoding, and the column ``[1, delta_len, L, K]``; (0, None) without any.

    Raises ``Rejected`` if the routes are malformed or null, are a mapping (decision D22), or do not cover exactly the
    call's own tokens.
    """
    if extras is None or ROUTED_EXPERTS not in extras:
        return ROUTE_ENCODING_NONE, None
    payload = extras[ROUTED_EXPERTS]
    if type(payload) is dict:
        raise Rejected(Code.UNSUPPORTED_ROUTE_ENCODING, fault(ROUTED_EXPERTS, payload, "an envelope or nested lists"))
    routes = decode_routes(payload)
    if routes.shape[0] != delta_len:
        raise Rejected(Code.ROUTED_LEN_MISMATCH, fault(ROUTED_EXPERTS, routes.shape[0], f"delta_len {delta_len}"))
    encoding = ROUTE_ENCODING_ENVELOPE if type(payload) is str else ROUTE_ENCODING_LIST
    return encoding, Tensor(routes.dtype, (1, *routes.shape), routes.data)


# ── one rollout ─────────────────────────────────────────────────────────────────────────────────────────────────────


def rollout_plan(
    config: ReassemblerConfig, row: LinearizedRow, chain: Sequence[StagedRow], cleanup_keys: Sequence[str]
) -> RouteAssemblyPlan:
    """Return the route plan of a verified row.

    ``chain`` holds its staged rows, root first; ``cleanup_keys`` are its keys.

    No route is read. Each check covers the whole chain before the next begins.
    """
    for staged in chain:
        if staged.routed_experts_encoding == ROUTE_ENCODING_ATTACHMENT:
            detail = fault("routed_experts_encoding", staged.routed_experts_encoding, "0, 1 or 2")
            raise Rejected(Code.UNSUPPORTED_ROUTE_ENCODING, detail, subject=staged.call.model_call_id)
    for staged in chain:
        if staged.routed_len not in (0, staged.call.delta_len):
            detail = fault("routed_len", staged.routed_len, f"0 or delta_len {staged.call.delta_len}")
            raise Rejected(Code.ROUTED_LEN_MISMATCH, detail, subject=staged.call.model_call_id)
    indices = boundary_indices(config, chain)
    check_link_spans(row, chain)
    parts = zip(row.link_spans, chain, row.extras_commitments, indices, strict=True)
    spans = tuple(
        RouteSpan(
            staging_key=staged.key,
            carry_len=link.carry_len,
            generation_len=link.generation_len,
            staged_route_len=staged.routed_len,
            extras_digest_version=commitment.extras_digest_version,
            extras_digest=commitment.extras_digest,
            boundary_token_index=index,
            repair_previous_token=index is not None,
        )
        for link, staged, commitment, index in parts
    )
    plan = RouteAssemblyPlan(
        staging_partition=config.staging_partition,
        spans=spans,
        cleanup_staging_keys=tuple(cleanup_keys),
        expected_token_length=len(row.token_ids),
        schema_version=plan_schema(spans),
    )
    check_plan(plan)
    for staged in chain:
        if staged.routed_len == 0:
            check_routeless(staged)
    return plan


def check_link_spans(row: LinearizedRow, chain: Sequence[StagedRow]) -> None:
    """Check that the row's link spans are its chain's, which section 4 guarantees and plans rely on."""
    linked = [link.model_call_id for link in row.link_spans]
    again = first_repeated(linked)
    if again is not None:
        detail = fault("model_call_id", linked[again], "another one in every link span")
        raise Rejected(Code.DUPLICATE_ROUTE_SPAN, detail, subject=linked[again])
    calls = [staged.call for staged in chain]
    call_ids = [call.model_call_id for call in calls]
    for found in (linked, [commitment.model_call_id for commitment in row.extras_commitments]):
        if found != call_ids:
            raise Rejected(Code.ROUTE_SPAN_IDENTITY, fault("calls", ", ".join(found), ", ".join(call_ids)))
    for link, call in zip(row.link_spans, calls, strict=True):
        if not 0 <= link.generation_len <= call.delta_len:
            detail = fault("generation_len", link.generation_len, f"a length up to delta_len {call.delta_len}")
            raise Rejected(Code.ROUTE_GENERATION_SPAN_MISMATCH, detail, subject=link.model_call_id)
    for link, call in zip(row.link_spans, calls, strict=True):
        if link.carry_len != call.delta_len - link.generation_len:
            detail = fault("carry_len", link.carry_len, f"the rest of delta_len {call.delta_len}")
            raise Rejected(Code.ROUTE_CARRY_SPAN_MISMATCH, detail, subject=link.model_call_id)
    total = sum(link.carry_len + link.generation_len for link in row.link_spans)
    if total != len(row.token_ids):
        raise Rejected(Code.ROUTE_SPAN_LENGTH_MISMATCH, fault("link spans", total, f"{len(row.token_ids)} tokens"))


def check_routeless(staged: StagedRow) -> None:
    """Check that a row recorded as routeless really has no routes in its extras.

    ``routed_len`` is not covered by a digest: a forged 0 would silently turn real routes into sentinels.
    """
    with refusing(Code.ROUTE_ASSEMBLY, where=staged.key, subject=Code.FRAGMENT_INTEGRITY.code):
        committed_extras(staged.call.extras_digest, staged.extras_metadata_json)


def with_sidecars(
    config: ReassemblerConfig, plan: RouteAssemblyPlan, chain: Sequence[StagedRow], plane: DataPlane
) -> list[StagedRow]:
    """Return the chain with the sidecars that its plan uses, in one read of exactly their rows.

    Some row, the root's at least, never has one, so the base read cannot request the column (decision D15).
    """
    keys = sidecar_keys(plan)
    try:
        rows = plane.get(config.staging_partition, keys, (ROUTE_BOUNDARY,)) if keys else []
    except Rejected as rejected:
        raise Rejected(Code.ROUTE_ASSEMBLY, rejected.detail, subject=Code.MISSING_FRAGMENT.code) from None
    found = {key: row.get(ROUTE_BOUNDARY) for key, row in zip(keys, rows, strict=True)}
    return [evolve(staged, boundary=found.get(staged.key)) for staged in chain]


def assemble_directly(
    config: ReassemblerConfig, plan: RouteAssemblyPlan, chain: Sequence[StagedRow], dims: Dims | None
) -> Tensor | None:
    """Return the row's routes ``[tokens, L, K]`` int16, or None where its calls staged none.

    (L, K) is the model's where the caller knows it, else ``dims``, what an earlier rollout taught, else what this one
    carries (decision D10). All fragments must be there before one is checked: a data plane that drops a column which
    some row lacks cannot say which row that was.
    """
    if not has_routes(plan):
        return None
    found = {staged.key: fragment_of(staged) for staged in chain}
    fragments = {key: fragment for key, fragment in found.items() if fragment is not None}
    try:
        for span in plan.spans:
            if span_mode(span) is not SpanMode.SENTINEL and span.staging_key not in fragments:
                raise Rejected(Code.MISSING_FRAGMENT, missing_fragment(span))
        for key in sidecar_keys(plan):
            if fragments[key].boundary is None:
                detail = f"{key}: {fault(ROUTE_BOUNDARY, None, 'the route of one token')}"
                raise Rejected(Code.MISSING_FRAGMENT, detail)
        return execute(
            plan,
            fragments,
            config.routed_dims or dims,
            plan.expected_token_length,
            num_experts=config.num_experts,
            allow_repeated_experts=config.allow_repeated_experts,
            route_boundary=config.route_boundary or AS_STAGED,
        )
    except Rejected as rejected:
        raise Rejected(Code.ROUTE_ASSEMBLY, rejected.detail, subject=rejected.code.code) from None


def fragment_of(staged: StagedRow) -> RouteFragment | None:
    """Return the routes of a call, as its staged row holds them; None where it holds none."""
    routes = only_batch(staged.routed_experts)
    if routes is None:
        return None
    boundary = only_batch(staged.boundary)
    return RouteFragment(routes, staged.routed_experts_encoding, staged.extras_metadata_json, boundary)


def only_batch(column: Tensor | None) -> Tensor | None:
    """Return the fragment in a staged column ``[1, T, L, K]``; None where there is no column, or no batch of one."""
    if column is None or column.shape[:1] != (1,):
        return None
    return Tensor(column.dtype, column.shape[1:], column.data)


def row_routes(rollout: FinalizedRollout, length: int, dims: Dims) -> Tensor:
    """Return a row's routes in direct mode, or sentinels for a placeholder and a row without routes."""
    return all_sentinel(length, dims) if rollout.routed_experts is None else rollout.routed_experts
