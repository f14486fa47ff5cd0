"""Section 7 on tensors: the retained-media digest over every way to hold a tensor, cuts, restores and completion."""

from __future__ import annotations

import hashlib
import json
import math
import sys
import tracemalloc
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings

from rollproof.impl import retained
from rollproof.impl.completion import check_completion
from rollproof.impl.retained import DTYPES, CallMedia, PrefixRow, cut_extras, media_digest, restore
from rollproof.properties.adapters.asking import ask
from rollproof.properties.adapters.ours import Ours
from rollproof.properties.adapters.tensors import HOLDERS, from_torch, hold, named_tensors, to_torch
from rollproof.properties.strategies.named_tensors import (
    HARD_PAIRS,
    different,
    digests,
    equal,
    finite,
    valueless,
    valueless_pairs,
)
from rollproof.properties.strategies.rollouts.media import SHAPES, tensors
from rollproof.properties.strategies.streams.completion import COMPLETION_EDITS, completions
from rollproof.properties.strategies.streams.retained import RETAINED_EDITS, cuts, restores
from rollproof.spec.constants import MEDIA_TENSOR_SHA256
from rollproof.spec.digest import extras_digest
from rollproof.spec.judge.oracle import answer
from rollproof.spec.judge.requests import Accepted
from rollproof.spec.judge.views import VALUELESS, Entry, Held
from rollproof.spec.rejections import Code, Rejected
from rollproof.spec.retained import media_digest as spec_digest
from rollproof.spec.tensor import ITEM_SIZES, Tensor

HYPOTHESIS = settings(
    max_examples=60,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
OURS = Ours()
NEEDS_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
CUDA = pytest.param("cuda", marks=[pytest.mark.cuda, NEEDS_CUDA])
PIXELS = torch.tensor([[[0.5, -0.0, float("nan")]]])


def refusal(function, *arguments):
    with pytest.raises(Rejected) as caught:
        function(*arguments)
    return caught.value.code


def agrees(request):
    """Check that ours and the spec answer alike, down to the code of a refusal."""
    expected, actual = answer(request), ask(OURS, request)
    if isinstance(expected, Accepted):
        assert actual == expected
    else:
        assert actual.code == expected.code


# ── against the spec ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "requests",
    [
        digests(),
        equal(),
        different(),
        valueless(),
        valueless_pairs(),
        cuts(),
        restores(),
        *map(restores, RETAINED_EDITS),
        completions(),
        *map(completions, COMPLETION_EDITS),
    ],
)
def test_ours_answers_as_the_spec_does(requests):
    HYPOTHESIS(given(requests)(agrees))()


@pytest.mark.parametrize("name", HARD_PAIRS)
def test_media_digest_tells_hard_pairs_apart(name):
    agrees(HARD_PAIRS[name])


@pytest.mark.filterwarnings("ignore")
def test_all_dtypes_of_the_contract_and_no_others():
    assert sorted(DTYPES.values()) == sorted(ITEM_SIZES)
    known = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    for dtype in known - set(DTYPES):
        try:
            tensor = torch.empty(2, dtype=dtype)
        except (RuntimeError, TypeError):
            continue
        assert refusal(media_digest, {"a": tensor}) is Code.MEDIA_CAPTURE_REJECTED


@pytest.mark.parametrize("dtype", ITEM_SIZES)
@pytest.mark.parametrize("held", [held for held in HOLDERS if held not in VALUELESS])
def test_every_dtype_in_every_layout(dtype, held):
    for shape in SHAPES:
        count = torch.Size(shape).numel() * ITEM_SIZES[dtype]
        data = bytes((index * 7 + 3) % (2 if dtype == "bool" else 256) for index in range(count))
        value = Tensor(dtype, shape, data)
        if held in (Held.CONJUGATED, Held.NEGATED):
            value = finite(value) if dtype != "bool" else value
        assert media_digest({"a": hold(Entry("a", value, held))}) == spec_digest({"a": value})


@HYPOTHESIS
@given(tensors())
def test_tensors_go_into_torch_and_back(value):
    assert from_torch(to_torch(value)) == value
    assert media_digest({"a": to_torch(value)}) == spec_digest({"a": value})


# ── how it is read ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def hashed(monkeypatch):
    """Return the memory that is hashed, piece by piece."""
    pieces = []
    sha256 = hashlib.sha256

    class Spy:
        def __init__(self, data=b""):
            self.inner = sha256(data)

        def update(self, data):
            if isinstance(data, memoryview):
                pieces.append(data)
            self.inner.update(data)

        def hexdigest(self):
            return self.inner.hexdigest()

    monkeypatch.setattr(retained, "hashlib", SimpleNamespace(sha256=Spy))
    return pieces


@pytest.mark.parametrize("view", [lambda one: one, lambda one: one[1:], lambda one: one.reshape(2, -1)])
def test_media_digest_hashes_contiguous_tensors_where_they_are(hashed, view):
    tensor = view(torch.arange(64, dtype=torch.int16))
    assert media_digest({"a": tensor}) == spec_digest({"a": from_torch(tensor)})
    assert [torch.frombuffer(piece, dtype=torch.uint8).data_ptr() for piece in hashed] == [tensor.data_ptr()]


@pytest.mark.parametrize("shape", [(1 << 24,), (1, 1 << 24), (4096, 4096)])
def test_an_expanded_view_is_never_copied_as_a_whole(monkeypatch, shape):
    monkeypatch.setattr(retained, "_PIECE", 2**16)
    tracemalloc.start()
    digest = media_digest({"a": torch.tensor([7], dtype=torch.uint8).expand(shape)})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**22
    assert digest == media_digest({"a": torch.full(shape, 7, dtype=torch.uint8)})


def test_media_digest_hashes_pieces_in_row_major_order(monkeypatch):
    monkeypatch.setattr(retained, "_PIECE", 16)
    tensor = torch.arange(5 * 7 * 3, dtype=torch.int32).reshape(3, 7, 5).permute(2, 0, 1)
    assert media_digest({"a": tensor}) == spec_digest({"a": from_torch(tensor)})
    conjugated = torch.complex(torch.randn(9, 3), torch.randn(9, 3)).conj()
    assert media_digest({"a": conjugated}) == spec_digest({"a": from_torch(conjugated)})


def test_big_endian_hosts_hash_the_same_bytes(monkeypatch):
    for dtype in DTYPES:
        tensor = torch.arange(1, 7, dtype=torch.uint8).repeat(dtype.itemsize).view(dtype)
        expected = media_digest({"a": tensor})
        raw = tensor.view(torch.uint8).reshape(len(tensor), -1)
        unit = raw.shape[1] // (2 if dtype.is_complex else 1)
        swapped = raw.reshape(-1, unit).flip(1).reshape(-1).view(dtype)
        with monkeypatch.context() as patch:
            patch.setattr(sys, "byteorder", "big")
            assert media_digest({"a": swapped}) == expected


@pytest.mark.parametrize("device", ["cpu", CUDA])
def test_devices_do_not_matter(device):
    tensor = torch.randn(33, 5).to(torch.bfloat16)
    expected = spec_digest({"a": from_torch(tensor)})
    for moved in (tensor.to(device), tensor.t().contiguous().to(device).t(), torch.nn.Parameter(tensor.to(device))):
        assert media_digest({"a": moved}) == expected


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "make",
    [
        lambda: [PIXELS],
        lambda: "imgs",
        lambda: {"a": PIXELS, 1: PIXELS},
        lambda: {"\ud800": PIXELS},
        lambda: {"a": torch._neg_view(torch.zeros(2, dtype=torch.float8_e5m2))},
        lambda: {"a": torch._efficientzerotensor((2,))},
        lambda: {"a": torch.nested.nested_tensor([torch.ones(1), torch.ones(2)])},
        lambda: {"a": torch.eye(2).to_sparse_csr()},
        lambda: {"a": torch.zeros(2, dtype=torch.complex32)},
        lambda: {"a": PIXELS.numpy()},
    ],
    ids=["list", "text", "name", "surrogate", "negated float8", "zero", "nested", "sparse", "complex32", "array"],
)
def test_what_cannot_be_hashed_is_refused_by_name(make):
    assert refusal(media_digest, make()) is Code.MEDIA_CAPTURE_REJECTED


def test_bfloat16_beyond_float16_and_nan_pixels():
    large = [torch.tensor([value], dtype=torch.bfloat16) for value in (70000.0, 80000.0)]
    assert torch.equal(large[0].to(torch.float16), large[1].to(torch.float16))
    assert media_digest({"a": large[0]}) != media_digest({"a": large[1]})
    fresh = CallMedia([], {"imgs": PIXELS.clone()})
    row = prefix_row(cut_extras(None, CallMedia([], {"imgs": PIXELS})))
    assert not torch.equal(fresh.tensors["imgs"], PIXELS)
    assert restore(row, fresh) is fresh


def prefix_row(extras):
    from rollproof.impl.digest import extras_digest
    from rollproof.impl.staged_row import metadata_json

    return PrefixRow(metadata_json(extras), extras_digest(extras))


def test_cuts_hold_a_digest_and_no_tensors():
    extras = cut_extras({"a": 1}, CallMedia([], {"imgs": PIXELS}))
    assert extras[MEDIA_TENSOR_SHA256] == media_digest({"imgs": PIXELS})
    assert not [value for value in extras.values() if isinstance(value, torch.Tensor)]
    assert cut_extras(None, None) is None
    assert cut_extras({"a": 1}, None) == {"a": 1}


def test_entries_may_be_none_at_all():
    assert named_tensors(None) is None
    assert media_digest(named_tensors(())) == media_digest({})
    assert check_completion([], [], [], (), ()) == []


@pytest.mark.parametrize("shape", [(6, 4, 8), (1, 64, 3), (40,)])
def test_media_digest_lays_out_strided_tensors_piece_by_piece(hashed, monkeypatch, shape):
    monkeypatch.setattr(retained, "_PIECE", 64)
    tensor = torch.arange(2.0 * math.prod(shape)).reshape(*shape, 2)[..., 0]
    assert media_digest({"a": tensor}) == spec_digest({"a": from_torch(tensor)})
    assert len(hashed) > 1
    assert max(piece.nbytes for piece in hashed) <= 64


@pytest.mark.parametrize("extras", [{"media_spans": []}, {"media_tensor_sha256": "x"}, {"media_tensor_blake3": "x"}])
def test_spans_and_digest_come_together(extras: dict[str, Any]) -> None:
    """One without the other is neither a row of a cut nor one that never had media."""
    metadata = json.dumps(extras, separators=(",", ":")).encode()
    nothing = retained.CallMedia([], None)
    with pytest.raises(Rejected) as caught:
        retained.restore(PrefixRow(metadata, extras_digest(extras)), nothing)
    assert caught.value.code is Code.MEDIA_CAPTURE_REJECTED
    assert retained.restore(PrefixRow(b"null", extras_digest(None)), nothing) is None
