"""Faults met in public that a later search found, each written down before it was known whether the gate notices it.

``docs/findings.md`` says which of them lived at first, and what was missing.
"""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Sequence
from statistics import stdev
from typing import Any, Final

from attrs import evolve

from rollproof.properties.mutants.known_group import each_row
from rollproof.properties.mutants.mutant import Mutant, patches
from rollproof.spec.assembly import token_routes
from rollproof.spec.constants import BUNDLE_SIZES
from rollproof.spec.envelope import ENVELOPE_DTYPES, ENVELOPE_MAGIC
from rollproof.spec.outcomes import GroupOutcome, RolloutOutcome
from rollproof.spec.plan import has_routes
from rollproof.spec.plane import Clear, DataPlane, PublishedRow
from rollproof.spec.records import GroupRequest, Receipt
from rollproof.spec.rejections import Code, Rejected
from rollproof.spec.tensor import ITEM_SIZES, Tensor

# ── groups ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def nothing_masked(*_: Any) -> dict[str, Tensor | None]:
    """No rollout was masked by its environment."""
    return {"mask_sample": Tensor.of("bool", [False], ())}


def reward_in_bfloat16(_: Any, __: Any, row: PublishedRow) -> dict[str, Tensor | None]:
    """The reward keeps the upper half of its bits, rounded to even."""
    (bits,) = struct.unpack("<I", row.columns["total_reward"].data)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    return {"total_reward": Tensor("float32", (), struct.pack("<I", rounded))}


def all_or_none(finalize_group: Any) -> Any:
    """A rollout without a receipt makes the whole group one of placeholders."""

    def wrong(config: Any, request: GroupRequest, *rest: Any) -> GroupOutcome:
        if None in request.receipts:
            request = evolve(request, receipts=(None,) * len(request.receipts))
        outcome: GroupOutcome = finalize_group(config, request, *rest)
        return outcome

    return wrong


def with_deviation(group_metrics: Any) -> Any:
    """The metrics include the standard deviation of the row lengths, which one row alone does not have."""

    def wrong(config: Any, request: Any, outcomes: Sequence[RolloutOutcome], plans: Any) -> dict[str, float]:
        lengths = [len(outcome.rollout.token_ids) for outcome in outcomes if outcome.rollout.valid]
        metrics: dict[str, float] = group_metrics(config, request, outcomes, plans)
        return metrics | ({"row_length_deviation": stdev(lengths)} if lengths else {})

    return wrong


def clears_what_is_there(finalize_group: Any) -> Any:
    """Keys without a staged row are left out of the clear."""

    def wrong(config: Any, request: Any, plane: DataPlane, *rest: Any) -> GroupOutcome:
        staged = set(plane.rows)
        outcome: GroupOutcome = finalize_group(config, request, plane, *rest)
        effects = [
            evolve(effect, keys=tuple(key for key in effect.keys if key in staged))
            if isinstance(effect, Clear)
            else effect
            for effect in outcome.effects
        ]
        kept = tuple(effect for effect in effects if not isinstance(effect, Clear) or effect.keys)
        return evolve(outcome, effects=kept)

    return wrong


# ── lineage ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def last_call_ends_it(terminal_chain: Any) -> Any:
    """The last call of the manifest is the terminal one, whoever made it."""

    def wrong(receipt: Receipt, records: Any) -> Any:
        return terminal_chain(evolve(receipt, terminal_model_call_id=receipt.manifest[-1].model_call_id), records)

    return wrong


def newest_branch_only(terminal_chain: Any) -> Any:
    """A call goes on from the call before it; one that takes up an older branch starts anew."""

    def wrong(receipt: Receipt, records: Any) -> Any:
        chain = terminal_chain(receipt, records)
        order = [record.model_call_id for record in receipt.manifest]
        start = len(chain) - 1
        while start and order.index(chain[start].model_call_id) == order.index(chain[start - 1].model_call_id) + 1:
            start -= 1
        return chain[start:]

    return wrong


# ── routes ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def newest_spans_all(execute: Any) -> Any:
    """The last fragment is taken for the routes of the whole row so far."""

    def wrong(plan: Any, fragments: Any, dims: Any, canonical_len: int, **options: Any) -> Tensor:
        routes: Tensor = execute(plan, fragments, dims, canonical_len, **options)
        keys = [span.staging_key for span in plan.spans if span.staged_route_len and span.staging_key in fragments]
        if not keys:
            return routes
        rows = list(token_routes(fragments[keys[-1]].routes))[:canonical_len]
        ids = [expert for row in rows for expert in row]
        return Tensor.of(routes.dtype, [*ids, *routes.values()[len(ids) :]], routes.shape)

    return wrong


def base85_too(decode_routes: Any) -> Any:
    """A payload that is not base64 is tried as base85, which other servers write."""

    def wrong(payload: Any) -> Tensor:
        try:
            found: Tensor = decode_routes(payload)
        except Rejected:
            parts = payload.split(":", 3) if type(payload) is str else []
            if len(parts) != 4 or parts[0] != ENVELOPE_MAGIC or parts[1] not in ENVELOPE_DTYPES:
                raise
            try:
                shape, data = tuple(map(int, parts[2].split("x"))), base64.b85decode(parts[3])
            except ValueError as error:
                raise Rejected(Code.INVALID_ROUTE_ENVELOPE, str(error)) from None
            if len(shape) != 3 or min(shape) < 1 or math.prod(shape) * ITEM_SIZES[parts[1]] != len(data):
                raise
            return Tensor(parts[1], shape, data)
        return found

    return wrong


def rates_over_all_rows(route_metrics: Any) -> Any:
    """Placeholders count as rows without routes."""

    def wrong(config: Any, outcomes: Sequence[RolloutOutcome], plans: Any) -> dict[str, float]:
        metrics: dict[str, float] = route_metrics(config, outcomes, plans)
        routed = [outcome.rollout.route_plan for outcome in outcomes if outcome.rollout.valid]
        covered = sum(plan is not None and has_routes(plan) for plan in routed)
        return metrics | {"finalize/routed_experts_row_coverage": covered / len(outcomes)}

    return wrong


# ── media ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def one_size_per_row(trainer_layout: Any) -> Any:
    """Sizes are kept one per row, though a row may have several images."""

    def wrong(bundle: Any) -> dict[str, Tensor]:
        fields: dict[str, Tensor] = trainer_layout(bundle)
        sizes = fields[BUNDLE_SIZES]
        return {**fields, BUNDLE_SIZES: Tensor(sizes.dtype, (1, 2), sizes.data[: 2 * ITEM_SIZES[sizes.dtype]])}

    return wrong


MUTANTS: Final = (
    Mutant(
        "environment-mask-unread",
        "GROUP-12",
        "NVIDIA-NeMo/RL 3201",
        "A rollout that its environment masks, because its reward cannot be trusted, trains all the same.",
        patches(group__build_rows=each_row(nothing_masked)),
    ),
    Mutant(
        "rewards-in-bfloat16",
        "GROUP-12",
        "OpenRLHF/OpenRLHF 1334",
        "Rewards keep bfloat16's precision: small differences within a group are lost.",
        patches(group__build_rows=each_row(reward_in_bfloat16)),
    ),
    Mutant(
        "one-abort-takes-the-group",
        "GROUP-15",
        "radixark/miles 2800",
        "One rollout without a result turns its siblings into placeholders too.",
        patches(judge__oracle__finalize_group=all_or_none),
    ),
    Mutant(
        "deviation-of-one-row",
        "GROUP-1",
        "NVIDIA-NeMo/RL 1864",
        "A metric needs two values: a group with one valid row is lost.",
        patches(group__group_metrics=with_deviation),
    ),
    Mutant(
        "clears-only-what-was-staged",
        "GROUP-17",
        "Ascend/TransferQueue 129",
        "A clear leaves out keys under which nothing was found: what is staged late stays for ever.",
        patches(judge__oracle__finalize_group=clears_what_is_there),
    ),
    Mutant(
        "last-call-is-the-terminal-one",
        "LINEAGE-1",
        "PrimeIntellect-ai/verifiers 900",
        "The last call of the trajectory is taken for the end of the answer, though a subagent made it.",
        patches(lineage__terminal_chain=last_call_ends_it),
    ),
    Mutant(
        "older-branches-start-anew",
        "LINEAGE-4",
        "verl-project/verl 6299",
        "Only the newest branch can be continued: a call that takes up an older one loses what went before.",
        patches(lineage__terminal_chain=newest_branch_only),
    ),
    Mutant(
        "newest-routes-span-the-row",
        "ROUTE-7",
        "verl-project/verl 6029",
        "A later fragment is taken for the routes of everything so far, where it is its own call's alone.",
        patches(judge__oracle__execute=newest_spans_all),
    ),
    Mutant(
        "base85-accepted",
        "ROUTE-2",
        "PrimeIntellect-ai/prime-rl 2408; ai-dynamo/dynamo 9651",
        "A payload in base85, which other servers write, is read as well: one tensor has two encodings.",
        patches(judge__oracle__decode_routes=base85_too),
    ),
    Mutant(
        "coverage-of-imputed-rows",
        "ROUTE-18",
        "NVIDIA-NeMo/Gym 3593",
        "Placeholders are measured like rows: the coverage of routes falls with every rejected rollout.",
        patches(metrics__route_metrics=rates_over_all_rows),
    ),
    Mutant(
        "one-size-per-row",
        "MEDIA-11",
        "huggingface/trl 6570",
        "Images are counted by row: of a row with several, only the first has a size.",
        patches(media__trainer_layout=one_size_per_row),
    ),
)
