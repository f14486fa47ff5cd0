"""How long does a row's replay tensor take, from its staged routes?

Ours against nemo-gym's codec, and against copying the result. Every contestant assembles the same row from the same
fragments: most cover their call, some calls have none. nemo-gym offers the codec, the digest and the classification;
what a framework does with them is written out here as plainly as they allow. Ours runs with everything that section 6
asks for, from the staged tensors and from the envelopes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import numpy as np
import torch
from attrs import frozen

from benchmarks import ROUND_SECONDS, Table, race
from rollproof.impl.assembly import RouteFragment, execute, lay_out, routed_extras_digest
from rollproof.impl.envelope import decode_routes, encode_routes
from rollproof.impl.plan import SCHEMA, RouteAssemblyPlan, RouteSpan, Use, use_of
from rollproof.properties.nemo_gym.adapter import load_staging
from rollproof.spec.constants import ROUTE_ENCODING_ENVELOPE, ROUTE_ENCODING_LIST, ROUTE_SENTINEL, ROUTED_EXPERTS

TOKENS: Final = 32_768
LAYERS: Final = 48
TOP_K: Final = 8
EXPERTS: Final = 128
FRAGMENTS: Final = 20
ROUNDS: Final = 7
OURS, OURS_ENVELOPES, OURS_LISTS = "ours", "ours, from envelopes", "ours, committed as lists"
UNVERIFIED, THEIRS, COPY = "ours, without verification", "nemo-gym's codec", "copy of the result"


@frozen(eq=False)
class Workload:
    """One row's plan, and its fragments as they are staged and as they travelled."""

    plan: RouteAssemblyPlan
    fragments: dict[str, RouteFragment]
    envelopes: dict[str, str]
    plan_of_lists: RouteAssemblyPlan
    lists: dict[str, RouteFragment]
    """The same routes, committed to as nested lists."""


def workload() -> Workload:
    """Return twenty calls of equal length, half of each carry."""
    generator = np.random.default_rng(0)
    some = np.argsort(generator.random((512, LAYERS, EXPERTS)), axis=-1)[..., :TOP_K].astype(np.int16)
    lengths = [TOKENS * (index + 1) // FRAGMENTS - TOKENS * index // FRAGMENTS for index in range(FRAGMENTS)]
    routes = {
        f"g_g0/c{index}": torch.from_numpy(some[generator.integers(0, len(some), length)])
        for index, length in enumerate(lengths)
    }
    envelopes = {key: RouteFragment(value, ROUTE_ENCODING_ENVELOPE, b"null") for key, value in routes.items()}
    lists = {key: RouteFragment(value, ROUTE_ENCODING_LIST, b"null") for key, value in routes.items()}
    return Workload(
        plan_over(envelopes),
        envelopes,
        {key: encode_routes(value) for key, value in routes.items()},
        plan_over(lists),
        lists,
    )


def plan_over(fragments: dict[str, RouteFragment]) -> RouteAssemblyPlan:
    """Return the plan that uses each fragment in full."""
    spans = tuple(
        RouteSpan(key, tokens // 2, tokens - tokens // 2, tokens, 1, routed_extras_digest(fragment))
        for key, fragment in fragments.items()
        for tokens in [len(fragment.routes)]
    )
    return RouteAssemblyPlan(SCHEMA, "staging", spans, tuple(fragments), TOKENS)


def with_their_codec(staging: Any, work: Workload) -> torch.Tensor:
    """Decode, verify, classify and fill with nemo-gym's functions."""
    row = torch.full((TOKENS, LAYERS, TOP_K), ROUTE_SENTINEL, dtype=torch.int16)
    position = 0
    for span in work.plan.spans:
        envelope = work.envelopes[span.staging_key]
        fragment = staging.decode_routed_experts(envelope)
        if staging.compute_extras_digest({ROUTED_EXPERTS: envelope}) != span.extras_digest:
            raise AssertionError(span.staging_key)
        mode = staging.classify_route_span(
            carry_len=span.carry_len, generation_len=span.generation_len, staged_route_len=span.staged_route_len
        )
        if mode != "full":
            raise AssertionError(mode)
        end = position + span.carry_len + span.generation_len
        row[position:end] = torch.tensor(fragment.values, dtype=torch.int16)
        position = end
    return row


def from_envelopes(work: Workload) -> torch.Tensor:
    """Assemble with ours, starting where the peer starts."""
    fragments = {
        key: RouteFragment(decode_routes(envelope), ROUTE_ENCODING_ENVELOPE, b"null")
        for key, envelope in work.envelopes.items()
    }
    return execute(work.plan, fragments, (LAYERS, TOP_K), TOKENS, num_experts=EXPERTS)


def unverified(used: list[tuple[Use, torch.Tensor]]) -> torch.Tensor:
    """Only copy."""
    row = torch.empty((TOKENS, LAYERS, TOP_K), dtype=torch.int16)
    lay_out(used, row)
    return row


def main() -> Iterable[Table]:
    """Yield one table: every contestant, against ours and against the copy."""
    work, staging = workload(), load_staging()
    used = [(use_of(span), work.fragments[span.staging_key].routes) for span in work.plan.spans]
    result = torch.cat([routes for _, routes in used])
    contestants: dict[str, Callable[[], torch.Tensor]] = {
        OURS: lambda: execute(work.plan, work.fragments, (LAYERS, TOP_K), TOKENS, num_experts=EXPERTS),
        OURS_ENVELOPES: lambda: from_envelopes(work),
        OURS_LISTS: lambda: execute(work.plan_of_lists, work.lists, (LAYERS, TOP_K), TOKENS, num_experts=EXPERTS),
        THEIRS: lambda: with_their_codec(staging, work),
        UNVERIFIED: lambda: unverified(used),
        COPY: lambda: torch.empty_like(result).copy_(result),
    }
    for name, contestant in contestants.items():
        if not torch.equal(contestant(), result):
            raise AssertionError(f"{name} assembles another row")
    timings = race(contestants, ROUNDS)
    yield Table(
        f"staged routes to replay tensor: {TOKENS:,} tokens x {LAYERS} layers x {TOP_K} of {EXPERTS} experts, "
        f"{FRAGMENTS} fragments, {result.nbytes / 1e6:.1f} MB",
        ("contestant", "median ms", "min x ours", "median x ours", "median x copy"),
        tuple(
            (name, 1e3 * timing.median, *timing.over(timings[OURS]), timing.over(timings[COPY])[1])
            for name, timing in timings.items()
        ),
        (
            f"{ROUNDS} rounds, interleaved; each contestant repeats for {1e3 * ROUND_SECONDS:.0f} ms per round.",
            "Ours: from staged tensors; extras digests, shapes, id ranges, sentinels and repeated experts are checked.",
            "nemo-gym's codec: from envelopes; decoded, extras digests checked, classified, filled. It checks no ids.",
            "Copy of the result: one allocation and one copy of the finished row.",
        ),
    )
