"""The policy's side of deferred router replay (section 6): published plans in, one route tensor per batch out.

By the time a plan is executed its row is part of a batch, so nothing that a plan or a staged row holds may stop it: a
row whose routes cannot be assembled is all sentinel, replay uses the model's own router for it, and the reason is
counted here, where the training loop can read it. Only an error of the data plane itself propagates.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import torch
from attrs import evolve, frozen

from rollproof.impl.arguments import as_choice, as_dims, as_flag, as_optional_count, as_plane
from rollproof.impl.assembly import Dims, RouteFragment, execute
from rollproof.impl.checks import fault
from rollproof.impl.columns import Answer, column_rows, read_bytes, read_scalars
from rollproof.impl.plan import RouteAssemblyPlan, decode_plan, use_of
from rollproof.impl.route_boundary import sidecar_keys
from rollproof.impl.staging import StagingSource
from rollproof.spec.constants import AS_STAGED, ROUTE_BOUNDARY, ROUTE_BOUNDARY_CHOICES, ROUTE_SENTINEL, ROUTED_EXPERTS
from rollproof.spec.rejections import Code, Rejected

Row = TypeVar("Row", RouteFragment, torch.Tensor)
"""What is read of a staged row: its fragment, or its sidecar."""

_COLUMNS: Final = (ROUTED_EXPERTS, "routed_experts_encoding", "extras_metadata_json")


@frozen(eq=False)
class ReplayedBatch:
    """The routes of N published rows, and per row the code of section 6 that made it all sentinel, or None."""

    routes: torch.Tensor
    failures: list[str | None]


class RoutePlanExecutor:
    """Assembles routes from published plans and staged fragments.

    ``dp_client`` is a data plane or a handle to one, ``dims`` the model's own (layers, top-k), which is authoritative.
    ``route_boundary`` says what becomes of boundary tokens that no sidecar repairs: "sentinel" replays none of them,
    the other choices replay what was staged (D28). ``failures`` counts, per code, the rows that became sentinel since
    this executor was made.
    """

    def __init__(
        self,
        dp_client: Any,
        *,
        dims: Dims,
        num_experts: int | None = None,
        allow_repeated_experts: bool = False,
        route_boundary: str = AS_STAGED,
    ) -> None:
        self._dp_client = as_plane("dp_client", dp_client, ("get_samples",))
        self._dims = as_dims("dims", dims)
        self._num_experts = as_optional_count("num_experts", num_experts)
        self._allow_repeated_experts = as_flag("allow_repeated_experts", allow_repeated_experts)
        self._route_boundary = as_choice("route_boundary", route_boundary, ROUTE_BOUNDARY_CHOICES)
        self.failures: Counter[str] = Counter()

    def replay(
        self,
        published: Sequence[Any],
        lengths: Sequence[int],
        *,
        padded_length: int | None = None,
        device: torch.device | None = None,
    ) -> ReplayedBatch:
        """Return a batch's routes: int16 ``[N, padded_length, L, K]``, or jagged ``[N, j, L, K]`` where that is None.

        ``published`` holds the rows' ``route_assembly_plan`` tags and ``lengths`` their numbers of tokens. Padding is
        sentinel. All fragments of a partition come from one read, unless a row of it is missing or unreadable.
        ``ValueError`` if the two arguments differ in length, or a row is longer than ``padded_length``.
        """
        if len(published) != len(lengths):
            raise ValueError(fault("published", len(published), f"{len(lengths)} plans, one per row"))
        if padded_length is not None and max(lengths, default=0) > padded_length:
            raise ValueError(fault("lengths", max(lengths), f"at most padded_length {padded_length}"))
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
        """Fill one row; return the code of what went wrong, if something did."""
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
                route_boundary=self._route_boundary,
                out=row,
            )
        except Rejected as rejected:
            row.fill_(ROUTE_SENTINEL)
            return rejected.code.code
        return None

    def _fetch(self, plans: Sequence[RouteAssemblyPlan]) -> dict[str, dict[str, RouteFragment]]:
        """Return the fragments that valid plans use, by partition and key; those that are not there are left out.

        Sidecars take one further read, of exactly the rows whose span has one; a fragment without it is not there.
        """
        wanted: dict[str, dict[str, None]] = {}
        with_sidecar: dict[str, dict[str, None]] = {}
        for plan in plans:
            used = [span.staging_key for span in plan.spans if use_of(span).rows]
            wanted.setdefault(plan.staging_partition, {}).update(dict.fromkeys(used))
            with_sidecar.setdefault(plan.staging_partition, {}).update(dict.fromkeys(sidecar_keys(plan)))
        again = any(with_sidecar.values())
        found = self._read_all(wanted, _COLUMNS, _fragments, own=again)
        sidecars = self._read_all(with_sidecar, [ROUTE_BOUNDARY], _sidecars, own=False) if again else {}
        for partition, rows in sidecars.items():
            fragments = found[partition]
            for key in with_sidecar[partition]:
                fragment, row = fragments.pop(key, None), rows.get(key)
                if fragment is not None and row is not None:
                    fragments[key] = evolve(fragment, boundary=row)
        return found

    def _read_all(
        self,
        wanted: Mapping[str, Iterable[str]],
        columns: Sequence[str],
        extract: Callable[[Answer, list[str]], dict[str, Row]],
        *,
        own: bool,
    ) -> dict[str, dict[str, Row]]:
        """Return what ``extract`` makes of the rows that can be read, by partition and key.

        A batch with a missing or unreadable row is read again in halves, so that only that row is lost. Errors of the
        data plane propagate. ``own`` says whether there is a read after these.
        """
        found: dict[str, dict[str, Row]] = {partition: {} for partition in wanted}
        to_read = [(partition, list(keys)) for partition, keys in wanted.items() if keys]
        last: tuple[str, dict[str, Row]] | None = None
        while to_read:
            if last is not None:
                found[last[0]] |= _owned(last[1])
                last = None
            partition, keys = to_read.pop()
            try:
                answer = StagingSource(self._dp_client, partition).read(keys, columns)
                last = partition, extract(answer, keys)
            except Rejected:
                half = len(keys) // 2
                to_read += [(partition, part) for part in (keys[:half], keys[half:]) if half]
        if last is not None:
            found[last[0]] |= _owned(last[1]) if own else last[1]
        return found


def _owned(rows: dict[str, Row]) -> dict[str, Row]:
    """Return rows in memory of their own: the data plane may use that of its last answer again."""

    def clone(row: Any) -> Any:
        return row.clone() if isinstance(row, torch.Tensor) else evolve(row, routes=row.routes.clone())

    return {key: clone(row) for key, row in rows.items()}


def _decoded(published: Any) -> RouteAssemblyPlan | Rejected:
    try:
        return decode_plan(published)
    except Rejected as rejected:
        return rejected


def _fragments(answer: Answer, keys: list[str]) -> dict[str, RouteFragment]:
    """Return the fragments in an answer; ``Rejected`` where one of its rows holds none."""
    try:
        column = answer.get(ROUTED_EXPERTS, None)
        if column is None:
            raise ValueError(fault(ROUTED_EXPERTS, None, "a column"))
        encodings = read_scalars(answer, "routed_experts_encoding", torch.int64).tolist()
        parts = zip(
            column_rows(column, ROUTED_EXPERTS), encodings, read_bytes(answer, "extras_metadata_json"), strict=True
        )
        return {key: RouteFragment(*part) for key, part in zip(keys, parts, strict=True)}
    except ValueError as error:
        raise Rejected(Code.MISSING_FRAGMENT, str(error)) from None


def _sidecars(answer: Answer, keys: list[str]) -> dict[str, torch.Tensor]:
    """Return the sidecars in an answer; ``Rejected`` where one of its rows has none."""
    try:
        column = answer.get(ROUTE_BOUNDARY, None)
        if column is None:
            raise ValueError(fault(ROUTE_BOUNDARY, None, "a column"))
        return dict(zip(keys, column_rows(column, ROUTE_BOUNDARY), strict=True))
    except ValueError as error:
        raise Rejected(Code.MISSING_FRAGMENT, str(error)) from None
