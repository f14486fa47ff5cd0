"""Mutants of route boundary repair (section 10)."""

from __future__ import annotations

from typing import Any, Final

from attrs import evolve

from rollproof.properties.mutants.mutant import Mutant, passing, patches
from rollproof.spec.constants import ROUTE_BOUNDARY, ROUTE_SENTINEL
from rollproof.spec.rejections import Code, Rejected
from rollproof.spec.route_boundary import boundary_index
from rollproof.spec.tensor import Tensor
from rollproof.spec.values import owned_key


def at(offset: int) -> Any:
    """Write the sidecar to another token of the row, where there is one."""

    def replacement(write_sidecar: Any) -> Any:
        def wrong(row: list[Any], position: int, sidecar: Tensor) -> None:
            write_sidecar(row, position + offset if 0 < position + offset <= len(row) else position, sidecar)

        return wrong

    return replacement


def unless_sentinel(write_sidecar: Any) -> Any:
    """Keep the placeholder where the sidecar says that nothing was captured."""

    def wrong(row: list[Any], position: int, sidecar: Tensor) -> None:
        if set(sidecar.values()) != {ROUTE_SENTINEL}:
            write_sidecar(row, position, sidecar)

    return wrong


def trusting_sidecars(check_integrity: Any) -> Any:
    """Take a fragment with a sidecar as it is."""

    def wrong(fragment: Any, span: Any) -> None:
        try:
            check_integrity(fragment, span)
        except Rejected:
            if fragment.boundary is None:
                raise

    return wrong


def without_last(unrepaired_positions: Any) -> Any:
    """Forget that nothing repairs a row's last token."""
    return lambda plan: unrepaired_positions(plan)[:-1]


def of_every_branch(with_sidecars: Any) -> Any:
    """Read the sidecars of all calls of the rollout that have one."""

    def wrong(config: Any, plan: Any, chain: Any, plane: Any) -> Any:
        fetched = with_sidecars(config, plan, chain, plane)
        mine = owned_key(chain[0].call.rollout_id, "")
        dead = [key for key, row in plane.rows.items() if key.startswith(mine) and ROUTE_BOUNDARY in row]
        if dead:
            plane.get(config.staging_partition, dead, (ROUTE_BOUNDARY,))
        return fetched

    return wrong


def of_retried_siblings() -> dict[str, Any]:
    """Repair with the sidecar of a call that was tried again, where there is one for the same token."""
    others: dict[int, Tensor] = {}

    def noting(with_sidecars: Any) -> Any:
        def wrong(config: Any, plan: Any, chain: Any, plane: Any) -> Any:
            others.clear()
            mine, used = owned_key(chain[0].call.rollout_id, ""), {staged.key for staged in chain}
            for key, row in plane.rows.items():
                if key.startswith(mine) and key not in used and ROUTE_BOUNDARY in row:
                    index = boundary_index(row["extras_metadata_json"].data)
                    others.update({} if index is None else {index: row[ROUTE_BOUNDARY]})
            return with_sidecars(config, plan, chain, plane)

        return wrong

    def replacing(execute: Any) -> Any:
        def wrong(plan: Any, *arguments: Any, **options: Any) -> Any:
            routes = execute(plan, *arguments, **options)
            ids, width = list(routes.values()), routes.shape[1] * routes.shape[2]
            for span in plan.spans:
                if span.repair_previous_token and span.boundary_token_index in others:
                    start = span.boundary_token_index * width
                    ids[start : start + width] = others[span.boundary_token_index].values()
            return Tensor.of("int16", ids, routes.shape)

        return wrong

    return patches(routes__with_sidecars=noting, routes__execute=replacing)


def read_before_publication(accept: Any) -> Any:
    """Read sidecars in deferred mode too, where nobody needs them yet."""

    def wrong(config: Any, *arguments: Any) -> Any:
        outcome = accept(config, *arguments)
        plan, plane = outcome.rollout.route_plan, arguments[4]
        keys = [span.staging_key for span in plan.spans if span.boundary_token_index is not None] if plan else []
        if keys and not config.direct_routes:
            plane.get(config.staging_partition, keys, (ROUTE_BOUNDARY,))
        return outcome

    return wrong


def as_newest_schema(encode_plan: Any) -> Any:
    """Write every plan as schema 3, those of rows without sidecars too."""

    def wrong(plan: Any) -> Any:
        encoded = encode_plan(plan)
        new = {"boundary_token_index": None, "repair_previous_token": False}
        return {**encoded, "schema_version": 3, "spans": [{**new, **span} for span in encoded["spans"]]}

    return wrong


def as_oldest_schema(encode_plan: Any) -> Any:
    """Write every plan as schema 2: readers of it repair nothing."""

    def wrong(plan: Any) -> Any:
        spans = tuple(evolve(span, boundary_token_index=None, repair_previous_token=False) for span in plan.spans)
        return encode_plan(evolve(plan, spans=spans, schema_version=2))

    return wrong


def unrepaired_by_policy(execute_published_plan: Any) -> Any:
    """Execute published plans without their repairs."""

    def wrong(published: Any, *arguments: Any, **options: Any) -> Any:
        if type(published) is dict and published.get("schema_version") == 3:
            spans = [span | {"repair_previous_token": False} for span in published["spans"]]
            published = published | {"spans": spans}
        return execute_published_plan(published, *arguments, **options)

    return wrong


def from_the_start(align_engine_rows: Any) -> Any:
    """Take an engine's rows for those of the first tokens."""

    def wrong(rows: Any, start: Any, tokens: Any, num_experts: Any) -> Any:
        routes = align_engine_rows(rows, start, tokens, num_experts)
        width = routes.shape[1] * routes.shape[2]
        ids = routes.values()
        return Tensor.of("int16", ids[start * width :] + ids[: start * width], routes.shape)

    return wrong


def with_surplus_row(align_engine_rows: Any) -> Any:
    """Take the row of the token that never went through the model."""

    def wrong(rows: Any, start: Any, tokens: Any, num_experts: Any) -> Any:
        routes = align_engine_rows(rows, start, tokens, num_experts)
        if start + rows.shape[0] != tokens or not rows.shape[0]:
            return routes
        width = routes.shape[1] * routes.shape[2]
        return Tensor.of("int16", routes.values()[:-width] + rows.values()[-width:], routes.shape)

    return wrong


def first_ids_only(align_engine_rows: Any) -> Any:
    """Check the ids of a process's first tensor only: here, of none."""

    def wrong(rows: Any, start: Any, tokens: Any, num_experts: Any) -> Any:
        try:
            return align_engine_rows(rows, start, tokens, num_experts)
        except Rejected as rejected:
            if rejected.code is not Code.FRAGMENT_VALUE_RANGE:
                raise
            ids = [max(-1, min(int(expert), 0)) for expert in rows.values()]
            return align_engine_rows(Tensor.of("int16", ids, rows.shape), start, tokens, num_experts)

    return wrong


MUTANTS: Final = (
    Mutant(
        "placeholder-left-mid-row",
        "BOUNDARY-1",
        "NVIDIA-NeMo/RL 3485; PrimeIntellect-ai/prime-rl 1807",
        "The placeholder 0, 1, … K-1 stays in the row although the next call handed on the route.",
        patches(assembly__repairs=lambda _: lambda _span: False),
    ),
    Mutant(
        "sidecar-on-a-tool-token",
        "BOUNDARY-1",
        "contract section 10",
        "The sidecar overwrites the first token of the call that carries it.",
        patches(assembly__write_sidecar=at(1)),
    ),
    Mutant(
        "sidecar-one-token-early",
        "BOUNDARY-1",
        "contract section 10",
        "The sidecar overwrites the token before the boundary.",
        patches(assembly__write_sidecar=at(-1)),
    ),
    Mutant(
        "sentinel-sidecar-skipped",
        "BOUNDARY-1",
        "contract section 10",
        "An all-sentinel sidecar is taken for none, and the placeholder stays.",
        patches(assembly__write_sidecar=unless_sentinel),
    ),
    Mutant(
        "boundary-choice-ignored",
        "BOUNDARY-2",
        "contract decision D28",
        "Boundary tokens that nobody repaired keep their placeholder, whatever was chosen.",
        patches(assembly__UNREPAIRED_SENTINEL=lambda _: "never"),
    ),
    Mutant(
        "last-token-keeps-placeholder",
        "BOUNDARY-2",
        "contract decision D28",
        "Only boundaries inside the row become sentinel, not its last token.",
        patches(assembly__unrepaired_positions=without_last),
    ),
    Mutant(
        "sidecar-outside-the-digest",
        "BOUNDARY-3",
        "contract section 10",
        "A fragment with a sidecar is not compared with its call's commitment.",
        patches(assembly__check_integrity=trusting_sidecars),
    ),
    Mutant(
        "sidecar-of-any-token",
        "BOUNDARY-3",
        "contract section 10",
        "Neither the sidecar's index nor its shape is compared with the plan.",
        patches(assembly__check_sidecar=lambda _: lambda _fragment, _span, _dims: None),
    ),
    Mutant(
        "sidecar-ids-unchecked",
        "BOUNDARY-3",
        "contract section 10",
        "A sidecar's ids are replayed as they come.",
        patches(
            assembly__check_ids=lambda check: (
                lambda routes, *rest: None if routes.shape[0] == 1 else check(routes, *rest)
            )
        ),
    ),
    Mutant(
        "boundary-index-off-by-one",
        "BOUNDARY-4",
        "contract section 10",
        "A plan may repair another token than the one before the span.",
        patches(plan__check_boundary=passing("the token before the span")),
    ),
    Mutant(
        "repair-of-a-tool-token",
        "BOUNDARY-4",
        "contract section 10",
        "A plan may repair after a span that generated nothing, whose last token has a route of its own.",
        patches(plan__check_boundary=passing("a span that generated nothing")),
    ),
    Mutant(
        "every-plan-in-schema-3",
        "BOUNDARY-5",
        "contract section 10",
        "Plans without sidecars change too: no reader of schema 2 takes them any more.",
        patches(judge__oracle__encode_plan=as_newest_schema),
    ),
    Mutant(
        "boundary-index-crashes",
        "BOUNDARY-6",
        "contract section 10",
        "An index of another type dies in a comparison.",
        patches(plan__is_length=lambda _: lambda value: value >= 0),
    ),
    Mutant(
        "cached-prefix-left-out",
        "BOUNDARY-7",
        "contract decision D29",
        "Rows of an engine that left its cached prefix out are taken as starting at the first token.",
        patches(judge__oracle__align_engine_rows=from_the_start),
    ),
    Mutant(
        "surplus-row-taken",
        "BOUNDARY-7",
        "contract decision D29",
        "The last token gets the surplus row of an engine, which belongs to no token.",
        patches(judge__oracle__align_engine_rows=with_surplus_row),
    ),
    Mutant(
        "engine-ids-checked-once",
        "BOUNDARY-7",
        "contract decision D29",
        "Ids are compared with the number of experts on a process's first tensor only.",
        patches(judge__oracle__align_engine_rows=first_ids_only),
    ),
    Mutant(
        "sidecars-of-dead-branches",
        "BOUNDARY-8",
        "contract section 10",
        "The sidecar of a retried sibling is read too.",
        patches(routes__with_sidecars=of_every_branch),
    ),
    Mutant(
        "sidecar-of-a-retried-sibling",
        "BOUNDARY-9",
        "contract section 10",
        "The token is repaired with the sidecar of a call that was tried again, not with that of the chain's call.",
        of_retried_siblings(),
    ),
    Mutant(
        "sidecars-read-when-deferred",
        "BOUNDARY-8",
        "contract section 10",
        "Deferred finalization reads sidecars, which only the policy needs.",
        patches(rollout__accept=read_before_publication),
    ),
    Mutant(
        "boundary-never-required",
        "BOUNDARY-9",
        "contract decision D28",
        "A call without a sidecar passes where one is required.",
        patches(route_boundary__BOUNDARY_REQUIRED=lambda _: "never"),
    ),
    Mutant(
        "other-spellings-published",
        "BOUNDARY-9",
        "contract decision D21",
        "With repair on, boundaries in other spellings are published as if there were none.",
        patches(route_boundary__unsupported_field=lambda _: lambda _metadata: None),
    ),
    Mutant(
        "sidecars-not-planned",
        "BOUNDARY-9",
        "contract section 10",
        "The plan has no repairs: a call's sidecar is taken for none.",
        patches(route_boundary__boundary_index=lambda _: lambda _metadata: None),
    ),
    Mutant(
        "deferred-repairs-nothing",
        "BOUNDARY-10",
        "contract section 10",
        "The policy executes plans without their repairs.",
        patches(judge__oracle__execute_published_plan=unrepaired_by_policy),
    ),
    Mutant(
        "last-token-uncounted",
        "BOUNDARY-11",
        "contract decision D28",
        "A row's last token is not counted as unrepaired.",
        patches(advisories__unrepaired_positions=without_last),
    ),
    Mutant(
        "published-as-schema-2",
        "BOUNDARY-12",
        "contract section 10",
        "Published plans lose their repairs.",
        patches(rows__encode_plan=as_oldest_schema),
    ),
)
