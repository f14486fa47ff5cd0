"""Staged calls as columns: from a data plane's answer (section 9), or from single records, checked alike (D17).

Nothing is decoded per token. Metadata rules are array expressions over the calls, token rules over all tokens of all
calls at once. Extras, routes and pixels are not decoded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, Final

import numpy as np
import torch
from attrs import field, frozen
from numpy.typing import NDArray

from rollproof.impl.checks import (
    DIGESTS,
    LENGTHS,
    ROLLOUT_ID,
    VERSIONS,
    as_hex,
    earliest,
    fault,
    first_of,
    is_hash,
    is_length,
    is_text,
    object_columns,
    plain,
    position_rules,
)
from rollproof.impl.columns import (
    Answer,
    Columns,
    EncodedTokens,
    Flags,
    HeldRows,
    Ints,
    MissingColumn,
    Ragged,
    column_rows,
    objects,
    ragged,
    read_bytes,
    read_digests,
    read_ragged,
    read_scalars,
    read_texts,
)
from rollproof.impl.sampler import read_topk
from rollproof.spec.constants import (
    BASE_COLUMNS,
    CAPTURE_MODES,
    DIGEST_BYTES,
    FLAG_COLUMNS,
    MEDIA_FLAG_COLUMNS,
    RESERVED_ROLLOUT_ID,
    ROUTE_ENCODING_ATTACHMENT,
    ROUTE_ENCODING_NONE,
    ROUTED_EXPERTS,
    SCALAR_COLUMNS,
    TOKEN_COLUMNS,
    TOPK_COLUMNS,
)
from rollproof.spec.records import ReassemblerConfig, StagedCall
from rollproof.spec.rejections import Code, Rejected

FIELDS: Final = ("rollout_id", "model_call_id", "parent_call_id", "mode", *LENGTHS, *DIGESTS, *VERSIONS)
"""The fields of ``StagedColumns.fields``."""

_MODES: Final = objects(CAPTURE_MODES)
_ONE_BITS: Final = np.float32(1.0).view(np.uint32)
_NO_PARENT: Final = objects(["\x00"])  # a bare str would lose its NUL in a comparison


@frozen(eq=False, slots=False)
class StagedColumns:
    """C staged calls with T tokens in all, checked against sections 1 and 3.

    The digests are as staged: section 4 checks that a call's content gives its digest.
    """

    fields: Columns
    """Per field of ``FIELDS`` its values over the calls: objects for texts, int64, uint8 ``[C, 32]`` for digests."""
    token_ids: Ints
    token_mask: NDArray[np.float32]
    logprobs: NDArray[np.float32]
    offsets: Ints
    """``[C + 1]``: call ``i`` has the tokens from offsets[i] to offsets[i + 1] of the three token columns."""
    extras_metadata_json: Sequence[bytes] = ()
    route_encodings: Ints = field(factory=lambda: np.zeros(0, dtype=np.int64))
    routed_lens: Ints = field(factory=lambda: np.zeros(0, dtype=np.int64))
    media_present: Flags = field(factory=lambda: np.zeros(0, dtype=np.bool_))
    media_has_frames: Flags = field(factory=lambda: np.zeros(0, dtype=np.bool_))
    routed_experts: Any = None
    """The batched route column as the data plane answered it, unchecked; None where the answer has none."""
    topk: dict[str, list[NDArray[Any]]] = field(factory=dict)
    """The sampler columns by name, one array per call, where they were read (section 12)."""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @cached_property
    def encoded(self) -> EncodedTokens:
        """The token columns in digest byte order, encoded once for all digests."""
        return EncodedTokens.of(self.token_ids, self.token_mask, self.logprobs, self.offsets)

    @cached_property
    def generated(self) -> Flags:
        """``[T]``: whether the policy generated the token (mask 1.0)."""
        return np.equal(self.token_mask.view(np.uint32), _ONE_BITS)


# ── from the wire ───────────────────────────────────────────────────────────────────────────────────────────────────


def base_columns(config: ReassemblerConfig | None = None) -> list[str]:
    """Return the columns that one base read requests."""
    media, topk = (False, 0) if config is None else (config.capture_media, config.top_logprobs)
    return [*BASE_COLUMNS, *(MEDIA_FLAG_COLUMNS if media else ()), *(TOPK_COLUMNS if topk else ())]


def decode(
    answer: Answer,
    *,
    media: bool = False,
    vocab_size: int | None = None,
    keys: Sequence[str] = (),
    topk: bool = False,
) -> StagedColumns:
    """Return the rows of a batched read, in its order.

    Tensors may be dense or jagged and on any device. Raises ``Rejected(INVALID_STAGING_ROW)`` if a column is missing,
    has a wrong dtype or size, breaks a rule of sections 1 or 3 or contradicts another (D17), and nothing else. The
    reason names the first such row, by its key where ``keys`` are given and else by its position, and the first rule
    that it breaks.
    """
    try:
        columns = _read(answer, media=media, topk=topk)
        found = _first_fault(columns, vocab_size)
    except MissingColumn as error:
        found = -1, str(error)
    except ValueError as error:
        found = _first_unreadable(answer, media, vocab_size, topk) or (-1, str(error))
    if found is None:
        return columns
    row, text = found
    names = keys or [f"row {index}" for index in range(answer.batch_size[0])] or ["no row"]
    raise Rejected(Code.INVALID_STAGING_ROW, f"{first_of(names) if row < 0 else names[row]}: {text}")


def _first_fault(columns: StagedColumns, vocab_size: int | None) -> tuple[int, str] | None:
    """Return the first row that breaks a rule, and the first rule that it breaks, in the spec's order."""
    rules = (_call_fault(columns), _token_fault(columns), _vocabulary_fault(columns, vocab_size), _wire_fault(columns))
    return min((found for found in rules if found is not None), key=lambda found: found[0], default=None)


def _first_unreadable(answer: Answer, media: bool, vocab_size: int | None, topk: bool) -> tuple[int, str] | None:
    """Return the first row that is at fault by itself, and why; None where no single row is.

    Halves the rows that the first fault must be among: reading costs more per column than per row.
    """

    def fault_of(first: int, count: int) -> tuple[int, str] | None:
        rows = HeldRows({name: column[first : first + count] for name, column in columns.items()}, count)
        try:
            return _first_fault(_read(rows, media=media, topk=topk), vocab_size)
        except ValueError as error:
            return 0, str(error)

    try:
        columns = {
            str(name): column_rows(column, str(name)) for name, column in answer.items() if name != ROUTED_EXPERTS
        }
        first, count = 0, answer.batch_size[0]
        while count > 1:
            half = count // 2
            if fault_of(first, half) is None:
                first, count = first + half, count - half
            else:
                count = half
        found = fault_of(first, count)
    except (ValueError, RuntimeError, NotImplementedError, IndexError):
        return None
    return None if found is None else (first, found[1])


def _read(answer: Answer, *, media: bool, topk: bool) -> StagedColumns:
    """Return the columns, each with the right dtype and shape, in the spec's order. Raises ``ValueError``."""
    scalars = {name: read_scalars(answer, name, torch.int64) for name in SCALAR_COLUMNS}
    modes = scalars["capture_mode"]
    _expect_rows((modes == 0) | (modes == 1), "capture_mode", modes, "0 or 1")
    fields: dict[str, NDArray[Any]] = {
        "rollout_id": objects(read_texts(answer, "rollout_id_utf8")),
        "model_call_id": objects(read_texts(answer, "model_call_id_utf8")),
        "parent_call_id": _parents(answer),
        "mode": _MODES[modes],
    }
    fields |= {name: scalars[name] for name in (*LENGTHS, *VERSIONS)}
    tokens = [_tokens(answer, name, scalars["delta_len"]) for name in TOKEN_COLUMNS]
    for name in DIGESTS:
        if f"{name}_present" in FLAG_COLUMNS:
            present = read_scalars(answer, f"{name}_present", torch.bool)
            _expect_rows(present, f"{name}_present", present, "True")
        fields[name] = read_digests(answer, f"{name}_bytes", DIGEST_BYTES)
    metadata = read_bytes(answer, "extras_metadata_json")
    media_present = has_frames = np.zeros(len(modes), dtype=np.bool_)
    if media:
        media_present, has_frames = (read_scalars(answer, name, torch.bool) for name in MEDIA_FLAG_COLUMNS[:2])
        recorded = read_digests(answer, MEDIA_FLAG_COLUMNS[2], DIGEST_BYTES)
        _expect_recorded(recorded, metadata)
    return StagedColumns(
        fields=fields,
        token_ids=tokens[0].values,
        token_mask=tokens[1].values,
        logprobs=tokens[2].values,
        offsets=tokens[0].offsets,
        extras_metadata_json=metadata,
        route_encodings=scalars["routed_experts_encoding"],
        routed_lens=scalars["routed_len"],
        media_present=media_present,
        media_has_frames=has_frames,
        routed_experts=answer.get(ROUTED_EXPERTS, None),
        topk=read_topk(answer) if topk else {},
    )


def _tokens(answer: Answer, name: str, delta_lens: Ints) -> Ragged:
    column = read_ragged(answer, name, getattr(torch, TOKEN_COLUMNS[name]))
    wrong = column.lengths != delta_lens
    if np.count_nonzero(wrong):
        row = int(wrong.argmax())
        raise ValueError(fault(name, int(column.lengths[row]), f"delta_len {delta_lens[row]} tokens"))
    return column


def _expect_recorded(recorded: NDArray[np.uint8], metadata: Sequence[bytes]) -> None:
    actual = b"".join(hashlib.sha256(row).digest() for row in metadata)
    if actual == recorded.tobytes():
        return
    expected = np.frombuffer(actual, dtype=np.uint8).reshape(-1, DIGEST_BYTES)
    row = int((expected != recorded).any(axis=1).argmax())
    raise ValueError(fault(MEDIA_FLAG_COLUMNS[2], as_hex(recorded[row]), "the SHA-256 of extras_metadata_json"))


def _parents(answer: Answer) -> NDArray[Any]:
    """Return the parent call ids, None where the flag says that there is none; then the column holds one zero byte."""
    present = read_scalars(answer, "parent_call_id_present", torch.bool)
    parents = objects(read_texts(answer, "parent_call_id_utf8"))
    _expect_rows(
        present | (parents == _NO_PARENT), "parent_call_id_utf8", parents, "one zero byte for an absent parent"
    )
    parents[~present] = None
    return parents


def _expect_rows(holds: Flags, name: str, values: NDArray[Any], expected: str) -> None:
    """Raise ``ValueError`` with the first row's value that does not hold."""
    if np.count_nonzero(holds) < len(holds):
        raise ValueError(fault(name, plain(values[holds.argmin()]), expected))


def _wire_fault(columns: StagedColumns) -> tuple[int, str] | None:
    """Return the first row whose wire columns beside the call's own fields contradict each other, and how."""
    encodings, lengths = columns.route_encodings, columns.routed_lens
    known = (encodings >= ROUTE_ENCODING_NONE) & (encodings <= ROUTE_ENCODING_ATTACHMENT)
    contradicts = (encodings == ROUTE_ENCODING_NONE) != (lengths == 0)
    values = {
        "routed_experts_encoding": encodings,
        "routed_len": lengths,
        "media_has_frames": columns.media_has_frames,
    }
    rules = (
        ("routed_experts_encoding: expected 0, 1, 2 or 3", ~known),
        ("routed_len: expected a length", lengths < 0),
        ("routed_len: expected 0 iff no encoding", contradicts),
        ("media_has_frames: expected False for a row without media", columns.media_has_frames & ~columns.media_present),
    )
    return _with_value(earliest(rules), values)


def _with_value(found: tuple[int, str] | None, values: Columns) -> tuple[int, str] | None:
    """Put the row's value into a fault whose rule reads ``field: expected …``."""
    if found is None:
        return None
    row, rule = found
    name, _, expected = rule.partition(": expected ")
    return row, fault(name, plain(values[name][row]), expected)


# ── the rules of sections 1 and 3 ───────────────────────────────────────────────────────────────────────────────────


def _call_fault(columns: StagedColumns) -> tuple[int, str] | None:
    return _with_value(earliest(_call_rules(columns)), columns.fields)


def _call_rules(columns: StagedColumns) -> Iterator[tuple[str, Flags]]:
    fields = columns.fields
    for name, supported in VERSIONS.items():
        yield f"{name}: expected {supported}", fields[name] != supported
    rollout_ids = fields["rollout_id"].tolist()
    if any("/" in rollout_id for rollout_id in set(rollout_ids)):
        yield f"rollout_id: expected {ROLLOUT_ID}", np.array(["/" in rollout_id for rollout_id in rollout_ids])
    yield f"rollout_id: expected {ROLLOUT_ID}", fields["rollout_id"] == RESERVED_ROLLOUT_ID
    for name in LENGTHS:
        yield f"{name}: expected an integer in [0, 2**63)", fields[name] < 0
    yield from position_rules(fields)


def _token_fault(columns: StagedColumns) -> tuple[int, str] | None:
    """Return the first call that has a bad token, and what is wrong with its first one."""
    carry, logprobs = ~columns.generated, columns.logprobs
    mask_bits, logprob_bits = columns.token_mask.view(np.uint32), logprobs.view(np.uint32)
    where = "generation_log_probs_delta"
    rules = (
        (("token_ids_delta", columns.token_ids, "an integer in [0, 2**63)"), columns.token_ids < 0),
        (("token_mask_delta", columns.token_mask, "0.0 or 1.0"), carry & (mask_bits != 0)),
        ((where, logprobs, "a finite float32"), ~np.isfinite(logprobs)),
        ((where, logprobs, "0.0 on a carry token"), carry & (logprob_bits != 0)),
    )
    return _at_token(columns, earliest(rules))


def _vocabulary_fault(columns: StagedColumns, vocab_size: int | None) -> tuple[int, str] | None:
    if vocab_size is None:
        return None
    rule = "token_ids_delta", columns.token_ids, f"an id below the vocabulary size {vocab_size}"
    return _at_token(columns, earliest([(rule, columns.token_ids >= vocab_size)]))


def _at_token(
    columns: StagedColumns, found: tuple[int, tuple[str, NDArray[Any], str]] | None
) -> tuple[int, str] | None:
    """Turn a fault of one token into one of its call."""
    if found is None:
        return None
    position, (name, values, expected) = found
    row = int(np.searchsorted(columns.offsets, position, side="right")) - 1
    index = position - int(columns.offsets[row])
    return row, fault(f"{name}[{index}]", values[position].item(), expected)


# ── from records ────────────────────────────────────────────────────────────────────────────────────────────────────


def from_calls(calls: Sequence[StagedCall], *, rounding: bool = False) -> tuple[StagedColumns, str | None]:
    """Return the calls before the first that breaks a rule of sections 1 or 3 as columns, and what that one breaks.

    Any object with a staged call's attributes will do, whatever their types. ``rounding`` accepts log-probabilities
    that are not float32 values, rounded.
    """
    unfit, tokens = None, []
    for call in calls:
        try:
            tokens.append(_arrays(call, rounding))
        except ValueError as error:
            unfit = str(error)
            break
    columns = _from_arrays(calls[: len(tokens)], tokens)
    broken = [found for found in (_call_fault(columns), _token_fault(columns)) if found]
    if not broken:
        return columns, unfit
    row, unfit = min(broken, key=lambda found: found[0])
    return _from_arrays(calls[:row], tokens[:row]), unfit


def _from_arrays(calls: Sequence[StagedCall], tokens: Sequence[tuple[NDArray[Any], ...]]) -> StagedColumns:
    fields = dict(object_columns(calls, FIELDS))
    for name in (*LENGTHS, *VERSIONS):
        fields[name] = fields[name].astype(np.int64)
    for name in DIGESTS:
        raw = bytes.fromhex("".join(fields[name].tolist()))
        fields[name] = np.frombuffer(raw, dtype=np.uint8).reshape(-1, DIGEST_BYTES)
    ids, mask, logprobs = (
        ragged([row[column] for row in tokens], np.zeros(0, dtype=dtype))
        for column, dtype in enumerate(TOKEN_COLUMNS.values())
    )
    return StagedColumns(fields, ids.values, mask.values, logprobs.values, ids.offsets)


def _expect_all(holds: Flags, name: str, values: NDArray[Any], expected: str) -> None:
    if not holds.all():
        index = int(holds.argmin())
        raise ValueError(fault(f"{name}[{index}]", values[index].item(), expected))


def _arrays(call: StagedCall, rounding: bool) -> tuple[NDArray[Any], ...]:
    """Return a call's token columns as arrays. Raises ``ValueError`` if it does not fit into columns."""
    for name in ("rollout_id", "model_call_id", "parent_call_id"):
        value = getattr(call, name)
        if not (is_text(value) and value) and not (value is None and name == "parent_call_id"):
            raise ValueError(fault(name, value, "a non-empty string"))
    for name in (*LENGTHS, *VERSIONS):
        if not is_length(getattr(call, name)):
            raise ValueError(fault(name, getattr(call, name), "an integer in [0, 2**63)"))
    for name in DIGESTS:
        if not is_hash(getattr(call, name)):
            raise ValueError(fault(name, getattr(call, name), "64 lowercase hex characters"))
    if call.mode not in CAPTURE_MODES:
        raise ValueError(fault("mode", call.mode, "text or token_in"))
    columns = call.token_ids_delta, call.token_mask_delta, call.generation_log_probs_delta
    lengths = [len(column) for column in columns]
    if not call.delta_len:
        raise ValueError(fault("delta_len", 0, "at least one token"))
    if lengths != [call.delta_len] * 3:
        raise ValueError(fault("token columns", lengths, f"three columns of delta_len {call.delta_len}"))
    if not set(map(type, columns[0])) <= {int} or not is_length(min(columns[0])) or not is_length(max(columns[0])):
        index = next(index for index, token in enumerate(columns[0]) if not is_length(token))
        raise ValueError(fault(f"token_ids_delta[{index}]", columns[0][index], "an integer in [0, 2**63)"))
    for name, column, expected in (
        ("token_mask_delta", columns[1], "0.0 or 1.0"),
        ("generation_log_probs_delta", columns[2], "a finite float32"),
    ):
        if not set(map(type, column)) <= {float}:
            index = next(index for index, value in enumerate(column) if type(value) is not float)
            raise ValueError(fault(f"{name}[{index}]", column[index], expected))
    exact = [np.array(column, dtype=np.float64) for column in columns[1:]]
    with np.errstate(over="ignore"):
        mask, logprobs = (column.astype(np.float32) for column in exact)
    _expect_all(np.isfinite(logprobs), "generation_log_probs_delta", exact[1], "a finite float32")
    _expect_all(mask == exact[0], "token_mask_delta", exact[0], "0.0 or 1.0")
    if not rounding:
        _expect_all(logprobs == exact[1], "generation_log_probs_delta", exact[1], "a finite float32")
    return np.array(columns[0], dtype=np.int64), mask, logprobs
