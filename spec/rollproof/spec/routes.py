"""Routes of a mixture-of-experts model, from a rollout's staged rows to its published row (section 6).

The plan of a row is made from the verified chain alone. Direct mode executes it at once; deferred mode publishes it and
leaves the routes where they are staged, until the policy executes it. Padding, placeholders and rows without routes are
all sentinel: replay then uses the model's own router.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attrs import frozen

from rollproof.spec.assembly import RouteFragment, all_sentinel, execute, read_metadata
from rollproof.spec.constants import (
    ROUTE_BOUNDARY_SIDECAR,
    ROUTE_ENCODING_ENVELOPE,
    ROUTE_ENCODING_LIST,
    ROUTE_ENCODING_NONE,
    ROUTED_EXPERTS,
)
from rollproof.spec.digest import extras_digest
from rollproof.spec.envelope import decode_routes
from rollproof.spec.outcomes import Dims
from rollproof.spec.plan import (
    SpanMode,
    check_plan,
    decode_plan,
    encode_plan,
    encoded_plan_size,
    has_routes,
    placeholder_plan,
    span_mode,
)
from rollproof.spec.records import FinalizedRollout, LinearizedRow, ReassemblerConfig, RouteAssemblyPlan, RouteSpan
from rollproof.spec.rejections import Code, Rejected
from rollproof.spec.staged import Row, StagedRow, raw_bytes, scalar
from rollproof.spec.tensor import Tensor

__all__ = [
    "FRAGMENT_COLUMNS",
    "ReplayedRow",
    "assemble_directly",
    "encode_plan",
    "encoded_plan_size",
    "execute_published_plan",
    "failure_counts",
    "fragment_keys",
    "has_routes",
    "placeholder_plan",
    "rollout_plan",
    "row_routes",
    "staged_fragment",
    "staged_routes",
]

# ── one call ────────────────────────────────────────────────────────────────────────────────────────────────────────


def staged_routes(extras: Mapping[str, Any] | None, delta_len: int) -> tuple[int, Tensor | None]:
    """How a call's routes are staged: the encoding, and the column ``[1, delta_len, L, K]``; (0, None) without routes.

    Raises ``Rejected`` for routes that are none, null included, or that are not the call's own tokens'.
    """
    if extras is None or ROUTED_EXPERTS not in extras:
        return ROUTE_ENCODING_NONE, None
    payload = extras[ROUTED_EXPERTS]
    routes = decode_routes(payload)
    if routes.shape[0] != delta_len:
        raise Rejected(Code.ROUTED_LEN_MISMATCH, f"{routes.shape[0]} routes for {delta_len} tokens")
    encoding = ROUTE_ENCODING_ENVELOPE if type(payload) is str else ROUTE_ENCODING_LIST
    return encoding, Tensor(routes.dtype, (1, *routes.shape), routes.data)


# ── one rollout ─────────────────────────────────────────────────────────────────────────────────────────────────────


def rollout_plan(
    config: ReassemblerConfig, row: LinearizedRow, chain: Sequence[StagedRow], cleanup_keys: Sequence[str]
) -> RouteAssemblyPlan:
    """The route plan of a verified row. ``chain`` holds its staged rows, root first; ``cleanup_keys`` are its own keys.

    No route is read. Each check covers the whole chain before the next begins.
    """
    for staged in chain:
        if staged.routed_len not in (0, staged.call.delta_len):
            raise Rejected(
                Code.ROUTED_LEN_MISMATCH,
                f"{staged.routed_len} routes for {staged.call.delta_len} tokens",
                subject=staged.call.model_call_id,
            )
    for staged in chain:
        if carries_boundary(staged):
            raise Rejected(Code.UNSUPPORTED_ROUTE_BOUNDARY, subject=staged.call.model_call_id)
    check_link_spans(row, chain)
    plan = RouteAssemblyPlan(
        staging_partition=config.staging_partition,
        spans=tuple(
            RouteSpan(
                staging_key=staged.key,
                carry_len=link.carry_len,
                generation_len=link.generation_len,
                staged_route_len=staged.routed_len,
                extras_digest_version=commitment.extras_digest_version,
                extras_digest=commitment.extras_digest,
            )
            for link, staged, commitment in zip(row.link_spans, chain, row.extras_commitments, strict=True)
        ),
        cleanup_staging_keys=tuple(cleanup_keys),
        expected_token_length=len(row.token_ids),
    )
    check_plan(plan)
    for staged in chain:
        if staged.routed_len == 0:
            check_routeless(staged)
    return plan


def carries_boundary(staged: StagedRow) -> bool:
    """Whether the row's extras announce a route boundary sidecar. Unreadable extras are integrity's matter."""
    try:
        return ROUTE_BOUNDARY_SIDECAR in (read_metadata(staged.extras_metadata_json) or {})
    except ValueError:
        return False


def check_link_spans(row: LinearizedRow, chain: Sequence[StagedRow]) -> None:
    """The row's link spans are its chain's: what section 4 guarantees, stated where plans rely on it."""
    seen = set()
    for link in row.link_spans:
        if link.model_call_id in seen:
            raise Rejected(Code.DUPLICATE_ROUTE_SPAN, subject=link.model_call_id)
        seen.add(link.model_call_id)
    calls = [staged.call for staged in chain]
    call_ids = [call.model_call_id for call in calls]
    if [link.model_call_id for link in row.link_spans] != call_ids:
        raise Rejected(Code.ROUTE_SPAN_IDENTITY)
    if [commitment.model_call_id for commitment in row.extras_commitments] != call_ids:
        raise Rejected(Code.ROUTE_SPAN_IDENTITY)
    for link, call in zip(row.link_spans, calls, strict=True):
        if not 0 <= link.generation_len <= call.delta_len:
            raise Rejected(Code.ROUTE_GENERATION_SPAN_MISMATCH, subject=link.model_call_id)
    for link, call in zip(row.link_spans, calls, strict=True):
        if link.carry_len != call.delta_len - link.generation_len:
            raise Rejected(Code.ROUTE_CARRY_SPAN_MISMATCH, subject=link.model_call_id)
    if sum(link.carry_len + link.generation_len for link in row.link_spans) != len(row.token_ids):
        raise Rejected(Code.ROUTE_SPAN_LENGTH_MISMATCH)


def check_routeless(staged: StagedRow) -> None:
    """A row that claims to have no routes has extras without any.

    ``routed_len`` is not covered by a digest: a forged 0 would silently turn real routes into sentinels.
    """
    try:
        actual = extras_digest(read_metadata(staged.extras_metadata_json))
    except ValueError as error:
        raise assembly_failure(Rejected(Code.FRAGMENT_INTEGRITY, f"{staged.key}: {error}")) from None
    if actual != staged.call.extras_digest:
        raise assembly_failure(Rejected(Code.FRAGMENT_INTEGRITY, f"{staged.key}: it staged more than its row says"))


def assembly_failure(rejected: Rejected) -> Rejected:
    """A failed assembly as the rejection of its rollout."""
    return Rejected(Code.ROUTE_ASSEMBLY, rejected.detail, subject=rejected.code.code)


def assemble_directly(
    config: ReassemblerConfig, plan: RouteAssemblyPlan, chain: Sequence[StagedRow], dims: Dims | None
) -> tuple[Tensor | None, Dims | None]:
    """The row's routes ``[tokens, L, K]`` int16, or None where its calls staged none; and (L, K) as known from then on.

    (L, K) is the model's where the caller knows it, else what an earlier rollout taught, else what this one carries
    (decision D10). The caller forgets it again if the rollout is not accepted in the end. All fragments must be there
    before one is looked at: a data plane that drops a column which some row lacks cannot say which row that was.
    """
    if not has_routes(plan):
        return None, dims
    found = {staged.key: fragment_of(staged) for staged in chain}
    fragments = {key: fragment for key, fragment in found.items() if fragment is not None}
    for span in plan.spans:
        if span_mode(span) is not SpanMode.SENTINEL and span.staging_key not in fragments:
            raise assembly_failure(Rejected(Code.MISSING_FRAGMENT, span.staging_key))
    try:
        routes = execute(
            plan,
            fragments,
            config.routed_dims or dims,
            plan.expected_token_length,
            num_experts=config.num_experts,
            allow_repeated_experts=config.allow_repeated_experts,
        )
    except Rejected as rejected:
        raise assembly_failure(rejected) from None
    return routes, (routes.shape[1], routes.shape[2])


def fragment_of(staged: StagedRow) -> RouteFragment | None:
    """The routes of a call, as its staged row holds them; None where it holds none."""
    routes = without_batch(staged.routed_experts)
    if routes is None:
        return None
    return RouteFragment(routes, staged.routed_experts_encoding, staged.extras_metadata_json)


def without_batch(column: Tensor | None) -> Tensor | None:
    """The fragment in a staged column ``[1, T, L, K]``; None where there is no column, or no batch of one."""
    if column is None or column.shape[:1] != (1,):
        return None
    return Tensor(column.dtype, column.shape[1:], column.data)


def row_routes(rollout: FinalizedRollout, length: int, dims: Dims) -> Tensor:
    """What a row publishes in direct mode: its routes, or sentinels for a placeholder and a row without routes."""
    return all_sentinel(length, dims) if rollout.routed_experts is None else rollout.routed_experts


# ── the policy's side of deferred mode ──────────────────────────────────────────────────────────────────────────────

FRAGMENT_COLUMNS = (ROUTED_EXPERTS, "routed_experts_encoding", "extras_metadata_json")
"""The columns that the policy reads of every staged row that a plan uses."""


@frozen
class ReplayedRow:
    """The routes of a published row as the policy replays them, and why they are all sentinel, if they had to be."""

    routes: Tensor
    failure: str | None = None
    """The code of section 6 that made every token sentinel, or None."""


def fragment_keys(published: Any) -> tuple[str, ...]:
    """The staged rows that a published plan needs, root first; none where it is no plan."""
    try:
        plan = decode_plan(published)
    except Rejected:
        return ()
    return tuple(span.staging_key for span in plan.spans if span_mode(span) is not SpanMode.SENTINEL)


def staged_fragment(row: Row) -> RouteFragment | None:
    """The fragment of a staged row; None where it lacks one of ``FRAGMENT_COLUMNS``, or holds it in another form."""
    routes = without_batch(row.get(ROUTED_EXPERTS))
    if routes is None:
        return None
    try:
        return RouteFragment(routes, scalar(row, "routed_experts_encoding"), raw_bytes(row, "extras_metadata_json"))
    except ValueError:
        return None


def execute_published_plan(
    published: Any,
    rows: Mapping[str, Row],
    dims: Dims,
    canonical_len: int,
    *,
    num_experts: int | None = None,
    allow_repeated_experts: bool = False,
) -> ReplayedRow:
    """The routes of one published row: ``published`` is its tag, ``rows`` are the staged rows that were found.

    ``dims`` is the model's own (L, K). Nothing raises: whatever is wrong, the whole row is sentinel and the reason is
    reported, because by now the row is part of a batch.
    """
    try:
        plan = decode_plan(published)
        found = {span.staging_key: rows[span.staging_key] for span in plan.spans if span.staging_key in rows}
        fragments = {key: staged_fragment(row) for key, row in found.items()}
        routes = execute(
            plan,
            {key: fragment for key, fragment in fragments.items() if fragment is not None},
            dims,
            canonical_len,
            num_experts=num_experts,
            allow_repeated_experts=allow_repeated_experts,
        )
    except Rejected as rejected:
        return ReplayedRow(all_sentinel(canonical_len, dims), rejected.code.code)
    return ReplayedRow(routes)


def failure_counts(rows: Iterable[ReplayedRow]) -> dict[str, int]:
    """How many rows of a batch each reason turned into sentinels."""
    return dict(Counter(row.failure for row in rows if row.failure is not None))
