"""Executing a route plan: from staged fragments to one route tensor per row (section 6).

Both modes run this: direct mode before publication, deferred mode on the policy's side. A fragment is trusted only
once the extras rebuilt around it digest to the commitment that the receipt's digests cover; ids are then checked one by
one and never narrowed. Where nothing was captured the result is the sentinel, and never a route of another token.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias

from attrs import frozen

from rollproof.spec.constants import (
    ROUTE_ENCODING_ENVELOPE,
    ROUTE_ENCODING_LIST,
    ROUTE_SENTINEL,
    ROUTED_EXPERTS,
)
from rollproof.spec.digest import extras_digest
from rollproof.spec.envelope import INT16_MAX, LIST_DTYPE, ROUTE_RANK, encode_routes, nested_lists
from rollproof.spec.outcomes import Dims
from rollproof.spec.plan import SpanMode, sentinel_and_used, span_mode
from rollproof.spec.records import RouteAssemblyPlan, RouteSpan
from rollproof.spec.rejections import Code, Rejected
from rollproof.spec.tensor import Tensor

PUBLISHED_DTYPE: Final = "int16"

TokenRoutes: TypeAlias = tuple[Any, ...]
"""One token's expert ids, layer by layer: ``L * K`` ints."""


@frozen
class RouteFragment:
    """One call's routes as staged: ``[T, L, K]``, how they were encoded, and the rest of the call's extras."""

    routes: Tensor
    encoding: int
    extras_metadata_json: bytes


def execute(
    plan: RouteAssemblyPlan,
    fragments: Mapping[str, RouteFragment],
    dims: Dims | None,
    canonical_len: int,
    *,
    num_experts: int | None = None,
    allow_repeated_experts: bool = False,
) -> Tensor:
    """The int16 routes ``[canonical_len, L, K]`` of a row, from a valid plan and its fragments by staging key.

    ``dims`` is (L, K); where nobody knows it yet, the first fragment that the plan uses says it, and there must be
    one. Fragments that no span names are ignored. Raises ``Rejected`` with the first violated rule of section 6.
    """
    if canonical_len != plan.expected_token_length:
        raise Rejected(
            Code.CANONICAL_LENGTH_MISMATCH, f"a row of {canonical_len} tokens, a plan of {plan.expected_token_length}"
        )
    row: list[TokenRoutes | None] = []
    for span in plan.spans:
        leading, first, used = sentinel_and_used(span.carry_len, span.generation_len, span.staged_route_len)
        row += [None] * leading
        if span_mode(span) is SpanMode.SENTINEL:
            continue
        fragment = fragments.get(span.staging_key)
        if fragment is None:
            raise Rejected(Code.MISSING_FRAGMENT, span.staging_key)
        check_integrity(fragment, span.staging_key, span.extras_digest)
        dims = check_shape(fragment.routes, span, dims)
        check_ids(fragment.routes, span.staging_key, num_experts, allow_repeated_experts)
        row += list(token_routes(fragment.routes))[first : first + used]
    if plan.spans and len(row) != canonical_len:
        raise Rejected(Code.ASSEMBLED_LENGTH_MISMATCH, f"{len(row)} tokens for a row of {canonical_len}")
    row += [None] * (canonical_len - len(row))
    if dims is None:
        raise ValueError("(L, K) is unknown, and no fragment says it")
    layers, experts = dims
    unrouted = (ROUTE_SENTINEL,) * (layers * experts)
    ids = [expert for token in row for expert in (unrouted if token is None else token)]
    return Tensor.of(PUBLISHED_DTYPE, ids, (canonical_len, layers, experts))


def all_sentinel(length: int, dims: Dims) -> Tensor:
    """The routes of ``length`` tokens for which nothing was captured."""
    layers, experts = dims
    return Tensor.of(PUBLISHED_DTYPE, [ROUTE_SENTINEL] * (length * layers * experts), (length, layers, experts))


def token_routes(routes: Tensor) -> Iterator[TokenRoutes]:
    """Token by token, the ids of all its layers."""
    ids, width = routes.values(), routes.shape[1] * routes.shape[2]
    return (ids[start : start + width] for start in range(0, len(ids), width))


def vectors(routes: Tensor) -> Iterator[TokenRoutes]:
    """Token by token and layer by layer, the ``K`` ids that the router chose."""
    ids, width = routes.values(), routes.shape[2]
    return (ids[start : start + width] for start in range(0, len(ids), width))


# ── integrity ───────────────────────────────────────────────────────────────────────────────────────────────────────


def check_integrity(fragment: RouteFragment, key: str, commitment: str) -> None:
    """The fragment is what the call's extras held when its digest was made.

    Neither the staged length nor the encoding is covered by a digest. A wrong encoding rebuilds other extras, and a
    wrong length is caught by the shape.
    """
    try:
        actual = extras_digest(extras_around(fragment))
    except (ValueError, Rejected) as error:
        raise Rejected(Code.FRAGMENT_INTEGRITY, f"{key}: {error}") from None
    if actual != commitment:
        raise Rejected(Code.FRAGMENT_INTEGRITY, f"{key}: extras digest to {actual}, committed was {commitment}")


def extras_around(fragment: RouteFragment) -> dict[str, Any]:
    """The call's extras with its routes put back; ``ValueError`` or ``Rejected`` where there are none."""
    extras = read_metadata(fragment.extras_metadata_json) or {}
    if fragment.encoding == ROUTE_ENCODING_ENVELOPE:
        return {**extras, ROUTED_EXPERTS: encode_routes(fragment.routes)}
    if fragment.encoding == ROUTE_ENCODING_LIST and fragment.routes.dtype == LIST_DTYPE:
        return {**extras, ROUTED_EXPERTS: nested_lists(fragment.routes)}
    raise ValueError(f"encoding {fragment.encoding} of {fragment.routes.dtype} routes")


def read_metadata(data: bytes) -> dict[str, Any] | None:
    """A call's extras without its routes: a JSON object, or null. ``ValueError`` for anything else.

    A name that occurs twice has no one value, and routes belong into their own column: with a copy of them here, a
    forged ``routed_len`` of 0 would agree with the commitment and still lose them.
    """
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=distinct_names)
    except RecursionError:
        raise ValueError("extras metadata is nested too deep") from None
    if value is not None and type(value) is not dict:
        raise ValueError(f"extras metadata is a {type(value).__name__}, expected an object or null")
    if value is not None and ROUTED_EXPERTS in value:
        raise ValueError(f"extras metadata holds {ROUTED_EXPERTS}")
    return value


def distinct_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object whose names are distinct."""
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("extras metadata repeats a name")
    return result


# ── shape and ids ───────────────────────────────────────────────────────────────────────────────────────────────────


def check_shape(routes: Tensor, span: RouteSpan, dims: Dims | None) -> Dims:
    """Rank 3, as many tokens as the plan says, and the model's (L, K), which is the answer."""
    where = span.staging_key
    if len(routes.shape) != ROUTE_RANK:
        raise Rejected(Code.FRAGMENT_RANK, f"{where}: shape {list(routes.shape)}")
    tokens, layers, experts = routes.shape
    if tokens != span.staged_route_len:
        raise Rejected(Code.FRAGMENT_LENGTH, f"{where}: {tokens} tokens, the plan says {span.staged_route_len}")
    if dims is not None and (layers, experts) != dims:
        raise Rejected(Code.FRAGMENT_MODEL_SHAPE, f"{where}: (L, K) is {(layers, experts)}, expected {dims}")
    return layers, experts


def check_ids(routes: Tensor, key: str, num_experts: int | None, allow_repeated_experts: bool) -> None:
    """Every id of the fragment, also of rows that a tail drops (decisions D7, D8 and D20).

    The three rules one after the other, each over the whole fragment.
    """
    limit = INT16_MAX + 1 if num_experts is None else min(num_experts, INT16_MAX + 1)
    for expert in routes.values():
        if expert != ROUTE_SENTINEL and not 0 <= expert < limit:
            raise Rejected(Code.FRAGMENT_VALUE_RANGE, f"{key}: expert {expert}, expected -1 or less than {limit}")
    for vector in vectors(routes):
        if ROUTE_SENTINEL in vector and set(vector) != {ROUTE_SENTINEL}:
            raise Rejected(Code.FRAGMENT_PARTIAL_SENTINEL, f"{key}: {vector}")
    if allow_repeated_experts:
        return
    for vector in vectors(routes):
        if ROUTE_SENTINEL not in vector and len(set(vector)) != len(vector):
            raise Rejected(Code.FRAGMENT_DUPLICATE_EXPERT, f"{key}: {vector}")
