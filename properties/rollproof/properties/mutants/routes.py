"""Mutants of router replay (section 6)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from attrs import evolve

from rollproof.properties.mutants.mutant import Mutant, patches, remembering
from rollproof.spec.assembly import TokenRoutes
from rollproof.spec.constants import ROUTE_SENTINEL
from rollproof.spec.receipt import manifest_rows
from rollproof.spec.records import RouteAssemblyPlan, RouteSpan
from rollproof.spec.rejections import Code, Rejected
from rollproof.spec.tensor import Tensor
from rollproof.spec.values import is_identifier


def each_id(change: Callable[[int], int]) -> Any:
    """Change ids on their way from the fragment into the row, and do not check them before."""

    def replacement(token_routes: Any) -> Any:
        return lambda routes: [tuple(change(expert) for expert in token) for token in token_routes(routes)]

    return replacement


def each_row(change: Callable[[list[TokenRoutes]], list[TokenRoutes]]) -> Any:
    """Misread a fragment's tokens."""

    def replacement(token_routes: Any) -> Any:
        def wrong(routes: Tensor) -> list[TokenRoutes]:
            return change(token_routes(routes))

        return wrong

    return replacement


def lost_last(tokens: list[TokenRoutes]) -> list[TokenRoutes]:
    """Return one route fewer than tokens: the last one becomes sentinel."""
    return [*tokens[:-1], (ROUTE_SENTINEL,) * len(tokens[-1])] if tokens else tokens


def tolerating(*codes: Code) -> Any:
    """Let some violations pass the check of ids."""

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
    """Fill rows without routes with something else than sentinels."""

    def replacement(row_routes: Any) -> Any:
        def wrong(rollout: Any, length: int, dims: tuple[int, int]) -> Tensor:
            routes: Tensor = row_routes(rollout, length, dims)
            filler = vector(dims[1]) * (length * dims[0])
            return routes if rollout.routed_experts is not None else Tensor.of("int16", filler, (length, *dims))

        return wrong

    return replacement


def changed_plan(change: Callable[[RouteAssemblyPlan], RouteAssemblyPlan]) -> Any:
    """Change the plan of a row."""
    return lambda rollout_plan: lambda *arguments: change(rollout_plan(*arguments))


def changed_routes(change: Callable[[Tensor], Tensor]) -> Any:
    """Change the assembled routes of a row."""
    return lambda execute: lambda *arguments, **options: change(execute(*arguments, **options))


def all_or_nothing(routes: Tensor) -> Tensor:
    """Turn replay off for the whole row if one token is sentinel."""
    if ROUTE_SENTINEL not in routes.values():
        return routes
    return Tensor.of(routes.dtype, [ROUTE_SENTINEL] * routes.count, routes.shape)


def every_branch() -> dict[str, Any]:
    """Take routes from the manifest's calls one after the other, on the chain or not."""
    staged: list[Any] = []

    def from_all(assemble_directly: Any) -> Any:
        def wrong(config: Any, plan: Any, chain: Any, dims: Any) -> Any:
            routes = assemble_directly(config, plan, chain, dims)
            if routes is None:
                return None
            width = routes.shape[1] * routes.shape[2]
            ids: list[Any] = []
            for row in staged:
                nothing = [ROUTE_SENTINEL] * (row.call.delta_len * width)
                ids += nothing if row.routed_experts is None else row.routed_experts.values()
            return Tensor.of("int16", ids[: routes.count], routes.shape)

        return wrong

    return patches(rollout__rebuild=remembering(staged), routes__assemble_directly=from_all)


def rejected_teaches() -> dict[str, Any]:
    """Keep (L, K) from a rollout that is rejected in the end."""
    seen: list[Any] = []

    def learn(assemble_directly: Any) -> Any:
        def wrong(*arguments: Any) -> Any:
            routes = assemble_directly(*arguments)
            seen.extend([] if routes is None else [routes.shape[1:]])
            return routes

        return wrong

    def keep(known_dims: Any) -> Any:
        def wrong(config: Any, outcomes: Any, dims: Any) -> Any:
            if not outcomes:
                seen.clear()
            return known_dims(config, outcomes, dims) or (seen[0] if seen else None)

        return wrong

    return patches(routes__assemble_directly=learn, group__known_dims=keep)


def tail_first(classify_span: Any) -> Any:
    """Take a fragment that covers a whole span with carry for a tail."""

    def wrong(carry_len: int, generation_len: int, staged_route_len: int) -> Any:
        mode = classify_span(carry_len, generation_len, staged_route_len)
        return type(mode)("tail") if mode == "full" and carry_len and generation_len else mode

    return wrong


def no_routes_if_sentinel(assemble_directly: Any) -> Any:
    """Report a row whose fragments are all sentinel as one without routes."""

    def wrong(*arguments: Any) -> Any:
        routes = assemble_directly(*arguments)
        return None if routes is not None and set(routes.values()) == {ROUTE_SENTINEL} else routes

    return wrong


def all_manifest_keys(_: Any) -> Any:
    """Whatever the manifest lists is taken for the rollout's own."""
    return lambda _id, receipt: tuple(
        dict.fromkeys(row["staging_key"] for row in manifest_rows(receipt) if is_identifier(row.get("staging_key")))
    )


def raise_on_other_model(check_shape: Any) -> Any:
    """Raise for a rollout of another (L, K)."""

    def wrong(routes: Tensor, span: RouteSpan, dims: Any) -> Any:
        if dims is not None and len(routes.shape) == 3 and routes.shape[1:] != dims:
            raise AssertionError(f"expected (L, K) {dims}")
        return check_shape(routes, span, dims)

    return wrong


def uncounted(execute_published_plan: Any) -> Any:
    """Do not report why a row could not be replayed."""
    return lambda *arguments, **options: evolve(execute_published_plan(*arguments, **options), failure=None)


def one_late(execute_published_plan: Any) -> Any:
    """Replay every route one token late in the policy."""

    def wrong(*arguments: Any, **options: Any) -> Any:
        row = execute_published_plan(*arguments, **options)
        width = row.routes.shape[1] * row.routes.shape[2]
        ids = row.routes.values()
        return evolve(row, routes=Tensor.of("int16", (*ids[:width], *ids[:-width]), row.routes.shape))

    return wrong


def unsigned_bytes(decode_routes: Any) -> Any:
    """Read int8 as uint8: the sentinel becomes expert 255."""

    def wrong(payload: Any) -> Tensor:
        routes: Tensor = decode_routes(payload)
        if routes.dtype != "int8":
            return routes
        return Tensor.of("int16", [expert % 256 for expert in routes.values()], routes.shape)

    return wrong


def any_field(_: Any) -> Any:
    """Ignore unknown fields, and take missing ones for null."""
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
        "other-boundaries-unnoticed",
        "ROUTE-17",
        "contract decision D21",
        "Only the boundary's index is looked for: other spellings of a boundary route are published as if absent.",
        patches(route_boundary__ROUTE_BOUNDARY_FIELDS=lambda names: names[:1]),
    ),
    Mutant(
        "attachment-is-malformed",
        "ROUTE-17",
        "contract decision D22",
        "A row whose routes are a native attachment counts as a malformed row, and not as one of an unknown encoding.",
        patches(staged__ROUTE_ENCODINGS=lambda known: known[:-1]),
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
        patches(rollout__owned_keys=all_manifest_keys),
    ),
    Mutant(
        "tail-before-full",
        "ROUTE-4",
        "contract section 6",
        "Full and tail are swapped where both lengths fit.",
        patches(judge__oracle__classify_span=tail_first),
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
        patches(
            judge__oracle__execute=changed_routes(all_or_nothing),
            routes__execute=changed_routes(all_or_nothing),
            replay__execute=changed_routes(all_or_nothing),
        ),
    ),
    Mutant(
        "deferred-one-token-late",
        "ROUTE-12",
        "contract section 6",
        "The policy replays deferred routes one token late.",
        patches(judge__oracle__execute_published_plan=one_late),
    ),
    Mutant(
        "deferred-failures-uncounted",
        "ROUTE-13",
        "NVIDIA-NeMo/RL 3837",
        "Deferred failures are counted where nobody reads.",
        patches(judge__oracle__execute_published_plan=uncounted),
    ),
    Mutant(
        "int8-read-unsigned",
        "ROUTE-1",
        "sgl-project/sglang 9499",
        "The sentinel in int8 is read as expert 255.",
        patches(judge__oracle__decode_routes=unsigned_bytes),
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
        patches(judge__oracle__encode_routes=lambda encode: lambda routes: encode(routes).rstrip("=") + "="),
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
            judge__oracle__encode_plan=lambda encode: (
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
        "A payload that is not a string dies in an attribute error.",
        patches(judge__oracle__decode_routes=lambda decode: lambda payload: decode(payload) if payload.split else None),
    ),
    Mutant(
        "route-coverage-of-all-rows",
        "ROUTE-18",
        "NVIDIA-NeMo/RL 3837",
        "Route coverage counts placeholders.",
        patches(metrics__has_routes=lambda _: lambda _plan: True),
    ),
)
