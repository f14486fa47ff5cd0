"""Executing a route plan: from staged fragments to one route tensor per row (section 6).

Both modes run this: direct mode before publication, deferred mode on the policy's side. A fragment is trusted only
once the extras rebuilt around it digest to the commitment that the receipt's digests cover; ids are then checked one by
one and never narrowed. Where nothing was captured the result is the sentinel, and never a route of another token.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from rollproof.spec.constants import AS_STAGED, ROUTE_SENTINEL, ROUTED_EXPERTS, UNREPAIRED_SENTINEL
from rollproof.spec.envelope import INT16_MAX, ROUTE_RANK
from rollproof.spec.extras import RouteFragment, committed_extras
from rollproof.spec.outcomes import Dims
from rollproof.spec.plan import fragment_use
from rollproof.spec.records import RouteAssemblyPlan, RouteSpan
from rollproof.spec.rejections import Code, Rejected
from rollproof.spec.route_boundary import check_announced, check_sidecar, repairs, unrepaired_positions
from rollproof.spec.tensor import Tensor
from rollproof.spec.values import expect, fault, refusing, show

PUBLISHED_DTYPE: Final = "int16"

TokenRoutes: TypeAlias = tuple[Any, ...]
"""One token's expert ids, layer by layer: ``L * K`` ints."""


def execute(
    plan: RouteAssemblyPlan,
    fragments: Mapping[str, RouteFragment],
    dims: Dims | None,
    canonical_len: int,
    *,
    num_experts: int | None = None,
    allow_repeated_experts: bool = False,
    route_boundary: str = AS_STAGED,
) -> Tensor:
    """Return the int16 routes ``[canonical_len, L, K]`` of a row, from a valid plan and its fragments by staging key.

    ``dims`` is (L, K); where it is not yet known, the first fragment that the plan uses determines it, and there must
    be one. Fragments that no span names are ignored. ``route_boundary`` says what becomes of a boundary token that no
    sidecar repairs (section 10). Raises ``Rejected`` with the first violated rule of section 6.
    """
    if canonical_len != plan.expected_token_length:
        expected = f"{canonical_len}, the length of the row"
        detail = fault("expected_token_length", plan.expected_token_length, expected)
        raise Rejected(Code.CANONICAL_LENGTH_MISMATCH, detail)
    row: list[TokenRoutes | None] = []
    for span in plan.spans:
        use = fragment_use(span.carry_len, span.generation_len, span.staged_route_len)
        position = len(row)
        row += [None] * use.unrouted
        if not use.rows:
            continue
        fragment = fragments.get(span.staging_key)
        if fragment is None:
            raise Rejected(Code.MISSING_FRAGMENT, missing_fragment(span))
        check_integrity(fragment, span)
        dims = check_shape(fragment.routes, span, dims)
        check_sidecar(fragment, span, dims)
        check_ids(fragment.routes, span.staging_key, num_experts, allow_repeated_experts)
        if fragment.boundary is not None:
            check_ids(fragment.boundary, span.staging_key, num_experts, allow_repeated_experts)
        row += token_routes(fragment.routes)[use.first : use.first + use.rows]
        if fragment.boundary is not None and repairs(span):
            write_sidecar(row, position, fragment.boundary)
    if plan.spans and len(row) != canonical_len:
        raise Rejected(Code.ASSEMBLED_LENGTH_MISMATCH, fault("tokens of all spans", len(row), str(canonical_len)))
    row += [None] * (canonical_len - len(row))
    if route_boundary == UNREPAIRED_SENTINEL:
        for position in unrepaired_positions(plan):
            row[position] = None
    if dims is None:
        raise ValueError("(L, K) is unknown, and no fragment says it")
    layers, experts = dims
    unrouted = (ROUTE_SENTINEL,) * (layers * experts)
    ids = [expert for token in row for expert in (unrouted if token is None else token)]
    return Tensor.of(PUBLISHED_DTYPE, ids, (canonical_len, layers, experts))


def write_sidecar(row: list[TokenRoutes | None], position: int, sidecar: Tensor) -> None:
    """Put a sidecar in the place of the route before ``position``, an all-sentinel one too (section 10)."""
    row[position - 1] = token_routes(sidecar)[0]


def missing_fragment(span: RouteSpan) -> str:
    """Return the text of an error: the plan needs a fragment that is not there."""
    return f"{span.staging_key}: {fault(ROUTED_EXPERTS, None, f'{span.staged_route_len} routes')}"


def all_sentinel(length: int, dims: Dims) -> Tensor:
    """Return the routes of ``length`` tokens for which nothing was captured."""
    layers, experts = dims
    return Tensor.of(PUBLISHED_DTYPE, [ROUTE_SENTINEL] * (length * layers * experts), (length, layers, experts))


def token_routes(routes: Tensor) -> list[TokenRoutes]:
    """Return, token by token, the ids of all its layers."""
    return routes.rows(routes.shape[1] * routes.shape[2])


# ── integrity ───────────────────────────────────────────────────────────────────────────────────────────────────────


def check_integrity(fragment: RouteFragment, span: RouteSpan) -> None:
    """Check that the fragment is what the call's extras held when its digest was made.

    Neither the staged length nor the encoding is covered by a digest. A wrong encoding rebuilds other extras, and a
    wrong length is caught by the shape.
    """
    with refusing(Code.FRAGMENT_INTEGRITY, where=span.staging_key):
        check_announced(fragment)
        committed_extras(span.extras_digest, fragment.extras_metadata_json, fragment)


# ── shape and ids ───────────────────────────────────────────────────────────────────────────────────────────────────


def check_shape(routes: Tensor, span: RouteSpan, dims: Dims | None) -> Dims:
    """Check for rank 3, as many tokens as the plan says, and the model's (L, K), which is returned."""
    where = span.staging_key
    if len(routes.shape) != ROUTE_RANK:
        raise Rejected(Code.FRAGMENT_RANK, f"{where}: {fault('shape', routes.shape, '[tokens, layers, experts]')}")
    tokens, layers, experts = routes.shape
    if tokens != span.staged_route_len:
        expected = f"{span.staged_route_len}, as planned"
        raise Rejected(Code.FRAGMENT_LENGTH, f"{where}: {fault('routes', tokens, expected)}")
    if dims is not None and (layers, experts) != dims:
        raise Rejected(Code.FRAGMENT_MODEL_SHAPE, f"{where}: {fault('(L, K)', (layers, experts), show(dims))}")
    return layers, experts


def check_ids(routes: Tensor, key: str, num_experts: int | None, allow_repeated_experts: bool) -> None:
    """Check every id of routes, also of rows that a tail drops (decisions D7, D8 and D20).

    The three rules are checked one after the other, each over all of the routes.
    """
    limit = INT16_MAX + 1 if num_experts is None else min(num_experts, INT16_MAX + 1)
    expected, vectors = f"-1, or an id below {limit}", routes.rows(routes.shape[2])
    with refusing(Code.FRAGMENT_VALUE_RANGE, where=key):
        for expert in routes.values():
            expect(expert == ROUTE_SENTINEL or 0 <= expert < limit, "expert id", expert, expected)
    with refusing(Code.FRAGMENT_PARTIAL_SENTINEL, where=key):
        for vector in vectors:
            whole = ROUTE_SENTINEL not in vector or set(vector) == {ROUTE_SENTINEL}
            expect(whole, "experts of a layer", vector, "only -1, or none")
    with refusing(Code.FRAGMENT_DUPLICATE_EXPERT, where=key):
        for vector in () if allow_repeated_experts else vectors:
            distinct = ROUTE_SENTINEL in vector or len(set(vector)) == len(vector)
            expect(distinct, "experts of a layer", vector, "distinct ids")
