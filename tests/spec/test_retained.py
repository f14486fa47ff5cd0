"""The retained-media digest byte by byte, cuts and restores (section 7)."""

from __future__ import annotations

import hashlib
import json

import pytest
from attrs import evolve
from cases import HYPOTHESIS, refusal
from hypothesis import given, settings

from rollproof.properties.strategies.named_tensors import HARD_PAIRS, different, digests, equal, valueless
from rollproof.properties.strategies.streams.retained import RETAINED_EDITS, cuts, restores
from rollproof.spec.constants import (
    MEDIA_BLAKE3,
    MEDIA_DIGEST_FIELDS,
    MEDIA_SPANS,
    MEDIA_TENSOR_BLAKE3,
    MEDIA_TENSOR_SHA256,
)
from rollproof.spec.digest import extras_digest
from rollproof.spec.judge.oracle import answer
from rollproof.spec.judge.requests import Accepted, MediaDigest, Refused
from rollproof.spec.judge.views import VALUELESS, Entry, Held, named_values
from rollproof.spec.rejections import Code
from rollproof.spec.retained import (
    CallMedia,
    PrefixRow,
    cut_extras,
    is_media_digest,
    media_digest,
    restore,
    restored_weight_version,
)
from rollproof.spec.spans import placeholder_digest
from rollproof.spec.staged import metadata_json
from rollproof.spec.tensor import ITEM_SIZES, Tensor

PIXELS = Tensor.of("float32", [0.5, -0.0, float("nan")], (1, 1, 3))
SIZES = Tensor.of("int32", [1, 1], (1, 2))
SPANS = [
    {
        "modality": "image",
        "placeholder_offset": 3,
        "placeholder_length": 1,
        "placeholder_digest": placeholder_digest([18]),
        "token_id": 18,
        "embedding_spans": [[3, 1]],
        "imgs_sizes": [[1, 1]],
    }
]
MEDIA = CallMedia(SPANS, {"imgs": PIXELS, "imgs_sizes": SIZES})


def row_of(extras):
    return PrefixRow(metadata_json(extras), extras_digest(extras))


# ── the digest ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_digest_is_what_the_contract_writes_down():
    def written(payload):
        return f"media-sha256-v1:{hashlib.sha256(b'rollproof-media-sha256-v1' + payload).hexdigest()}"

    def u64(*values):
        return b"".join(value.to_bytes(8, "big") for value in values)

    assert media_digest(None) == written(b"\x00")
    assert media_digest({}) == written(b"\x01" + u64(0))
    imgs = u64(4) + b"imgs" + u64(7) + b"float32" + u64(3, 1, 1, 3, 12) + PIXELS.data
    sizes = u64(10) + b"imgs_sizes" + u64(5) + b"int32" + u64(2, 1, 2, 8) + SIZES.data
    assert media_digest({"imgs_sizes": SIZES, "imgs": PIXELS}) == written(b"\x01" + u64(2) + imgs + sizes)
    scalar = u64(2) + "é".encode() + u64(4) + b"bool" + u64(0, 1) + b"\x01"
    assert media_digest({"é": Tensor.of("bool", [True], ())}) == written(b"\x01" + u64(1) + scalar)


def test_media_digest_sorts_names_by_their_bytes():
    one = Tensor.of("uint8", [1])
    names = ["\uffff", "\U00010000", "a", "", "é"]
    assert media_digest(dict.fromkeys(names, one)) == media_digest(dict.fromkeys(sorted(names), one))


def test_every_named_dtype_has_a_digest_of_its_own():
    digests_found = {media_digest({"a": Tensor(dtype, (0,), b"")}) for dtype in ITEM_SIZES}
    assert len(digests_found) == len(ITEM_SIZES)
    assert all(map(is_media_digest, digests_found))


@settings(HYPOTHESIS, max_examples=60)
@given(digests())
def test_is_media_digest_knows_one_form(request):
    value, scheme = answer(request).value, request.scheme
    assert [name for name in MEDIA_DIGEST_FIELDS if is_media_digest(value, name)] == [scheme]
    assert not is_media_digest(value.upper(), scheme)
    assert not is_media_digest(value + "\n", scheme)
    assert not is_media_digest(value.encode(), scheme)


@settings(HYPOTHESIS, max_examples=60)
@given(equal())
def test_how_a_tensor_is_held_does_not_matter(request):
    assert answer(request) == Accepted(True)


@settings(HYPOTHESIS, max_examples=60)
@given(different())
def test_tensors_that_differ_hash_apart(request):
    assert named_values(request.left) != named_values(request.right)
    assert answer(request) == Accepted(False)


@pytest.mark.parametrize("name", HARD_PAIRS)
def test_media_digest_differs_for_pairs_that_hashers_confused(name):
    expected = {
        **dict.fromkeys(
            ("0-dimensional", "conjugated", "negated", "NaN pixels", "one strided element"), Accepted(True)
        ),
        **dict.fromkeys(("quantization", "name that is not a string", "dtype without a name", "null entry"), Refused),
    }.get(name, Accepted(False))
    found = answer(HARD_PAIRS[name])
    assert found == expected or (expected is Refused and found.code == "media_capture_rejected")


@settings(HYPOTHESIS, max_examples=60)
@given(valueless())
def test_media_digest_refuses_tensors_without_bytes(request):
    assert answer(request).code == "media_capture_rejected"


@pytest.mark.parametrize("held", sorted(VALUELESS))
def test_named_values_puts_a_kind_in_place_of_its_value(held):
    entry = Entry("a", Tensor.of("uint8", [1]), held)
    assert named_values((entry,)) == {"a": held}
    assert refusal(media_digest, {"a": held}).code is Code.MEDIA_CAPTURE_REJECTED
    assert named_values((evolve(entry, held=Held.STRIDED),)) == {"a": entry.tensor}


@pytest.mark.parametrize("name", [1, b"a", None, "\ud800", ("a",)])
def test_media_digest_refuses_names_that_are_not_strings(name):
    assert refusal(media_digest, {name: PIXELS}).code is Code.MEDIA_CAPTURE_REJECTED


# ── cut and restore ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_prefix_row_holds_spans_and_digest_and_no_pixels():
    extras = cut_extras({"finish_reason": None}, MEDIA)
    assert extras == {
        "finish_reason": None,
        MEDIA_SPANS: SPANS,
        MEDIA_TENSOR_SHA256: media_digest(MEDIA.tensors),
    }
    other = cut_extras(None, MEDIA, MEDIA_BLAKE3)
    assert other == {MEDIA_SPANS: SPANS, MEDIA_TENSOR_BLAKE3: media_digest(MEDIA.tensors, MEDIA_BLAKE3)}
    assert restore(row_of(other), MEDIA) is MEDIA
    assert cut_extras(None, None) is None
    assert cut_extras({"a": 1}, None) == {"a": 1}
    assert refusal(cut_extras, None, CallMedia([{}], None)).code is Code.MEDIA_CAPTURE_REJECTED
    assert refusal(cut_extras, None, CallMedia([], {"a": None})).code is Code.MEDIA_CAPTURE_REJECTED


@settings(HYPOTHESIS, max_examples=60)
@given(cuts())
def test_pixels_are_staged_once(request):
    found = answer(request)
    if isinstance(found, Accepted):
        present = [row.columns["media_present"].values() == (True,) for row in found.value]
        assert present == [False] * request.cuts + [request.bundle is not None]
        assert len({row.columns["media_imgs"].dtype for row in found.value}) == 1


def test_a_restore_returns_the_fresh_tensors():
    row = row_of(cut_extras({"a": 1}, MEDIA))
    fresh = CallMedia(json.loads(json.dumps(SPANS)), {name: evolve(value) for name, value in MEDIA.tensors.items()})
    assert restore(row, fresh) is fresh
    assert restore(row_of(None), CallMedia()) is None
    assert restore(row_of({"a": 1}), CallMedia([], {})) is None


CUT = cut_extras(None, MEDIA)
DIGEST = CUT[MEDIA_TENSOR_SHA256]


@pytest.mark.parametrize(
    ("row", "fresh", "code"),
    [
        (PrefixRow(b"{}", extras_digest(CUT)), MEDIA, "media_capture_rejected"),
        (PrefixRow(b'{"a":1,"a":1}', extras_digest({"a": 1})), CallMedia(), "media_capture_rejected"),
        (PrefixRow(b"[", extras_digest(None)), CallMedia(), "media_capture_rejected"),
        (row_of(None), MEDIA, "media_capture_rejected"),
        (row_of(None), CallMedia(SPANS, None), "media_capture_rejected"),
        (row_of(None), CallMedia([], {"a": PIXELS}), "media_capture_rejected"),
        (row_of({MEDIA_SPANS: SPANS}), MEDIA, "media_capture_rejected"),
        (row_of({MEDIA_TENSOR_SHA256: DIGEST}), MEDIA, "media_capture_rejected"),
        (row_of({**CUT, MEDIA_SPANS: None}), MEDIA, "media_capture_rejected"),
        (row_of({**CUT, MEDIA_TENSOR_SHA256: DIGEST[-64:]}), MEDIA, "media_capture_rejected"),
        (row_of({**CUT, MEDIA_TENSOR_SHA256: None}), MEDIA, "media_capture_rejected"),
        (
            row_of({**CUT, MEDIA_TENSOR_BLAKE3: media_digest(MEDIA.tensors, MEDIA_BLAKE3)}),
            MEDIA,
            "media_capture_rejected",
        ),
        (row_of({MEDIA_SPANS: SPANS, MEDIA_TENSOR_BLAKE3: DIGEST}), MEDIA, "media_capture_rejected"),
        (row_of(cut_extras(None, MEDIA, MEDIA_BLAKE3)), CallMedia(SPANS, {"imgs": PIXELS}), "retained_media_changed"),
        # A fresh tensor that cannot be hashed comes before other spans, and other spans before other tensors.
        (row_of(CUT), CallMedia([], {"imgs": None}), "media_capture_rejected"),
        (row_of(CUT), CallMedia([], {}), "retained_media_changed"),
        (row_of(CUT), CallMedia(SPANS * 2, MEDIA.tensors), "retained_media_changed"),
        (row_of(CUT), CallMedia([{**SPANS[0], "token_id": True}], MEDIA.tensors), "retained_media_changed"),
        (row_of(CUT), CallMedia(None, MEDIA.tensors), "retained_media_changed"),
        (row_of(CUT), CallMedia(SPANS, None), "retained_media_changed"),
        (row_of(CUT), CallMedia(SPANS, {"imgs": PIXELS}), "retained_media_changed"),
    ],
)
def test_restores_fail_in_order(row, fresh, code):
    assert refusal(restore, row, fresh).code.code == code


@settings(HYPOTHESIS, max_examples=60)
@given(restores())
def test_restore_returns_what_the_cut_saw(request):
    assert isinstance(answer(request), Accepted)
    assert answer(request).value.fresh


@pytest.mark.parametrize("code", RETAINED_EDITS)
def test_restore_refuses_what_the_cut_did_not_see(code):
    @settings(HYPOTHESIS, max_examples=60)
    @given(restores(code))
    def check(request):
        assert answer(request).code == code.code

    check()


def test_null_and_no_tensors_are_two_things_once_there_is_a_digest():
    row = row_of(cut_extras(None, CallMedia([], None)))
    assert restore(row, CallMedia([], None)) == CallMedia([], None)
    assert refusal(restore, row, CallMedia([], {})).code is Code.RETAINED_MEDIA_CHANGED


def test_a_restored_call_is_as_old_as_its_prefix():
    assert restored_weight_version([4, 3, 5]) == 3


def test_media_digest_knows_its_schemes():
    with pytest.raises(ValueError, match="media-md5-v1"):
        media_digest(None, "media-md5-v1")


@pytest.mark.parametrize("scheme", ["x", "", "media-sha256-v2"])
def test_media_have_no_digest_under_another_scheme(scheme):
    assert isinstance(answer(MediaDigest((), scheme)), Refused)
    with pytest.raises(ValueError, match="expected media-sha256-v1 or media-blake3-v1"):
        cut_extras({}, CallMedia([], {}), scheme)


# ── media ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("scheme", MEDIA_DIGEST_FIELDS)
def test_media_digest_takes_its_scheme_by_value(scheme: str) -> None:
    copied = "".join(list(scheme))
    assert copied is not scheme
    assert media_digest({}, copied) == media_digest({}, scheme)
