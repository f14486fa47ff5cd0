"""Route boundaries (section 10): sidecars as they are staged, the tokens that they repair, and an engine's rows.

A call's last sampled token has no route of its own, so workers stage a placeholder. The next call computes the route
and hands it on; the plan says where it goes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch

from rollproof.impl.checks import fault, is_length
from rollproof.impl.envelope import decode_routes
from rollproof.impl.plan import RouteAssemblyPlan, RouteSpan, use_of
from rollproof.spec.constants import (
    ROUTE_BOUNDARY,
    ROUTE_BOUNDARY_FIELDS,
    ROUTE_BOUNDARY_INDEX,
    ROUTE_SENTINEL,
    ROUTED_EXPERTS,
)
from rollproof.spec.rejections import Code, Rejected

ENGINE_DTYPES: Final = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_MOST_EXPERTS: Final = 2**15


# ── one call ────────────────────────────────────────────────────────────────────────────────────────────────────────


def boundary_column(extras: Mapping[str, Any] | None, prev_len: int) -> torch.Tensor | None:
    """Return the column ``[1, 1, L, K]`` of the sidecar in a call's extras; None where they lack one of its fields.

    Raises ``ValueError`` for a sidecar that cannot be staged.
    """
    if extras is None or not {ROUTE_BOUNDARY, ROUTE_BOUNDARY_INDEX} <= extras.keys():
        return None
    payload, index = extras[ROUTE_BOUNDARY], extras[ROUTE_BOUNDARY_INDEX]
    if type(payload) is not str:
        raise ValueError(fault(ROUTE_BOUNDARY, payload, "an envelope"))
    try:
        sidecar = decode_routes(payload)
    except Rejected as rejected:
        raise ValueError(rejected.reason) from None
    if len(sidecar) != 1:
        raise ValueError(fault(ROUTE_BOUNDARY, tuple(sidecar.shape), "the route of one token"))
    if not prev_len or type(index) is not int or index != prev_len - 1:
        expected = f"{prev_len - 1}, the last token before the call" if prev_len else "no boundary before a first call"
        raise ValueError(fault(ROUTE_BOUNDARY_INDEX, index, expected))
    if ROUTED_EXPERTS not in extras:
        raise ValueError(fault(ROUTED_EXPERTS, None, "routes beside a sidecar"))
    return sidecar[None]


def unsupported_field(extras: Mapping[str, Any], *, repaired: bool) -> str | None:
    """Return the first field by which staged extras announce a boundary that is not supported, or None.

    Where boundaries are ``repaired``, that is any but an index that is a position.
    """
    if repaired and is_length(extras.get(ROUTE_BOUNDARY_INDEX)):
        extras = {name: value for name, value in extras.items() if name != ROUTE_BOUNDARY_INDEX}
    return next((field for field in ROUTE_BOUNDARY_FIELDS if field in extras), None)


# ── one plan ────────────────────────────────────────────────────────────────────────────────────────────────────────


def repairs(span: RouteSpan) -> bool:
    """Return whether a valid span's sidecar takes its place in the row."""
    return span.repair_previous_token and use_of(span).rows > 0


def sidecar_keys(plan: RouteAssemblyPlan) -> list[str]:
    """Return the staged rows whose sidecar executing a valid plan needs, root first."""
    spans = (span for span in plan.spans if span.boundary_token_index is not None)
    return [span.staging_key for span in spans if use_of(span).rows]


def repaired_positions(plan: RouteAssemblyPlan) -> Iterator[tuple[int, str]]:
    """Yield where a valid plan writes a sidecar into the row, and whose it is."""
    start = 0
    for span in plan.spans:
        if repairs(span):
            yield start - 1, span.staging_key
        start += span.carry_len + span.generation_len


def unrepaired_positions(plan: RouteAssemblyPlan) -> list[int]:
    """Return the last generated token of every span that uses its routes, unless the next span repairs it (D28)."""
    repaired = {position for position, _ in repaired_positions(plan)}
    found, end = [], 0
    for span in plan.spans:
        end += span.carry_len + span.generation_len
        if span.generation_len and use_of(span).rows and end - 1 not in repaired:
            found.append(end - 1)
    return found


# ── the worker's side ───────────────────────────────────────────────────────────────────────────────────────────────


def align_engine_rows(rows: torch.Tensor, start: int, tokens: int, num_experts: int | None = None) -> torch.Tensor:
    """Return a call's int16 routes ``[tokens, L, K]`` from the rows that an engine answered, on their device.

    ``rows`` ``[n, L, K]`` are of the positions from ``start`` on; they must end at the last token but one, or with one
    surplus row at the last, which is not taken. Everything without a row is sentinel. ``tokens`` counts prompt and
    generation. Every id is compared with ``num_experts``. Raises ``Rejected``: ``misaligned_engine_routes`` (D29), or
    ``fragment_value_range``.
    """
    if rows.dim() != 3 or rows.dtype not in ENGINE_DTYPES or 0 in rows.shape[1:]:
        found = (str(rows.dtype).removeprefix("torch."), *rows.shape)
        raise Rejected(Code.MISALIGNED_ENGINE_ROUTES, fault("rows", found, "integers [rows, layers, experts]"))
    if not is_length(tokens) or not tokens:
        raise Rejected(Code.MISALIGNED_ENGINE_ROUTES, fault("tokens", tokens, "a length > 0"))
    if not is_length(start) or start + len(rows) not in (tokens - 1, tokens):
        expected = f"one that ends {len(rows)} rows at token {tokens - 1} or {tokens}"
        raise Rejected(Code.MISALIGNED_ENGINE_ROUTES, fault("start", start, expected))
    limit = _MOST_EXPERTS if num_experts is None else min(num_experts, _MOST_EXPERTS)
    wide = rows if rows.dtype is not torch.uint8 else rows.to(torch.int16)
    wrong = (wide < ROUTE_SENTINEL) | (wide >= limit) if limit <= torch.iinfo(wide.dtype).max else wide < ROUTE_SENTINEL
    if wrong.any():
        first = int(wide[wrong][0])
        raise Rejected(Code.FRAGMENT_VALUE_RANGE, fault("expert id", first, f"-1, or an id below {limit}"))
    routes = torch.full((tokens, *rows.shape[1:]), ROUTE_SENTINEL, dtype=torch.int16, device=rows.device)
    routes[start : tokens - 1] = wide[: max(0, tokens - 1 - start)].to(torch.int16)
    return routes
