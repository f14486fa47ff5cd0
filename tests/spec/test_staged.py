"""Staged rows at the edges of their columns."""

from __future__ import annotations

import math

import pytest

from rollproof.properties.adapters.asking import long_chain
from rollproof.spec.rejections import Code, Rejected
from rollproof.spec.staged import decode_row, encode_row, raw_bytes
from rollproof.spec.tensor import Tensor


@pytest.mark.parametrize("shape", [(), (1,), (4,), (1, 0), (0, 4), (2, 2), (1, 1, 4), (1, 4, 1)])
def test_raw_bytes_are_one_row_of_at_least_one(shape: tuple[int, ...]) -> None:
    row = {"extras_metadata_json": Tensor("uint8", shape, b"null"[: math.prod(shape)])}
    with pytest.raises(ValueError, match="bytes"):
        raw_bytes(row, "extras_metadata_json")
    assert raw_bytes({"extras_metadata_json": Tensor("uint8", (1, 4), b"null")}, "extras_metadata_json") == b"null"


@pytest.mark.parametrize("length", [0, 1, 2])
@pytest.mark.parametrize("encoding", [-1, 0, 1, 2, 3, 4])
def test_staged_row_has_an_encoding_where_it_has_routes(encoding: int, length: int) -> None:
    numbers = {"routed_experts_encoding": encoding, "routed_len": length}
    row = encode_row(long_chain(1)[1][0]) | {name: Tensor.of("int64", [value]) for name, value in numbers.items()}
    if 0 <= encoding <= 3 and (encoding == 0) == (length == 0):
        assert decode_row(row).routed_len == length
        return
    with pytest.raises(Rejected) as caught:
        decode_row(row)
    assert caught.value.code is Code.INVALID_STAGING_ROW
