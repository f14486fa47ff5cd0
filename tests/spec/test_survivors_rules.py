"""Single rules at their edges: where the contract speaks and no broader test has an input that tells."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
from attrs import evolve

from rollproof.properties.asking import long_chain
from rollproof.spec.assembly import all_sentinel, check_ids
from rollproof.spec.bundles import MAX_GEOMETRY, check_pixels, image_sizes
from rollproof.spec.completion import trained_generation
from rollproof.spec.constants import EXTRAS_DIGEST_VERSION, MEDIA_DIGEST_FIELDS
from rollproof.spec.digest import call_digest, chain_digest
from rollproof.spec.envelope import decode_routes
from rollproof.spec.group import argument_error
from rollproof.spec.lineage import linearize
from rollproof.spec.plan import encode_plan
from rollproof.spec.records import GroupRequest, LinkSpan, RouteAssemblyPlan, RouteSpan, TrainedRow
from rollproof.spec.rejections import Code, Rejected
from rollproof.spec.retained import media_digest
from rollproof.spec.routes import check_link_spans, execute_published_plan, fragment_keys
from rollproof.spec.spans import check_tokens, parse_items, placeholder_digest
from rollproof.spec.staged import decode_row, encode_row, raw_bytes
from rollproof.spec.tensor import Tensor
from rollproof.spec.values import is_number

# ── lineage and completion ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_chain_of_many_calls_is_one_row() -> None:
    """More calls than Python has shared small integers: counts are compared by value."""
    receipt, calls = long_chain(300)
    assert len(linearize(receipt, calls).link_spans) == 300
    with pytest.raises(Rejected) as caught:
        linearize(receipt, calls[:-1])
    assert caught.value.code is Code.ROW_COUNT_MISMATCH


def test_a_carry_of_many_tokens_ends_with_its_call() -> None:
    receipt, calls = long_chain(1)
    ids, zeros = tuple(range(300)), (0.0,) * 300
    call = evolve(
        calls[0],
        delta_len=300,
        cum_len=300,
        token_ids_delta=ids,
        token_mask_delta=zeros,
        generation_log_probs_delta=zeros,
        chain_hash=chain_digest(None, ids),
    )
    call = evolve(call, digest=call_digest(call))
    shared = {name: getattr(call, name) for name in ("delta_len", "cum_len", "chain_hash", "digest")}
    receipt = evolve(receipt, manifest=(evolve(receipt.manifest[0], **shared),))
    with pytest.raises(Rejected) as caught:
        linearize(receipt, [call])
    assert caught.value.code is Code.EMPTY_GENERATION


@pytest.mark.parametrize("wanted, generated", [("a", (2,)), ("b", (4, 5)), ("c", (6,)), ("aa", None), ("", None)])
def test_a_call_is_found_by_its_own_id(wanted: str, generated: tuple[int, ...] | None) -> None:
    row = TrainedRow("r", (LinkSpan("c", 0, 1), LinkSpan("a", 1, 1), LinkSpan("b", 1, 2)), (6, 1, 2, 3, 4, 5))
    other = TrainedRow("q", (LinkSpan(wanted, 0, 1),), (9,))
    assert trained_generation([other, row], "r", wanted) == generated


def test_a_group_without_a_valid_row_falls_back_to_version_0() -> None:
    assert GroupRequest("g", ("g_g0",), ({},), (0.0,), (False,)).fallback_weight_version == 0


@pytest.mark.parametrize("ids", [("g_g0", "g_g0"), ("g_g1", "g_g1", "g_g2")])
def test_a_group_names_each_rollout_once(ids: tuple[str, ...]) -> None:
    request = GroupRequest("g", ids, ({},) * len(ids), (0.0,) * len(ids), (False,) * len(ids))
    assert argument_error(request) == "rollout_ids repeat"


# ── staged rows ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("shape", [(), (1,), (4,), (1, 0), (0, 4), (2, 2), (1, 1, 4), (1, 4, 1)])
def test_bytes_are_one_row_of_at_least_one(shape: tuple[int, ...]) -> None:
    row = {"extras_metadata_json": Tensor("uint8", shape, b"null"[: math.prod(shape)])}
    with pytest.raises(ValueError, match="bytes"):
        raw_bytes(row, "extras_metadata_json")
    assert raw_bytes({"extras_metadata_json": Tensor("uint8", (1, 4), b"null")}, "extras_metadata_json") == b"null"


@pytest.mark.parametrize("length", [0, 1, 2])
@pytest.mark.parametrize("encoding", [-1, 0, 1, 2, 3])
def test_there_is_an_encoding_where_there_are_routes(encoding: int, length: int) -> None:
    numbers = {"routed_experts_encoding": encoding, "routed_len": length}
    row = encode_row(long_chain(1)[1][0]) | {name: Tensor.of("int64", [value]) for name, value in numbers.items()}
    if 0 <= encoding <= 2 and (encoding == 0) == (length == 0):
        assert decode_row(row).routed_len == length
        return
    with pytest.raises(Rejected) as caught:
        decode_row(row)
    assert caught.value.code is Code.INVALID_STAGING_ROW


# ── routes ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("length, dims", [(1, (1, 1)), (1, (2, 3)), (3, (2, 2)), (4, (1, 3))])
def test_sentinels_fill_every_slot(length: int, dims: tuple[int, int]) -> None:
    routes = all_sentinel(length, dims)
    assert (routes.dtype, routes.shape) == ("int16", (length, *dims))
    assert routes.values() == (-1,) * (length * dims[0] * dims[1])


def span(key: str, carry: int, generated: int, staged: int) -> RouteSpan:
    return RouteSpan(
        staging_key=key,
        carry_len=carry,
        generation_len=generated,
        staged_route_len=staged,
        extras_digest_version=EXTRAS_DIGEST_VERSION,
        extras_digest="0" * 64,
    )


def test_a_plan_needs_the_fragments_of_full_and_of_tail_spans() -> None:
    spans = (span("r/a", 2, 1, 3), span("r/b", 2, 2, 2), span("r/c", 1, 1, 0))
    plan = RouteAssemblyPlan("staging", spans, tuple(one.staging_key for one in spans), 9)
    assert fragment_keys(encode_plan(plan)) == ("r/a", "r/b")


def test_experts_may_repeat_only_where_it_is_said() -> None:
    repeated = Tensor.of("int16", [3, 3], (1, 1, 2))
    check_ids(repeated, "r/a", None, allow_repeated_experts=True)
    with pytest.raises(Rejected) as caught:
        check_ids(repeated, "r/a", None, allow_repeated_experts=False)
    assert caught.value.code is Code.FRAGMENT_DUPLICATE_EXPERT


def test_a_published_plan_that_is_none_is_all_sentinel() -> None:
    replayed = execute_published_plan({"schema_version": 1}, {}, (2, 3), 4)
    assert replayed.routes == all_sentinel(4, (2, 3))
    assert replayed.failure == "invalid_route_plan"


@pytest.mark.parametrize("tokens", [(5,), (5, 6, 7)])
def test_link_spans_add_up_to_the_row(tokens: tuple[int, ...]) -> None:
    receipt, calls = long_chain(1)
    row = linearize(receipt, calls)
    (link,) = row.link_spans
    assert link.carry_len + link.generation_len == len(row.token_ids)
    staged: Any = SimpleNamespace(call=calls[0])

    check_link_spans(row, [staged])
    longer = evolve(row, token_ids=(*row.token_ids, *tokens))
    for wrong in (longer, evolve(row, token_ids=row.token_ids[:-1])):
        with pytest.raises(Rejected) as caught:
            check_link_spans(wrong, [staged])
        assert caught.value.code is Code.ROUTE_SPAN_LENGTH_MISMATCH


@pytest.mark.parametrize("other", ["b", "d"])
def test_extras_commitments_are_of_the_chain(other: str) -> None:
    receipt, calls = long_chain(1)
    row = linearize(receipt, calls)
    staged: Any = SimpleNamespace(call=calls[0])
    (commitment,) = row.extras_commitments
    for call_id in (f"a{commitment.model_call_id}", f"x{commitment.model_call_id}", other):
        wrong = evolve(row, extras_commitments=(evolve(commitment, model_call_id=call_id),))
        with pytest.raises(Rejected) as caught:
            check_link_spans(wrong, [staged])
        assert caught.value.code is Code.ROUTE_SPAN_IDENTITY


@pytest.mark.parametrize("last", "9+/")
def test_bits_that_base64_leaves_unused_are_zero(last: str) -> None:
    """The alphabet's order is not that of characters: "+" and "/" come after "9" in one, before it in the other."""
    assert decode_routes("nrlre1:int16:1x1x1:AA8=").values() == (0x0F00,)
    with pytest.raises(Rejected):
        decode_routes(f"nrlre1:int16:1x1x1:AA{last}=")


def test_without_a_number_of_experts_every_int16_is_one() -> None:
    check_ids(Tensor.of("int16", [0, 2**15 - 1], (1, 1, 2)), "r/a", None, allow_repeated_experts=False)
    check_ids(Tensor.of("int16", [0, 2**15 - 1], (1, 1, 2)), "r/a", 2**15, allow_repeated_experts=False)
    with pytest.raises(Rejected):
        check_ids(Tensor.of("int16", [0, 2**15 - 1], (1, 1, 2)), "r/a", 2**15 - 1, allow_repeated_experts=False)


@pytest.mark.parametrize("expert, held", [(-(2**15) - 1, False), (-(2**15), True), (2**15 - 1, True), (2**15, False)])
def test_lists_hold_what_int16_holds(expert: int, held: bool) -> None:
    if held:
        assert decode_routes([[[expert]]]).values() == (expert,)
        return
    with pytest.raises(Rejected) as caught:
        decode_routes([[[expert]]])
    assert caught.value.code is Code.INVALID_ROUTE_ENVELOPE


# ── values ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("value", [10**400, -(10**400), math.inf, math.nan, True, "1", None])
def test_what_is_no_float64_is_no_number(value: object) -> None:
    assert not is_number(value)
    assert is_number(10**300)


# ── media ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("scheme", MEDIA_DIGEST_FIELDS)
def test_a_scheme_is_a_word_and_not_an_object(scheme: str) -> None:
    copied = "".join(list(scheme))
    assert copied is not scheme
    assert media_digest({}, copied) == media_digest({}, scheme)


def test_the_largest_size_is_the_largest_int32() -> None:
    assert MAX_GEOMETRY == 2_147_483_647
    assert image_sizes(Tensor.of("int64", [2_147_483_647, 1], (1, 2))) == [(2_147_483_647, 1)]
    with pytest.raises(ValueError, match="positive int32"):
        image_sizes(Tensor.of("int64", [2_147_483_648, 1], (1, 2)))


@pytest.mark.parametrize("shape", [(1, 0, 3), (0, 1, 3), (2, 1, 3), (1, 3)])
def test_pixels_are_one_batch_of_at_least_one_patch(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="patches, features"):
        check_pixels(Tensor.of("float32", [0.0] * math.prod(shape), shape))


def item(offset: int, ids: list[int], runs: list[list[int]]) -> dict[str, object]:
    return {
        "modality": "image",
        "placeholder_offset": offset,
        "placeholder_length": len(ids),
        "placeholder_digest": placeholder_digest(ids),
        "token_id": 18,
        "embedding_spans": runs,
        "imgs_sizes": [[1, 2]],
    }


def test_a_placeholder_has_a_token() -> None:
    with pytest.raises(ValueError, match="placeholder_length"):
        parse_items([{**item(1, [18], [[1, 1]]), "placeholder_length": 0}])


@pytest.mark.parametrize("digest", ["0" * 64, "f" * 64])
def test_a_placeholder_digest_is_exact(digest: str) -> None:
    described = {**item(1, [7, 18], [[2, 1]]), "placeholder_digest": digest}
    with pytest.raises(ValueError, match="placeholder_digest"):
        check_tokens(parse_items([described]), [5, 7, 18, 5], 0)


@pytest.mark.parametrize("runs", [[[3, 2]], [[4, 1]], [[0, 1]], [[1, 4]], [[2, 3]]])
def test_runs_end_inside_the_placeholder(runs: list[list[int]]) -> None:
    with pytest.raises(ValueError, match="runs inside the placeholder"):
        parse_items([item(1, [7, 18, 18], runs)])


@pytest.mark.parametrize("carry", [[18, 18, 5], [18, 7, 18, 5], [5, 18, 18]])
def test_an_embedding_token_beside_a_placeholder_is_noticed(carry: list[int]) -> None:
    described = item(1, [18], [[1, 1]]) if carry[1] == 18 else item(1, [7, 18], [[2, 1]])
    with pytest.raises(ValueError, match="every position"):
        check_tokens(parse_items([described]), carry, 0)
