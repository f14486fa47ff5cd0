"""The policy's side of deferred router replay (section 6): published plans in, one route tensor per batch out.

By the time a plan is executed its row is part of a batch, so nothing that a plan or a staged row holds may stop it: a
row whose routes cannot be assembled is all sentinel, replay uses the model's own router for it, and the reason is
counted here, where the training loop can read it. Only an error of the data plane itself propagates.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import torch
from attrs import frozen

from rollproof.impl.assembly import Dims, RouteFragment, execute
from rollproof.impl.columns import column_rows, read_bytes, read_scalars
from rollproof.impl.plan import decode_plan, use_of
from rollproof.impl.staging import StagingSource
from rollproof.spec.constants import ROUTE_SENTINEL, ROUTED_EXPERTS
from rollproof.spec.records import RouteAssemblyPlan
from rollproof.spec.rejections import Rejected

_COLUMNS: Final = (ROUTED_EXPERTS, "routed_experts_encoding", "extras_metadata_json")


@frozen(eq=False)
class ReplayedBatch:
    """The routes of N published rows, and per row the code of section 6 that made it all sentinel, or None."""

    routes: torch.Tensor
    failures: list[str | None]


class RoutePlanExecutor:
    """Assembles routes from published plans and staged fragments.

    ``dp_client`` is a data plane or a handle to one, ``dims`` the model's own (layers, top-k), which is authoritative.
    ``failures`` counts, per code, the rows that became sentinel since this executor was made.
    """

    def __init__(
        self,
        dp_client: Any,
        *,
        dims: Dims,
        num_experts: int | None = None,
        allow_repeated_experts: bool = False,
    ) -> None:
        self._dp_client = dp_client
        self._dims = dims
        self._num_experts = num_experts
        self._allow_repeated_experts = allow_repeated_experts
        self.failures: Counter[str] = Counter()

    def replay(
        self,
        published: Sequence[Any],
        lengths: Sequence[int],
        *,
        padded_length: int | None = None,
        device: torch.device | None = None,
    ) -> ReplayedBatch:
        """The routes of a batch: int16 ``[N, padded_length, L, K]``, or jagged ``[N, j, L, K]`` where that is None.

        ``published`` holds the rows' ``route_assembly_plan`` tags and ``lengths`` their numbers of tokens. Padding is
        sentinel. All fragments of a partition come from one read, unless a row of it is missing or unreadable.
        ``ValueError`` if the two arguments differ in length, or a row is longer than ``padded_length``.
        """
        if len(published) != len(lengths):
            raise ValueError(f"{len(published)} plans for {len(lengths)} rows")
        if padded_length is not None and max(lengths, default=0) > padded_length:
            raise ValueError(f"a row of {max(lengths)} tokens does not fit into {padded_length}")
        plans = [_decoded(value) for value in published]
        fragments = self._fetch([plan for plan in plans if isinstance(plan, RouteAssemblyPlan)])
        if padded_length is None:
            offsets = torch.zeros(len(lengths) + 1, dtype=torch.int64)
            torch.cumsum(torch.tensor(lengths, dtype=torch.int64), 0, out=offsets[1:])
            values = torch.empty((sum(lengths), *self._dims), dtype=torch.int16, device=device)
            rows = [values[start : start + length] for start, length in zip(offsets.tolist(), lengths, strict=False)]
            routes = torch.nested.nested_tensor_from_jagged(values, offsets.to(values.device))
        else:
            shape = (len(lengths), padded_length, *self._dims)
            routes = torch.empty(shape, dtype=torch.int16, device=device)
            rows = [routes[index, :length] for index, length in enumerate(lengths)]
            for index, length in enumerate(lengths):
                routes[index, length:].fill_(ROUTE_SENTINEL)
        failures = [self._assemble(plan, fragments, row) for plan, row in zip(plans, rows, strict=True)]
        self.failures.update(code for code in failures if code is not None)
        return ReplayedBatch(routes, failures)

    def _assemble(
        self,
        plan: RouteAssemblyPlan | Rejected,
        fragments: dict[str, dict[str, RouteFragment]],
        row: torch.Tensor,
    ) -> str | None:
        """Fill one row; the code of what went wrong, if something did."""
        try:
            if isinstance(plan, Rejected):
                raise plan
            execute(
                plan,
                fragments.get(plan.staging_partition, {}),
                self._dims,
                len(row),
                num_experts=self._num_experts,
                allow_repeated_experts=self._allow_repeated_experts,
                out=row,
            )
        except Rejected as rejected:
            row.fill_(ROUTE_SENTINEL)
            return rejected.code.code
        return None

    def _fetch(self, plans: Sequence[RouteAssemblyPlan]) -> dict[str, dict[str, RouteFragment]]:
        """The fragments that valid plans use, by partition and key; those that are not there are left out."""
        wanted: dict[str, dict[str, None]] = {}
        for plan in plans:
            used = [span.staging_key for span in plan.spans if use_of(span).rows]
            wanted.setdefault(plan.staging_partition, {}).update(dict.fromkeys(used))
        return {
            partition: _read(StagingSource(self._dp_client, partition), list(keys))
            for partition, keys in wanted.items()
        }


def _decoded(published: Any) -> RouteAssemblyPlan | Rejected:
    try:
        return decode_plan(published)
    except Rejected as rejected:
        return rejected


def _read(source: StagingSource, keys: list[str]) -> dict[str, RouteFragment]:
    """The fragments of these rows.

    A batch with a missing or unreadable row is read again in halves, so that only that row is lost. Other errors of the
    data plane propagate.
    """
    if not keys:
        return {}
    try:
        answer = source.read(keys, _COLUMNS)
        column = answer.get(ROUTED_EXPERTS, None)
        if column is None:
            raise ValueError("the plane says that some row has no routes")
        encodings = read_scalars(answer, "routed_experts_encoding", torch.int64).tolist()
        parts = zip(column_rows(column), encodings, read_bytes(answer, "extras_metadata_json"), strict=True)
        return {key: RouteFragment(*part) for key, part in zip(keys, parts, strict=True)}
    except (Rejected, ValueError):
        pass
    if len(keys) == 1:
        return {}
    half = len(keys) // 2
    return _read(source, keys[:half]) | _read(source, keys[half:])
