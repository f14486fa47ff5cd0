"""Mutants of router replay (section 6)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from attrs import evolve

from rollproof.properties.mutants.mutant import Mutant, patches
from rollproof.spec.assembly import TokenRoutes
from rollproof.spec.constants import ROUTE_SENTINEL
from rollproof.spec.outcomes import RolloutOutcome
from rollproof.spec.records import RouteAssemblyPlan, RouteSpan
from rollproof.spec.rejections import Code, Rejected
from rollproof.spec.rollout import distinct_keys
from rollproof.spec.tensor import Tensor


def each_id(change: Callable[[int], int]) -> Any:
    """Ids change on their way from the fragment into the row, and are not checked before."""

    def replacement(token_routes: Any) -> Any:
        return lambda routes: (tuple(change(expert) for expert in token) for token in token_routes(routes))

    return replacement


def each_row(change: Callable[[list[TokenRoutes]], list[TokenRoutes]]) -> Any:
    """A fragment's tokens are misread."""

    def replacement(token_routes: Any) -> Any:
        def wrong(routes: Tensor) -> Iterator[TokenRoutes]:
            return iter(change(list(token_routes(routes))))

        return wrong

    return replacement


def lost_last(tokens: list[TokenRoutes]) -> list[TokenRoutes]:
    """One route fewer than tokens: the last one becomes sentinel."""
    return [*tokens[:-1], (ROUTE_SENTINEL,) * len(tokens[-1])] if tokens else tokens


def tolerating(*codes: Code) -> Any:
    """The check of ids lets some violations pass."""

    def replacement(check_ids: Any) -> Any:
        def wrong(*arguments: Any) -> None:
            try:
                check_ids(*arguments)
            except Rejected as rejected:
                if rejected.code not in codes:
                    raise

        return wrong

    return replacement


def unrouted_as(vector: Callable[[int], list[int]]) -> Any:
    """Rows without routes are filled with something else than sentinels."""

    def replacement(row_routes: Any) -> Any:
        def wrong(rollout: Any, length: int, dims: tuple[int, int]) -> Tensor:
            routes: Tensor = row_routes(rollout, length, dims)
            filler = vector(dims[1]) * (length * dims[0])
            return routes if rollout.routed_experts is not None else Tensor.of("int16", filler, (length, *dims))

        return wrong

    return replacement


def changed_plan(change: Callable[[RouteAssemblyPlan], RouteAssemblyPlan]) -> Any:
    """The plan of a row is another one."""
    return lambda rollout_plan: lambda *arguments: change(rollout_plan(*arguments))


def changed_routes(change: Callable[[Tensor], Tensor]) -> Any:
    """The assembled routes of a row are others."""
    return lambda execute: lambda *arguments, **options: change(execute(*arguments, **options))


def all_or_nothing(routes: Tensor) -> Tensor:
    """One sentinel token turns replay off for the whole row."""
    if ROUTE_SENTINEL not in routes.values():
        return routes
    return Tensor.of(routes.dtype, [ROUTE_SENTINEL] * routes.count, routes.shape)


def every_branch() -> dict[str, Any]:
    """Routes are taken from the manifest's calls one after the other, on the chain or not."""
    staged: list[Any] = []

    def remember(rebuild: Any) -> Any:
        def wrong(receipt: Any, rows: Any) -> Any:
            staged[:] = rows
            return rebuild(receipt, rows)

        return wrong

    def from_all(assemble_directly: Any) -> Any:
        def wrong(config: Any, plan: Any, chain: Any, dims: Any) -> Any:
            routes, known = assemble_directly(config, plan, chain, dims)
            if routes is None:
                return routes, known
            width = routes.shape[1] * routes.shape[2]
            ids: list[Any] = []
            for row in staged:
                nothing = [ROUTE_SENTINEL] * (row.call.delta_len * width)
                ids += nothing if row.routed_experts is None else row.routed_experts.values()
            return Tensor.of("int16", ids[: routes.count], routes.shape), known

        return wrong

    return patches(rollout__rebuild=remember, routes__assemble_directly=from_all)


def rejected_teaches() -> dict[str, Any]:
    """(L, K) is kept from a rollout that is rejected in the end."""
    seen: list[Any] = []

    def learn(assemble_directly: Any) -> Any:
        def wrong(*arguments: Any) -> Any:
            routes, dims = assemble_directly(*arguments)
            seen[:] = [dims]
            return routes, dims

        return wrong

    def keep(finalize_rollout: Any) -> Any:
        def wrong(*arguments: Any) -> RolloutOutcome:
            seen.clear()
            outcome: RolloutOutcome = finalize_rollout(*arguments)
            return evolve(outcome, dims=seen[0]) if outcome.dims is None and seen else outcome

        return wrong

    return patches(routes__assemble_directly=learn, group__finalize_rollout=keep)


def tail_first(classify_span: Any) -> Any:
    """A fragment that covers a whole span with carry is taken for a tail."""

    def wrong(carry_len: int, generation_len: int, staged_route_len: int) -> Any:
        mode = classify_span(carry_len, generation_len, staged_route_len)
        return type(mode)("tail") if mode == "full" and carry_len and generation_len else mode

    return wrong


def no_routes_if_sentinel(assemble_directly: Any) -> Any:
    """A row whose fragments are all sentinel is reported as one without routes."""

    def wrong(*arguments: Any) -> Any:
        routes, dims = assemble_directly(*arguments)
        return (None if routes is not None and set(routes.values()) == {ROUTE_SENTINEL} else routes), dims

    return wrong


def all_manifest_keys(_: Any) -> Any:
    """Whatever the manifest lists is taken for the rollout's own."""
    return lambda _rollout_id, receipt: distinct_keys(receipt)


def raise_on_other_model(check_shape: Any) -> Any:
    """A rollout of another (L, K) raises."""

    def wrong(routes: Tensor, span: RouteSpan, dims: Any) -> Any:
        if dims is not None and len(routes.shape) == 3 and routes.shape[1:] != dims:
            raise AssertionError(f"expected (L, K) {dims}")
        return check_shape(routes, span, dims)

    return wrong


def uncounted(execute_published_plan: Any) -> Any:
    """Nobody hears why a row could not be replayed."""
    return lambda *arguments, **options: evolve(execute_published_plan(*arguments, **options), failure=None)


def one_late(execute_published_plan: Any) -> Any:
    """The policy replays every route one token late."""

    def wrong(*arguments: Any, **options: Any) -> Any:
        row = execute_published_plan(*arguments, **options)
        width = row.routes.shape[1] * row.routes.shape[2]
        ids = row.routes.values()
        return evolve(row, routes=Tensor.of("int16", (*ids[:width], *ids[:-width]), row.routes.shape))

    return wrong


def unsigned_bytes(decode_routes: Any) -> Any:
    """int8 is read as uint8: the sentinel becomes expert 255."""

    def wrong(payload: Any) -> Tensor:
        routes: Tensor = decode_routes(payload)
        if routes.dtype != "int8":
            return routes
        return Tensor.of("int16", [expert % 256 for expert in routes.values()], routes.shape)

    return wrong


def any_field(_: Any) -> Any:
    """Unknown fields are ignored, missing ones are null."""
    return lambda value, names, _what: {name: dict(value).get(name) for name in names}


MUTANTS: Final = (
    Mutant(
        "routes-narrowed-to-int16",
        "ROUTE-7",
        "contract decision D8",
        "int32 ids are narrowed to int16: 65535 becomes the sentinel.",
        patches(
            assembly__check_ids=tolerating(Code.FRAGMENT_VALUE_RANGE),
            assembly__token_routes=each_id(lambda expert: (expert + 2**15) % 2**16 - 2**15),
        ),
    ),
    Mutant(
        "routes-in-uint8",
        "ROUTE-7",
        "NVIDIA-NeMo/RL 4240; NovaSky-AI/SkyRL 2091; sgl-project/sglang 9499; PrimeIntellect-ai/prime-rl 2487",
        "Ids pass through one byte: above 255 they are other experts.",
        patches(assembly__token_routes=each_id(lambda expert: expert if expert < 0 else expert % 256)),
    ),
    Mutant(
        "placeholder-routes-zero",
        "ROUTE-11",
        "google/tunix 2046; PrimeIntellect-ai/prime-rl 3350",
        "Rows without routes are filled with expert 0.",
        patches(routes__row_routes=unrouted_as(lambda width: [0] * width)),
    ),
    Mutant(
        "placeholder-routes-stale",
        "ROUTE-11",
        "sgl-project/sglang 36404, 12162",
        "Rows without routes repeat a real route.",
        patches(routes__row_routes=unrouted_as(lambda width: list(range(width)))),
    ),
    Mutant(
        "partial-sentinel-accepted",
        "ROUTE-8",
        "radixark/miles 2770",
        "A partly sentinel vector is replayed.",
        patches(assembly__check_ids=tolerating(Code.FRAGMENT_PARTIAL_SENTINEL)),
    ),
    Mutant(
        "boundary-route-lost",
        "ROUTE-7",
        "PrimeIntellect-ai/prime-rl 1807; NVIDIA-NeMo/RL 3485; sgl-project/sglang 20964; vllm-project/vllm 37094",
        "The last token of every call loses its route.",
        patches(assembly__token_routes=each_row(lost_last)),
    ),
    Mutant(
        "routes-one-token-late",
        "ROUTE-7",
        "radixark/miles 893",
        "The prefix is sliced twice: every route is one token late.",
        patches(assembly__token_routes=each_row(lambda tokens: [*tokens[:1], *tokens[:-1]])),
    ),
    Mutant(
        "routes-of-dead-branches",
        "ROUTE-17",
        "contract section 6",
        "Routes are taken from the manifest in order, dead branches included.",
        every_branch(),
    ),
    Mutant(
        "mixed-dimensions-raise",
        "ROUTE-14",
        "contract decision D10",
        "A rollout of another (L, K) raises instead of costing its row.",
        patches(assembly__check_shape=raise_on_other_model),
    ),
    Mutant(
        "cleanup-of-chain-only",
        "ROUTE-16",
        "contract section 6",
        "The plan's cleanup keys are the chain's: dead branches stay staged for ever.",
        patches(
            routes__rollout_plan=changed_plan(
                lambda plan: evolve(plan, cleanup_staging_keys=tuple(span.staging_key for span in plan.spans))
            )
        ),
    ),
    Mutant(
        "plan-terminal-first",
        "ROUTE-16",
        "contract section 6",
        "The plan's spans run from the terminal call to the root.",
        patches(routes__rollout_plan=changed_plan(lambda plan: evolve(plan, spans=plan.spans[::-1]))),
    ),
    Mutant(
        "foreign-cleanup-keys",
        "ROUTE-16",
        "contract decision D14",
        "A deferred plan cleans up whatever its receipt lists.",
        patches(rollout__owned_keys=all_manifest_keys, group__owned_keys=all_manifest_keys),
    ),
    Mutant(
        "tail-before-full",
        "ROUTE-4",
        "contract section 6",
        "Full and tail are swapped where both lengths fit.",
        patches(oracle__classify_span=tail_first),
    ),
    Mutant(
        "all-sentinel-is-none",
        "ROUTE-17",
        "contract section 6",
        "A fragment that is all sentinel is treated as no routes.",
        patches(routes__assemble_directly=no_routes_if_sentinel),
    ),
    Mutant(
        "forged-absence-accepted",
        "ROUTE-17",
        "contract section 6",
        "A forged routed_len of 0 turns real routes into sentinels.",
        patches(routes__check_routeless=lambda _: lambda _staged: None),
    ),
    Mutant(
        "repeated-experts-accepted",
        "ROUTE-9",
        "vllm-project/vllm 35623, 39391",
        "Zeroed layers and all-expert-0 vectors are replayed (D20).",
        patches(assembly__check_ids=tolerating(Code.FRAGMENT_DUPLICATE_EXPERT)),
    ),
    Mutant(
        "rejected-rollout-teaches",
        "ROUTE-15",
        "contract decision D10",
        "A rejected rollout teaches (L, K) to the whole process.",
        rejected_teaches(),
    ),
    Mutant(
        "one-sentinel-turns-replay-off",
        "ROUTE-7",
        "radixark/miles 645",
        "One sentinel token turns replay off for the whole sequence.",
        patches(oracle__execute=changed_routes(all_or_nothing), routes__execute=changed_routes(all_or_nothing)),
    ),
    Mutant(
        "deferred-one-token-late",
        "ROUTE-12",
        "contract section 6",
        "The policy replays deferred routes one token late.",
        patches(oracle__execute_published_plan=one_late),
    ),
    Mutant(
        "deferred-failures-uncounted",
        "ROUTE-13",
        "NVIDIA-NeMo/RL 3837",
        "Deferred failures are counted where nobody reads.",
        patches(oracle__execute_published_plan=uncounted),
    ),
    Mutant(
        "int8-read-unsigned",
        "ROUTE-1",
        "sgl-project/sglang 9499",
        "The sentinel in int8 is read as expert 255.",
        patches(oracle__decode_routes=unsigned_bytes),
    ),
    Mutant(
        "lenient-dimensions",
        "ROUTE-2",
        "contract decision D9",
        "Dimensions are whatever int() takes: signs, spaces, underscores, other digits.",
        patches(envelope__dimension=lambda _: lambda text: max(1, int(text[:20]))),
    ),
    Mutant(
        "envelope-padded-twice",
        "ROUTE-3",
        "contract decision D9",
        "The encoder pads base64 that needs no padding.",
        patches(oracle__encode_routes=lambda encode: lambda routes: encode(routes).rstrip("=") + "="),
    ),
    Mutant(
        "lenient-plan-fields",
        "ROUTE-5",
        "contract section 6",
        "Decoding a plan ignores unknown fields.",
        patches(plan__exact_fields=any_field),
    ),
    Mutant(
        "plan-keys-sorted",
        "ROUTE-6",
        "contract section 6",
        "Encoding a plan reverses its cleanup keys.",
        patches(
            oracle__encode_plan=lambda encode: (
                lambda plan: {
                    **encode(plan),
                    "cleanup_staging_keys": encode(plan)["cleanup_staging_keys"][::-1],
                    "spans": encode(plan)["spans"][::-1],
                }
            )
        ),
    ),
    Mutant(
        "codec-crashes",
        "ROUTE-10",
        "contract decision D4",
        "A payload that is no text dies in an attribute error.",
        patches(oracle__decode_routes=lambda decode: lambda payload: decode(payload) if payload.split else None),
    ),
    Mutant(
        "route-coverage-of-all-rows",
        "ROUTE-18",
        "NVIDIA-NeMo/RL 3837",
        "Route coverage counts placeholders.",
        patches(metrics__has_routes=lambda _: lambda _plan: True),
    ),
)
