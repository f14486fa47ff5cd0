"""Route boundaries: the one token of a call whose route the call itself cannot know (section 10).

An engine never runs a call's last sampled token through the model, so there is no route for it in the call's fragment.
Workers stage a placeholder there, the experts 0, 1, …, K-1, and every check of a fragment accepts it. The next call's
prefill computes that route, and its worker hands it on as a *sidecar* in the child's extras. The parent's staged
fragment never changes; the row does, where the plan says so.

    parent   p p p g g g          routes of p p p g g, then the placeholder
    child            ^ c c g g    its sidecar is the route of the token under ^, at position prev_len - 1

In extras a sidecar is two fields: ``routed_experts_boundary``, an envelope of shape 1 x L x K, and
``routed_experts_boundary_index``, the position. When the call is staged, the envelope moves into a column of its own,
``[1, 1, L, K]`` in the envelope's dtype, and the index stays in the extras' metadata. The digest of the extras covers
both, and only the calls of the selected chain repair: the sidecar of a retried sibling is not read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rollproof.spec.constants import (
    BOUNDARY_REQUIRED,
    ROUTE_BOUNDARY,
    ROUTE_BOUNDARY_FIELDS,
    ROUTE_BOUNDARY_INDEX,
    ROUTE_SENTINEL,
    ROUTED_EXPERTS,
)
from rollproof.spec.envelope import INT16_MAX, ROUTE_RANK, decode_routes
from rollproof.spec.extras import METADATA, RouteFragment, read_metadata
from rollproof.spec.outcomes import Dims
from rollproof.spec.plan import SpanMode, span_mode
from rollproof.spec.records import ReassemblerConfig, RouteAssemblyPlan, RouteSpan
from rollproof.spec.rejections import Code, Rejected
from rollproof.spec.staged import StagedRow
from rollproof.spec.tensor import Tensor
from rollproof.spec.values import expect, fault, is_length

ENGINE_DTYPES: Final = ("uint8", "int8", "int16", "int32", "int64")
"""The dtypes in which engines answer routes."""
FOREIGN_FIELDS: Final = tuple(field for field in ROUTE_BOUNDARY_FIELDS if field != ROUTE_BOUNDARY_INDEX)
"""Names that staged metadata must not hold: other spellings of a boundary, and an envelope outside its column."""

# ── one call ────────────────────────────────────────────────────────────────────────────────────────────────────────


def staged_boundary(extras: Mapping[str, Any] | None, prev_len: int) -> Tensor | None:
    """Return the column ``[1, 1, L, K]`` of the sidecar in a call's extras; None where they do not have both fields.

    With one of the fields alone nothing is moved, and the call is refused when its rollout is finalized. Raises
    ``Rejected`` for a sidecar that is malformed, is not of one token, or of another token than the last before the
    call, or comes without routes of the call's own.
    """
    if extras is None or ROUTE_BOUNDARY not in extras or ROUTE_BOUNDARY_INDEX not in extras:
        return None
    payload, index = extras[ROUTE_BOUNDARY], extras[ROUTE_BOUNDARY_INDEX]
    if type(payload) is not str:
        raise Rejected(Code.INVALID_ROUTE_ENVELOPE, fault(ROUTE_BOUNDARY, payload, "an envelope"))
    sidecar = decode_routes(payload)
    if sidecar.shape[0] != 1:
        raise Rejected(Code.FRAGMENT_BOUNDARY, fault(ROUTE_BOUNDARY, sidecar.shape, "the route of one token"))
    if prev_len == 0 or type(index) is not int or index != prev_len - 1:
        expected = f"{prev_len - 1}, the last token before the call" if prev_len else "no boundary before a first call"
        raise Rejected(Code.FRAGMENT_BOUNDARY, fault(ROUTE_BOUNDARY_INDEX, index, expected))
    if ROUTED_EXPERTS not in extras:
        raise Rejected(Code.FRAGMENT_BOUNDARY, fault(ROUTED_EXPERTS, None, "routes beside a sidecar"))
    return Tensor(sidecar.dtype, (1, *sidecar.shape), sidecar.data)


def unsupported_field(metadata: bytes) -> str | None:
    """Return the first field by which staged extras announce a boundary in a way that is not supported, or None.

    Those are the other spellings, and an index that is not a position. Unreadable extras announce none; they fail as
    ``fragment_integrity``.
    """
    extras = readable(metadata)
    if ROUTE_BOUNDARY_INDEX in extras and not is_length(extras[ROUTE_BOUNDARY_INDEX]):
        return ROUTE_BOUNDARY_INDEX
    return next((field for field in FOREIGN_FIELDS if field in extras), None)


def boundary_indices(config: ReassemblerConfig, chain: Sequence[StagedRow]) -> list[int | None]:
    """Return per call of a chain where the token is that its sidecar is about (section 10), None without a sidecar.

    Where boundaries are not repaired, no call may announce one. Raises ``Rejected``; each check covers the whole chain.
    """
    repaired = config.route_boundary is not None
    for staged in chain:
        field = (
            unsupported_field(staged.extras_metadata_json) if repaired else announced_field(staged.extras_metadata_json)
        )
        if field is not None:
            expected = "a boundary of section 10" if repaired else "no route boundary"
            detail = fault("extras", field, expected)
            raise Rejected(Code.UNSUPPORTED_ROUTE_BOUNDARY, detail, subject=staged.call.model_call_id)
    indices = [boundary_index(staged.extras_metadata_json) if repaired else None for staged in chain]
    if config.route_boundary == BOUNDARY_REQUIRED:
        for parent, child, index in zip(chain, chain[1:], indices[1:], strict=False):
            if parent.routed_len and index is None:
                detail = fault(ROUTE_BOUNDARY, None, "the route of its parent's last token")
                raise Rejected(Code.MISSING_ROUTE_BOUNDARY, detail, subject=child.call.model_call_id)
    return indices


def announced_field(metadata: bytes) -> str | None:
    """Return the first field by which staged extras announce a boundary route (decision D21), or None."""
    return next((field for field in ROUTE_BOUNDARY_FIELDS if field in readable(metadata)), None)


def boundary_index(metadata: bytes) -> int | None:
    """Return the index in staged extras; None where they have none, or cannot be read."""
    index: int | None = readable(metadata).get(ROUTE_BOUNDARY_INDEX)
    return index


def readable(metadata: bytes) -> dict[str, Any]:
    """Return staged extras, empty where they cannot be read."""
    try:
        return read_metadata(metadata) or {}
    except ValueError:
        return {}


# ── one row ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def check_announced(fragment: RouteFragment) -> None:
    """Check that a fragment has a sidecar iff its extras have an index. Raises ``ValueError``.

    The index alone would say nothing about which route was committed to, and a sidecar without one is of no token.
    """
    extras = read_metadata(fragment.extras_metadata_json) or {}
    expect(ROUTE_BOUNDARY not in extras, METADATA, ROUTE_BOUNDARY, "a sidecar in its own column only")
    announced, staged = ROUTE_BOUNDARY_INDEX in extras, fragment.boundary is not None
    expect(announced == staged, ROUTE_BOUNDARY_INDEX, extras.get(ROUTE_BOUNDARY_INDEX), "an index iff a sidecar")


def check_sidecar(fragment: RouteFragment, span: RouteSpan, dims: Dims) -> None:
    """Check that a fragment's sidecar is of the token that the plan says, and the route of one token of the model."""
    where, index = span.staging_key, boundary_index(fragment.extras_metadata_json)
    if (type(index), index) != (type(span.boundary_token_index), span.boundary_token_index):
        expected = f"{span.boundary_token_index}, as planned"
        raise Rejected(Code.FRAGMENT_BOUNDARY, f"{where}: {fault(ROUTE_BOUNDARY_INDEX, index, expected)}")
    if fragment.boundary is not None and fragment.boundary.shape != (1, *dims):
        expected = fault(ROUTE_BOUNDARY, fragment.boundary.shape, f"[1, {dims[0]}, {dims[1]}]")
        raise Rejected(Code.FRAGMENT_BOUNDARY, f"{where}: {expected}")


def sidecar_keys(plan: RouteAssemblyPlan) -> list[str]:
    """Return the staged rows whose sidecar executing a plan needs, root first."""
    used = (span for span in plan.spans if span_mode(span) is not SpanMode.SENTINEL)
    return [span.staging_key for span in used if span.boundary_token_index is not None]


def repairs(span: RouteSpan) -> bool:
    """Return whether a span's sidecar takes its place in the row: a span that uses no routes is not read at all."""
    return span.repair_previous_token and span_mode(span) is not SpanMode.SENTINEL


def unrepaired_positions(plan: RouteAssemblyPlan) -> tuple[int, ...]:
    """Return where a row has a route that may be a placeholder (decision D28).

    That is the last generated token of every span that uses its routes, where the next span does not repair it. The
    row's last token is always among them: nothing follows that could have computed its route.
    """
    found: list[int] = []
    end = 0
    following: Sequence[RouteSpan | None] = (*plan.spans[1:], None)
    for span, after in zip(plan.spans, following, strict=False):
        end += span.carry_len + span.generation_len
        routed = span.generation_len > 0 and span_mode(span) is not SpanMode.SENTINEL
        if routed and (after is None or not repairs(after)):
            found.append(end - 1)
    return tuple(found)


# ── the worker's side ───────────────────────────────────────────────────────────────────────────────────────────────


def align_engine_rows(rows: Tensor, start: int, tokens: int, num_experts: int | None = None) -> Tensor:
    """Return the int16 routes ``[tokens, L, K]`` of a call whose engine answered ``rows``, from position ``start`` on.

    ``tokens`` counts prompt and generation. An engine has rows up to the last token but one; some have one more, a
    surplus row for a token that never went through the model, which is not taken. An engine that left a cached prefix
    out begins later. So the rows say where they end, and never where they begin: aligned by their number alone, those
    of an engine with a cache would be routes of other tokens. What has no row is sentinel.

    Every id of every tensor is compared with ``num_experts``: a wrong dtype shows on some tensors only. Raises
    ``Rejected``: ``misaligned_engine_routes`` (decision D29), or ``fragment_value_range``.
    """
    if len(rows.shape) != ROUTE_RANK or rows.dtype not in ENGINE_DTYPES or 0 in rows.shape[1:]:
        what = (rows.dtype, *rows.shape)
        raise Rejected(Code.MISALIGNED_ENGINE_ROUTES, fault("rows", what, "integers [rows, layers, experts]"))
    if not is_length(tokens) or tokens == 0:
        raise Rejected(Code.MISALIGNED_ENGINE_ROUTES, fault("tokens", tokens, "a length > 0"))
    if not is_length(start) or start + rows.shape[0] not in (tokens - 1, tokens):
        expected = f"one that ends {rows.shape[0]} rows at token {tokens - 1} or {tokens}"
        raise Rejected(Code.MISALIGNED_ENGINE_ROUTES, fault("start", start, expected))
    limit = INT16_MAX + 1 if num_experts is None else min(num_experts, INT16_MAX + 1)
    for expert in rows.values():
        if expert != ROUTE_SENTINEL and not 0 <= expert < limit:
            raise Rejected(Code.FRAGMENT_VALUE_RANGE, fault("expert id", expert, f"-1, or an id below {limit}"))
    _, layers, experts = rows.shape
    width = layers * experts
    taken = rows.values()[: max(0, tokens - 1 - start) * width]
    before, after = [ROUTE_SENTINEL] * (start * width), [ROUTE_SENTINEL] * width
    ids = [*before, *taken, *after][: tokens * width]
    return Tensor.of("int16", ids, (tokens, layers, experts))
