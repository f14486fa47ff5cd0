"""Single rules at their edges, on ours and on the spec alike."""

from __future__ import annotations

import json
import math
import tracemalloc
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from attrs import evolve
from tensordict import TensorDict

from rollproof.impl import retained
from rollproof.impl.assembly import RouteFragment, routed_extras_digest
from rollproof.impl.columns import read_ragged
from rollproof.impl.completion import check_completion
from rollproof.impl.group import argument_error
from rollproof.impl.lineage import _reach_a_cycle
from rollproof.impl.outcomes import FinalizedGroup
from rollproof.impl.retained import PrefixRow
from rollproof.impl.rollout import _expect_same
from rollproof.impl.spans import check_items, read_items
from rollproof.spec.completion import check_completion as spec_check_completion
from rollproof.spec.digest import extras_digest
from rollproof.spec.records import Completion, Cut, GroupRequest, LinkSpan, TrainedRow
from rollproof.spec.rejections import Code, Rejected
from rollproof.spec.spans import check_tokens, parse_items, placeholder_digest

# ── completion ──────────────────────────────────────────────────────────────────────────────────────────────────────

CUT = Cut("a", "r", (1, 2), ("r/a",))
ROW = TrainedRow("r", (LinkSpan("z", 1, 2), LinkSpan("b", 2, 3)), (7, 8, 9, 5, 5, 1, 2, 3))
DONE = Completion("a", "b", 2, 1)


@pytest.mark.parametrize(
    "log, codes",
    [
        ([], ["completion_count"]),
        ([DONE], []),
        ([DONE, DONE], ["completion_count"]),
        ([DONE] * 3, ["completion_count"]),
        ([evolve(DONE, prefix_len=1, tail_len=2)], ["token_count"]),
        ([evolve(DONE, prefix_len=3, tail_len=0)], ["empty_tail", "token_count"]),
        ([evolve(DONE, tail_len=2)], ["token_count"]),
        ([evolve(DONE, new_call_id="c")], []),
        ([DONE, evolve(DONE, source_call_id="x")], ["completion_count"]),
    ],
)
def test_a_cut_is_completed_once(log: list[Completion], codes: list[str]) -> None:
    found = check_completion([CUT], log, [ROW], (), ())
    assert [violation.code.code for violation in found] == codes
    assert tuple(found) == spec_check_completion([CUT], log, [ROW], (), ())


# ── groups ──────────────────────────────────────────────────────────────────────────────────────────────────────────

REQUEST = GroupRequest("g", ("g_g0", "g_g1"), ({}, {}), (0.0, 1.0), (False, True))


@pytest.mark.parametrize("field", ["rollout_ids", "receipts", "rewards", "mask_sample"])
@pytest.mark.parametrize("longer", [False, True])
def test_one_argument_per_rollout(field: str, longer: bool) -> None:
    value: tuple[Any, ...] = getattr(REQUEST, field)
    other = (*value, "g_g2" if field == "rollout_ids" else value[0]) if longer else value[:1]
    assert argument_error(REQUEST) is None
    assert "differ in length" in str(argument_error(evolve(REQUEST, **{field: other})))


# ── media ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def item(offset: int, ids: list[int], runs: list[list[int]]) -> dict[str, Any]:
    return {
        "modality": "image",
        "placeholder_offset": offset,
        "placeholder_length": len(ids),
        "placeholder_digest": placeholder_digest(ids),
        "token_id": 18,
        "embedding_spans": runs,
        "imgs_sizes": [[1, 2]],
    }


def test_an_image_has_one_size_also_where_its_word_came_as_text() -> None:
    value = json.loads(json.dumps([{**item(1, [18], [[1, 1]]), "imgs_sizes": [[1, 2], [1, 2]]}]))
    for read in (read_items, parse_items):
        with pytest.raises(ValueError, match="imgs_sizes"):
            read(value)


def readers(runs: list[list[int]]) -> list[Any]:
    value = [item(2, [7, 18, 18, 18, 18, 8], runs)]
    return [lambda: read_items(value), lambda: parse_items(value)]


@pytest.mark.parametrize("runs", [[[3, 4]], [[3, 1], [5, 2]], [[2, 1], [4, 1], [6, 2]], [[2, 6]], [[3, 2], [6, 1]]])
def test_runs_ascend_and_do_not_touch(runs: list[list[int]]) -> None:
    for read in readers(runs):
        assert len(read()) == 1


@pytest.mark.parametrize(
    "runs",
    [
        *([[3, 1], [4, 1]], [[3, 2], [5, 1]], [[3, 2], [4, 1]], [[5, 1], [3, 1]], [[3, 1], [3, 1]]),
        *([[1, 1]], [[7, 2]], [[8, 1]], [[3, 0]], [[3, 1], [7, 2]], [[2, 7]]),
    ],
)
def test_other_runs_are_refused(runs: list[list[int]]) -> None:
    for read in readers(runs):
        with pytest.raises(ValueError, match="embedding_spans"):
            read()


@pytest.mark.parametrize(
    "carry, start, fits",
    [
        ([5, 7, 18, 18, 8, 5], 0, True),
        ([5, 7, 18, 18, 8, 5, 18, 18], 0, True),
        ([18, 5, 7, 18, 18, 8, 5, 18], -1, True),
        ([7, 18, 18, 8], 1, True),
        ([5, 7, 18, 18, 8, 18], 0, False),
        ([18, 7, 18, 18, 8, 5], 0, False),
        ([18, 7, 18, 18, 8], 0, False),
        ([7, 18, 18, 8, 18], 1, False),
    ],
)
def test_embedding_tokens_are_looked_for_inside_and_right_beside(carry: list[int], start: int, fits: bool) -> None:
    value = [item(1, [7, 18, 18, 8], [[2, 2]])]
    with pytest.raises(ValueError, match="no bundle" if fits else "no embedding"):
        check_items(read_items(value), np.array(carry), start, None)
    if fits:
        check_tokens(parse_items(value), carry, start)
    else:
        with pytest.raises(ValueError, match="every position"):
            check_tokens(parse_items(value), carry, start)


# ── routes ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 3), (2, 1, 2)])
@pytest.mark.parametrize("metadata", [b"null", b'{"a": 1, "z": [true]}'])
def test_lists_of_any_rank_digest_as_extras_do(shape: tuple[int, ...], metadata: bytes) -> None:
    """The rank is looked at later: a fragment without dimensions is one integer in the extras."""
    routes = torch.arange(-1, 5, dtype=torch.int16)[: math.prod(shape)].reshape(shape)
    extras = {**(json.loads(metadata) or {}), "routed_experts": routes.tolist()}
    assert routed_extras_digest(RouteFragment(routes, 2, metadata)) == extras_digest(extras)


def test_a_token_of_many_experts_is_hashed_in_parts() -> None:
    """2.3 MB as lists for one token, which is more than a chunk."""
    routes = torch.zeros((1, 2**10, 2**8), dtype=torch.int16)
    assert routed_extras_digest(RouteFragment(routes, 2, b"null")) == extras_digest({"routed_experts": routes.tolist()})
    tracemalloc.start()
    routed_extras_digest(RouteFragment(routes, 2, b"null"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20


@pytest.mark.parametrize("encoding", [-1, 0, 3])
def test_only_what_is_encoded_digests(encoding: int) -> None:
    routes = torch.zeros((1, 1, 1), dtype=torch.int16)
    with pytest.raises(ValueError, match="encoding"):
        routed_extras_digest(RouteFragment(routes, encoding, b"null"))


def test_extras_around_routes_are_nested_as_deep_as_without() -> None:
    routes = torch.zeros((1, 1, 1), dtype=torch.int16)
    deepest = b'{"a":' + b"[" * 63 + b"]" * 63 + b"}"
    assert routed_extras_digest(RouteFragment(routes, 2, deepest)) == extras_digest(
        {**json.loads(deepest), "routed_experts": [[[0]]]}
    )
    with pytest.raises(ValueError, match="nested deeper"):
        routed_extras_digest(RouteFragment(routes, 2, deepest.replace(b"[]", b"[[]]")))


# ── columns ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_token_is_one_value() -> None:
    values, offsets = torch.zeros((3, 2), dtype=torch.int64), torch.tensor([0, 1, 3])
    answer = TensorDict({"x": torch.nested.nested_tensor_from_jagged(values, offsets)}, batch_size=[2])
    with pytest.raises(ValueError, match="2 dimensions"):
        read_ragged(answer, "x", torch.int64)


# ── lineages ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_calls_beyond_the_shared_small_integers_lead_nowhere_and_in_circles() -> None:
    absent = len([0] * 300)
    parents = [-1, absent, *range(1, 298), 299]
    assert _reach_a_cycle(parents).tolist() == [False] * 299 + [True]


# ── rollouts ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("found, subject", [(["b", "b", "c"], "c0"), (["a", "a", "c"], "c1"), (["a", "b", "b"], "c2")])
def test_the_first_row_that_is_another_is_named(found: list[str], subject: str) -> None:
    receipt: Any = SimpleNamespace(call_ids=["c0", "c1", "c2"])
    with pytest.raises(Rejected) as caught:
        _expect_same(receipt, found, ["a", "b", "c"], Code.CALL_ID_MISMATCH)
    assert caught.value.subject == subject
    _expect_same(receipt, ["a", "b", "c"], ["a", "b", "c"], Code.CALL_ID_MISMATCH)


def test_a_group_has_nothing_in_it_until_it_is_said() -> None:
    group = FinalizedGroup(None, 0, 0, [])
    assert (group.canonical_output_tokens, group.valid_row_count, group.total_row_count) == (0, 0, 0)
    assert (group.metrics, group.dropped, group.drop_reason) == ({}, False, None)


# ── retained media ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("shape", [(6, 4, 8), (1, 64, 3), (40,)])
def test_what_has_to_be_laid_out_anew_is_so_piece_by_piece(shape: tuple[int, ...], monkeypatch: Any) -> None:
    monkeypatch.setattr(retained, "_PIECE", 64)
    tensor = torch.arange(2.0 * math.prod(shape)).reshape(*shape, 2)[..., 0]
    pieces = list(retained._pieces(tensor))
    assert len(pieces) > 1
    assert max(piece.nbytes for piece in pieces) <= 64
    assert torch.equal(torch.cat([piece.reshape(-1) for piece in pieces]), tensor.reshape(-1))


@pytest.mark.parametrize("extras", [{"media_spans": []}, {"media_tensor_sha256": "x"}, {"media_tensor_blake3": "x"}])
def test_spans_and_digest_come_together(extras: dict[str, Any]) -> None:
    """One without the other is no row of a cut, nor one that never had media."""
    metadata = json.dumps(extras, separators=(",", ":")).encode()
    nothing = retained.CallMedia([], None)
    with pytest.raises(Rejected) as caught:
        retained.restore(PrefixRow(metadata, extras_digest(extras)), nothing)
    assert caught.value.code is Code.MEDIA_CAPTURE_REJECTED
    assert retained.restore(PrefixRow(b"null", extras_digest(None)), nothing) is None
