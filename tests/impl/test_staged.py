"""Sections 5 and 9: decoding a data plane's answer, in every layout and with every kind of damage (D17)."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch
from tensordict import NonTensorStack, TensorDict

from rollproof.impl.lineage import verify
from rollproof.impl.records import read_receipt
from rollproof.impl.staged import base_columns, decode
from rollproof.properties.adapters.tensors import from_torch
from rollproof.spec.constants import SCALAR_COLUMNS
from rollproof.spec.lineage import linearize
from rollproof.spec.receipt import parse_receipt
from rollproof.spec.rejections import Code, Rejected
from rollproof.spec.staged import decode_row

KEYS = ["g_g0/c0", "g_g0/c1"]


@pytest.fixture
def calls(make):
    return make.two_calls()


@pytest.fixture
def answer(make, calls):
    """Return a batched read of two calls of 4 and 3 tokens, as the in-memory data plane answers it."""
    return make.plane_of(calls).get_samples([f"g_g0/{call.model_call_id}" for call in calls], "staging", base_columns())


def damaged(answer: TensorDict, **columns) -> TensorDict:
    return TensorDict(dict(answer.items()) | columns, batch_size=answer.batch_size)


def spec_refusal(answer: TensorDict, keys: list[str], **options) -> str:
    """What the spec says of the first bad row of the same answer."""
    columns = {name: column.unbind() for name, column in answer.items()}
    for index, key in enumerate(keys):
        row = {name: from_torch(rows[index][None]) for name, rows in columns.items()}
        try:
            decode_row(row, **options)
        except Rejected as rejected:
            return f"{key}: {rejected.detail}"
    return "no row is bad"


def refusal(answer: TensorDict, **options) -> str:
    with pytest.raises(Rejected) as found:
        decode(answer, **options)
    assert found.value.code is Code.INVALID_STAGING_ROW
    return found.value.detail


def jagged(rows: list, dtype: torch.dtype) -> torch.Tensor:
    return torch.nested.as_nested_tensor([torch.tensor(row, dtype=dtype) for row in rows], layout=torch.jagged)


def uint8(*rows: bytes) -> torch.Tensor:
    return jagged([list(row) for row in rows], torch.uint8)


def test_decode_reads_all_columns(answer, calls):
    columns = decode(answer)
    assert len(columns) == 2
    assert columns.token_ids.tolist() == [10, 11, 12, 13, 20, 21, 22]
    assert columns.offsets.tolist() == [0, 4, 7]
    assert columns.generated.tolist() == [False, False, True, True, False, True, True]
    assert columns.fields["parent_call_id"].tolist() == [None, "c0"]
    assert columns.fields["mode"].tolist() == ["text", "token_in"]
    assert [row.tobytes().hex() for row in columns.fields["digest"]] == [call.digest for call in calls]
    assert columns.extras_metadata_json == [b"null", b"null"]
    assert columns.routed_experts is None


def test_every_layout_decodes_alike(make, calls, answer):
    expected = linearize(parse_receipt(make.receipt_of(calls)), calls)
    receipt = read_receipt(make.receipt_of(calls))

    def offset(column: torch.Tensor) -> torch.Tensor:
        if not column.is_nested:
            return column
        values = torch.cat([column.values()[:1], column.values(), column.values()[:1]])
        return torch.nested.nested_tensor_from_jagged(values, column.offsets() + 1)

    def with_holes(column: torch.Tensor) -> torch.Tensor:
        if not column.is_nested:
            return column
        rows = [torch.cat([row, row[:1]]) for row in column.unbind()]
        offsets = torch.tensor([0, *np.cumsum([len(row) for row in rows]).tolist()])
        return torch.nested.nested_tensor_from_jagged(torch.cat(rows), offsets, lengths=offsets.diff() - 1)

    def strided(column: torch.Tensor) -> torch.Tensor:
        return torch.nested.as_nested_tensor(list(column.unbind())) if column.is_nested else column

    layouts = {
        "queue": lambda column: column,
        "offset": offset,
        "holes": with_holes,
        "strided": strided,
        "stack": lambda column: NonTensorStack(*column.unbind()),
        "wide scalars": lambda column: column if column.is_nested else column[:, None],
        "jagged scalars": lambda column: (
            column
            if column.is_nested
            else torch.nested.as_nested_tensor([row[None] for row in column], layout=torch.jagged)
        ),
        "gradients": lambda column: column.requires_grad_() if column.is_floating_point() else column,
        "read only": lambda column: column.detach(),
    }
    for name, layout in layouts.items():
        changed = {key: layout(column) for key, column in answer.items()}
        assert verify(receipt, decode(damaged(answer, **changed))).record() == expected, name


def test_dense_answers(make):
    calls = [make.add_call([], [1, 2, 3], 1, rollout_id=f"g_g{index}") for index in range(3)]
    keys = [f"g_g{index}/c0" for index in range(3)]
    answer = make.plane_of(calls).get_samples(keys, "staging", base_columns())
    dense = {
        name: torch.stack(list(column.unbind())) if column.is_nested else column for name, column in answer.items()
    }
    columns = decode(damaged(answer, **dense))
    assert columns.offsets.tolist() == [0, 3, 6, 9]
    assert columns.token_ids.tolist() == [1, 2, 3] * 3


def test_missing_columns(answer):
    for name in base_columns():
        rest = {key: column for key, column in answer.items() if key != name}
        assert name in refusal(TensorDict(rest, batch_size=[2]))


def test_wrong_dtypes(answer):
    for name in base_columns():
        column = answer.get(name)
        other = torch.int16 if column.dtype is not torch.int16 else torch.int32
        assert name in refusal(damaged(answer, **{name: column.to(other)}))
        mixed = list(column.unbind())
        assert name in refusal(damaged(answer, **{name: NonTensorStack(mixed[0], mixed[1].to(other))}))


def test_wrong_shapes(answer):
    for name in base_columns():
        column = answer.get(name)
        rows = [row.reshape(-1, 1) for row in column.unbind()]
        assert name in refusal(damaged(answer, **{name: NonTensorStack(*rows, batch_size=[2])}))
        assert name in refusal(damaged(answer, **{name: torch.zeros((2, 2, 2), dtype=column.dtype)}))
        assert name in refusal(damaged(answer, **{name: NonTensorStack("a", "b")}))
    scalars = torch.zeros(2, dtype=torch.int64)
    assert "token_ids_delta" in refusal(damaged(answer, token_ids_delta=scalars))
    for name in SCALAR_COLUMNS:
        wide = answer.get(name)[:, None].repeat(1, 2)
        assert name in refusal(damaged(answer, **{name: wide}))
        first = answer.get(name)[0].item()
        assert refusal(damaged(answer, **{name: jagged([[first], [first, first]], torch.int64)})).startswith(
            f"row 1: {name}"
        )


@pytest.mark.parametrize(
    "columns",
    [
        {"capture_mode": torch.tensor([0, 2])},
        {"capture_mode": torch.tensor([1, 1])},
        {"capture_mode": torch.tensor([-1, 1])},
        {"schema_version": torch.tensor([2, 3])},
        {"digest_version": torch.tensor([1, 2])},
        {"extras_digest_version": torch.tensor([1, 2])},
        {"prev_len": torch.tensor([0, -1])},
        {"prev_len": torch.tensor([0, 5])},
        {"cum_len": torch.tensor([4, 8])},
        {"cum_len": torch.tensor([4, -(2**63)])},
        {"weight_version": torch.tensor([-1, 0])},
        {"delta_len": torch.tensor([4, 2])},
        {"routed_experts_encoding": torch.tensor([0, 3])},
        {"routed_experts_encoding": torch.tensor([0, 1])},
        {"routed_len": torch.tensor([0, 3])},
        {"routed_len": torch.tensor([0, 1]), "routed_experts_encoding": torch.tensor([0, 4])},
        {"routed_len": torch.tensor([0, 1]), "routed_experts_encoding": torch.tensor([0, -1])},
        {"routed_len": torch.tensor([0, -1]), "routed_experts_encoding": torch.tensor([0, 1])},
        {"parent_call_id_present": torch.tensor([True, True])},
        {"parent_call_id_present": torch.tensor([False, False])},
        {"chain_hash_present": torch.tensor([True, False])},
        {"cumulative_hash_present": torch.tensor([False, True])},
        {"token_ids_delta": jagged([[10, 11, 12, -1], [20, 21, 22]], torch.int64)},
        {"token_ids_delta": jagged([[10, 11, 12], [20, 21, 22, 13]], torch.int64)},
        {"token_mask_delta": jagged([[0, 0, 1, 1], [-0.0, 1, 1]], torch.float32)},
        {"token_mask_delta": jagged([[0, 0, 1, 1], [0, 0.5, 1]], torch.float32)},
        {"generation_logprobs_delta": jagged([[0, 0, -1, -1], [-0.0, -1, -1]], torch.float32)},
        {"generation_logprobs_delta": jagged([[0, 0, -1, float("nan")], [0, -1, -1]], torch.float32)},
        {"generation_logprobs_delta": jagged([[0, 0, -1, float("-inf")], [0, -1, -1]], torch.float32)},
        {"generation_logprobs_delta": jagged([[0, -1, -1, -1], [0, -1, -1]], torch.float32)},
        {"rollout_id_utf8": uint8(b"a/b", b"a/b")},
        {"rollout_id_utf8": uint8(b"\xff", b"r")},
        {"model_call_id_utf8": uint8(b"c0", "\ud800".encode("utf-8", "surrogatepass"))},
        {"model_call_id_utf8": uint8(b"c0", b"")},
        {"parent_call_id_utf8": uint8(b"\x00\x00", b"c0")},
        {"parent_call_id_utf8": uint8(b"\x01", b"c0")},
        {"extras_metadata_json": uint8(b"null", b"")},
        {"digest_bytes": torch.zeros((2, 31), dtype=torch.uint8)},
        {"chain_hash_bytes": uint8(b"0" * 32, b"0" * 33)},
    ],
)
def test_rows_that_break_a_rule_are_named_as_the_spec_names_them(answer, columns):
    """The key of the first bad row, the first rule it breaks, the value, and what was expected."""
    bad = damaged(answer, **columns)
    key, field, rule = refusal(bad, keys=KEYS).split(": ", 2)
    by_spec = spec_refusal(bad, KEYS)
    assert [key, field] == by_spec.split(": ", 2)[:2]
    assert rule.startswith("got ")
    assert ", expected " in rule


def test_the_first_bad_row_is_found_among_many(make):
    calls: list = []
    for index in range(7):
        make.add_call(calls, [1, 2, 3], 1, call_id=f"c{index}")
    keys = [f"g_g0/c{index}" for index in range(7)]
    answer = make.plane_of(calls).get_samples(keys, "staging", base_columns())
    for bad in range(7):
        delta_len, weight_version = answer.get("delta_len").clone(), answer.get("weight_version").clone()
        delta_len[bad:], weight_version[:bad] = 4, 0
        changed = damaged(answer, delta_len=delta_len, weight_version=weight_version)
        assert refusal(changed, keys=keys) == f"{keys[bad]}: token_ids_delta: got 3, expected delta_len 4 tokens"
        if bad:
            weight_version[bad - 1] = -1  # an earlier row that can be read, and breaks a rule
            assert refusal(changed, keys=keys).startswith(f"{keys[bad - 1]}: weight_version: got -1, expected ")


def test_a_missing_column_is_of_no_row(answer):
    rest = {name: column for name, column in answer.items() if name != "digest_bytes"}
    found = refusal(TensorDict(rest, batch_size=[2]), keys=KEYS)
    assert found == "g_g0/c0 and 1 more: digest_bytes: got None, expected a column"


def test_decode_checks_ids_against_the_vocabulary(answer):
    assert len(decode(answer, vocab_size=23)) == 2
    found = refusal(answer, vocab_size=22, keys=KEYS)
    assert found == "g_g0/c1: token_ids_delta[2]: got 22, expected an id below the vocabulary size 22"
    assert found == spec_refusal(answer, KEYS, vocab_size=22)


def test_a_refusal_names_the_row(answer):
    damage = {"generation_logprobs_delta": jagged([[0, 0, -1, -1], [0, -1, float("inf")]], torch.float32)}
    assert refusal(damaged(answer, **damage)).startswith("row 1: generation_log_probs_delta[2]: got inf")


def test_media_flags(answer):
    digests = torch.tensor(list(hashlib.sha256(b"null").digest()), dtype=torch.uint8).repeat(2, 1)
    present, frames = torch.tensor([True, False]), torch.tensor([True, False])
    media = {"media_present": present, "media_has_frames": frames, "media_metadata_digest": digests}
    columns = decode(damaged(answer, **media), media=True)
    assert columns.media_present.tolist() == [True, False]
    assert columns.media_has_frames.tolist() == [True, False]
    assert "media_present" in refusal(answer, media=True)
    assert "media_has_frames" in refusal(damaged(answer, **media | {"media_present": ~present}), media=True)
    assert "media_metadata_digest" in refusal(
        damaged(answer, **media | {"media_metadata_digest": digests + 1}), media=True
    )
