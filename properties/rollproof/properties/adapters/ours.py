"""rollproof's own implementation as the gate sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import torch
from attrs import evolve

from rollproof.impl import (
    assembly,
    completion,
    digest,
    envelope,
    lineage,
    plan,
    records,
    retained,
    route_boundary,
    terminal,
)
from rollproof.impl.bundles import chain_media, read_bundle, staged_tensors
from rollproof.impl.policy import RoutePlanExecutor
from rollproof.impl.reassembler import RolloutReassembler
from rollproof.properties.adapters.our_cuts import OurCuts, answered
from rollproof.properties.adapters.reassembler import ReassemblerAdapter, run_step, spec_media, spec_plan
from rollproof.properties.adapters.tensors import batch_rows, from_torch, named_tensors, to_torch
from rollproof.spec.constants import AS_STAGED, MEDIA_DIGEST_FIELDS, MEDIA_SPANS, ROUTE_PLAN_TAG, ROUTED_EXPERTS
from rollproof.spec.cut_records import Completion, Cut, TrainedRow
from rollproof.spec.extras import RouteFragment
from rollproof.spec.judge.area import PORTABLE
from rollproof.spec.judge.requests import Area, GroupReplay, GroupStep, Restored, StagedMedia
from rollproof.spec.judge.staging import Staging
from rollproof.spec.judge.views import Entry
from rollproof.spec.outcomes import Dims
from rollproof.spec.records import (
    CallRecord,
    GroupRequest,
    LinearizedRow,
    ReassemblerConfig,
    Receipt,
    RouteAssemblyPlan,
    StagedCall,
    TerminalSelection,
)
from rollproof.spec.replay import ReplayedRow
from rollproof.spec.retained import PrefixRow
from rollproof.spec.tensor import Tensor


class Ours(OurCuts, ReassemblerAdapter):
    """``rollproof.impl``: the areas of receipts, all but the portable ones."""

    name: ClassVar[str] = "impl"
    areas: ClassVar[frozenset[Area]] = frozenset(Area) - PORTABLE
    reassembler: ClassVar[Callable[..., Any]] = RolloutReassembler

    def prefix_digest(self, token_ids: tuple[int, ...]) -> str:
        """Section 2."""
        return answered(digest.prefix_digest, token_ids)

    def chain_digest(self, parent_chain_hash: str | None, token_ids: tuple[int, ...]) -> str:
        """Section 2."""
        return answered(digest.chain_digest, parent_chain_hash, token_ids)

    def extras_digest(self, extras: Any) -> str:
        """Section 2."""
        return answered(digest.extras_digest, extras)

    def call_digest(self, call: StagedCall) -> str:
        """Section 2."""
        return answered(digest.call_digest, call)

    def parse_receipt(self, value: Any) -> Receipt:
        """Section 3."""
        return answered(records.parse_receipt, value)

    def select_terminal(self, records: Sequence[CallRecord]) -> TerminalSelection:
        """Section 3."""
        return answered(terminal.select_terminal, records)

    def linearize(self, receipt: Receipt, calls: Sequence[StagedCall]) -> LinearizedRow:
        """Section 4."""
        return answered(lineage.linearize, receipt, calls)

    def decode_routes(self, payload: Any) -> Tensor:
        """Section 6."""
        return from_torch(answered(envelope.decode_routes, payload))

    def encode_routes(self, routes: Tensor) -> str:
        """Section 6."""
        return answered(envelope.encode_routes, to_torch(routes))

    def classify_span(self, carry_len: int, generation_len: int, staged_route_len: int) -> str:
        """Section 6."""
        return answered(plan.classify, carry_len, generation_len, staged_route_len)

    def decode_plan(self, value: Any) -> RouteAssemblyPlan:
        """Section 6."""
        decoded = spec_plan(answered(plan.decode_plan, value))
        assert decoded is not None
        return decoded

    def encode_plan(self, route_plan: RouteAssemblyPlan) -> dict[str, Any]:
        """Section 6."""
        return answered(plan.encode_plan, route_plan)

    def execute_plan(
        self,
        route_plan: RouteAssemblyPlan,
        fragments: Mapping[str, RouteFragment],
        dims: Dims,
        canonical_len: int,
        num_experts: int | None,
        allow_repeated_experts: bool,
        route_boundary: str = AS_STAGED,
    ) -> Tensor:
        """Section 6."""
        staged = {
            key: assembly.RouteFragment(
                to_torch(one.routes),
                one.encoding,
                one.extras_metadata_json,
                None if one.boundary is None else to_torch(one.boundary),
            )
            for key, one in fragments.items()
        }
        return from_torch(
            answered(
                assembly.execute,
                route_plan,
                staged,
                dims,
                canonical_len,
                num_experts=num_experts,
                allow_repeated_experts=allow_repeated_experts,
                route_boundary=route_boundary,
            )
        )

    def replay_group(
        self, config: ReassemblerConfig, request: GroupRequest, staging: Staging, dims: Dims
    ) -> GroupReplay:
        """Section 6."""
        config = evolve(config, routed_dims=dims)
        (direct,) = self.finalize_groups(config, (GroupStep(request),), staging)
        config = evolve(config, defer_routed_experts_to_policy=True)
        plane = self.plane(config, staging)
        deferred = run_step(self.build(plane, config), plane, GroupStep(request))
        rows = deferred.rows or ()
        executor = RoutePlanExecutor(
            plane.inner,
            dims=dims,
            num_experts=config.num_experts,
            allow_repeated_experts=config.allow_repeated_experts,
            route_boundary=config.route_boundary or AS_STAGED,
        )
        batch = executor.replay(
            [row.tags[ROUTE_PLAN_TAG] for row in rows], [row.columns["input_ids"].count for row in rows]
        )
        replayed = zip(batch_rows(batch.routes), batch.failures, strict=True)
        return GroupReplay(
            direct=tuple(row.columns[ROUTED_EXPERTS] for row in direct.rows or ()),
            deferred=tuple(ReplayedRow(from_torch(routes), failure) for routes, failure in replayed),
        )

    def align_engine_rows(self, rows: Tensor, start: int, tokens: int, num_experts: int | None) -> Tensor:
        """Section 10."""
        return from_torch(answered(route_boundary.align_engine_rows, to_torch(rows), start, tokens, num_experts))

    def chain_media(self, parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """Section 7."""
        fields = spec_media(answered(chain_media, [as_torch(part) for part in parts]))
        assert fields is not None
        return fields

    def stage_media(self, bundle: Mapping[str, Tensor] | None, pixel_dtype: str) -> dict[str, Tensor]:
        """Section 9."""
        dtype = getattr(torch, pixel_dtype)
        read = None if bundle is None else answered(read_bundle, as_torch(bundle))
        return {name: from_torch(column) for name, column in answered(staged_tensors, read, dtype).items()}

    def media_digest(self, tensors: tuple[Entry, ...] | None, scheme: str) -> str:
        """Section 7."""
        return answered(retained.media_digest, named_tensors(tensors), scheme)

    def same_media(self, left: tuple[Entry, ...] | None, right: tuple[Entry, ...] | None) -> bool:
        """Section 7."""
        verdicts = {
            self.media_digest(left, scheme) == self.media_digest(right, scheme) for scheme in MEDIA_DIGEST_FIELDS
        }
        if len(verdicts) > 1:
            raise RuntimeError("equal under one digest scheme, different under another")
        return verdicts.pop()

    def cut_generation(
        self,
        extras: Any,
        spans: Any,
        bundle: Mapping[str, Tensor] | None,
        pixel_dtype: str,
        cuts: int,
        scheme: str,
    ) -> tuple[StagedMedia, ...]:
        """Section 7."""
        media = None if bundle is None else retained.CallMedia(spans, as_torch(bundle))
        prefix = StagedMedia(answered(retained.cut_extras, extras, media, scheme), self.stage_media(None, pixel_dtype))
        whole = extras if media is None else {**(extras or {}), MEDIA_SPANS: spans}
        return (*(prefix for _ in range(cuts)), StagedMedia(whole, self.stage_media(bundle, pixel_dtype)))

    def restore(self, row: PrefixRow, spans: Any, tensors: tuple[Entry, ...] | None) -> Restored:
        """Section 7."""
        routes = None if row.routes is None else to_torch(row.routes)
        staged = retained.PrefixRow(row.extras_metadata_json, row.extras_digest, routes, row.routed_experts_encoding)
        fresh = named_tensors(tensors)
        restored = answered(retained.restore, staged, retained.CallMedia(spans, fresh))
        if restored is None:
            return Restored(with_media=False)
        found = restored.tensors
        if found is None or fresh is None:
            return Restored(with_media=True, fresh=found is fresh)
        same = found.keys() == fresh.keys() and all(found[name] is fresh[name] for name in fresh)
        return Restored(with_media=True, fresh=same)

    def check_completion(
        self,
        cuts: Sequence[Cut],
        completions: Sequence[Completion],
        rows: Sequence[TrainedRow],
        live_keys: Sequence[str],
        successor_keys: Sequence[str],
    ) -> tuple[tuple[str, str], ...]:
        """Section 7."""
        found = completion.check_completion(cuts, completions, rows, live_keys, successor_keys)
        return tuple((violation.code.code, violation.subject) for violation in found)


def as_torch(bundle: Mapping[str, Tensor]) -> dict[str, torch.Tensor]:
    """Return the tensors of a bundle."""
    return {name: to_torch(value) for name, value in bundle.items()}


class OursByGroup(Ours):
    """``rollproof.impl`` with one base read per group."""

    name: ClassVar[str] = "impl, reads by group"
    reassembler: ClassVar[Callable[..., Any]] = partial(RolloutReassembler, reads="group")
