"""Deferred router replay on the policy's side: a published plan executed over staged rows (section 6).

By then the row is part of a batch, so nothing that a plan or a staged row holds raises: the whole row becomes sentinel,
and the reason is counted. An outage while the staged rows are read propagates, as everywhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from attrs import frozen

from rollproof.spec.assembly import all_sentinel, execute
from rollproof.spec.constants import AS_STAGED, ROUTE_BOUNDARY, ROUTED_EXPERTS
from rollproof.spec.extras import RouteFragment
from rollproof.spec.outcomes import Dims
from rollproof.spec.plan import SpanMode, decode_plan, span_mode
from rollproof.spec.rejections import Rejected
from rollproof.spec.route_boundary import sidecar_keys
from rollproof.spec.routes import only_batch
from rollproof.spec.staged import Row, raw_bytes, scalar
from rollproof.spec.tensor import Tensor

FRAGMENT_COLUMNS = (ROUTED_EXPERTS, "routed_experts_encoding", "extras_metadata_json")
"""The columns that the policy reads of every staged row that a plan uses."""


@frozen
class ReplayedRow:
    """The routes of a published row as the policy replays them, and why they are all sentinel, if they had to be."""

    routes: Tensor
    failure: str | None = None
    """The code of section 6 that made every token sentinel, or None."""


def fragment_keys(published: Any) -> tuple[str, ...]:
    """Return the staged rows that a published plan needs, root first; none where it is not a plan."""
    try:
        plan = decode_plan(published)
    except Rejected:
        return ()
    return tuple(span.staging_key for span in plan.spans if span_mode(span) is not SpanMode.SENTINEL)


def staged_fragment(row: Row, *, with_sidecar: bool = False) -> RouteFragment | None:
    """Return a staged row's fragment; None where it lacks one of ``FRAGMENT_COLUMNS``, or holds it in another form.

    The same holds of the sidecar, which is read where the plan has one: in one further read, of exactly those rows.
    """
    routes = only_batch(row.get(ROUTED_EXPERTS))
    boundary = only_batch(row.get(ROUTE_BOUNDARY)) if with_sidecar else None
    if routes is None or (with_sidecar and boundary is None):
        return None
    try:
        encoding, metadata = scalar(row, "routed_experts_encoding"), raw_bytes(row, "extras_metadata_json")
        return RouteFragment(routes, encoding, metadata, boundary)
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
    route_boundary: str = AS_STAGED,
) -> ReplayedRow:
    """Return the routes of one published row: ``published`` is its tag, ``rows`` are the staged rows that were found.

    ``dims`` is the model's own (L, K). Nothing raises: whatever is wrong, the whole row is sentinel and the reason is
    reported, because by now the row is part of a batch.
    """
    try:
        plan = decode_plan(published)
        keys, with_sidecar = [span.staging_key for span in plan.spans], sidecar_keys(plan)
        found = {key: staged_fragment(rows[key], with_sidecar=key in with_sidecar) for key in keys if key in rows}
        routes = execute(
            plan,
            {key: fragment for key, fragment in found.items() if fragment is not None},
            dims,
            canonical_len,
            num_experts=num_experts,
            allow_repeated_experts=allow_repeated_experts,
            route_boundary=route_boundary,
        )
    except Rejected as rejected:
        return ReplayedRow(all_sentinel(canonical_len, dims), rejected.code.code)
    return ReplayedRow(routes)


def failure_counts(rows: Iterable[ReplayedRow]) -> dict[str, int]:
    """Count how many rows of a batch each reason turned into sentinels."""
    return dict(Counter(row.failure for row in rows if row.failure is not None))
