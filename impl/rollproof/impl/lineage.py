"""Verifying a rollout's staged calls and laying out its terminal chain (section 4), over columns.

The order of the checks is the contract's: the first violated rule wins, row by row where the contract says so. Each
rule is one array expression, and the first row that breaks one is looked for only where something is broken. Cost is
linear in calls plus tokens (D5).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from rollproof.impl.checks import (
    DIGESTS,
    LENGTHS,
    VERSIONS,
    as_hex,
    call_fault,
    earliest,
    fault,
    first_repeated,
    object_columns,
    plain,
    show,
)
from rollproof.impl.columns import Columns, Flags, Ints, objects
from rollproof.impl.digest import call_digests, chain_digests, first_difference, prefix_digest_of
from rollproof.impl.records import MANIFEST_FIELDS, ReceiptColumns
from rollproof.impl.staged import FIELDS, StagedColumns, from_calls
from rollproof.spec.records import (
    ExtrasCommitment,
    LinearizedRow,
    LinkSpan,
    Receipt,
    StagedCall,
    WeightVersionSpan,
)
from rollproof.spec.rejections import Code, Rejected

_UNSUPPORTED: Final = {
    "schema_version": Code.UNSUPPORTED_SCHEMA,
    "digest_version": Code.UNSUPPORTED_DIGEST,
    "extras_digest_version": Code.UNSUPPORTED_EXTRAS_DIGEST,
}
_COMPARED: Final = {name: Code[f"WRONG_{name.upper()}"] for name in ("parent_call_id", "mode", *LENGTHS, *DIGESTS)}
"""Fields that a staged call shares with its manifest row, in the order in which they are compared."""


@frozen(eq=False)
class ChainRow:
    """A verified terminal chain of K calls and T tokens (section 4)."""

    rollout_id: str
    calls: Ints
    """``[K]``: the chain's positions in the manifest, root first."""
    model_call_ids: list[str]
    token_ids: Ints
    token_mask: NDArray[np.float32]
    logprobs: NDArray[np.float32]
    offsets: Ints
    """``[K + 1]``: where each call's tokens begin in the three token columns."""
    carry_lens: Ints
    generation_lens: Ints
    weight_versions: Ints
    extras_digest_versions: Ints
    extras_digests: NDArray[np.uint8]
    """``[K, 32]``."""

    @property
    def prompt_len(self) -> int:
        """The root's carry."""
        return int(self.carry_lens[0])

    @property
    def extras_commitments(self) -> tuple[ExtrasCommitment, ...]:
        """The digests that each call's extras must have, root first."""
        return tuple(
            ExtrasCommitment(call, version, digest.tobytes().hex())
            for call, version, digest in zip(
                self.model_call_ids, self.extras_digest_versions.tolist(), self.extras_digests, strict=True
            )
        )

    def record(self) -> LinearizedRow:
        """Return the row as the spec's value."""
        versions = self.weight_versions.tolist()
        bounds = pairwise(self.offsets.tolist())
        links = zip(self.model_call_ids, self.carry_lens.tolist(), self.generation_lens.tolist(), strict=True)
        return LinearizedRow(
            rollout_id=self.rollout_id,
            token_ids=tuple(self.token_ids.tolist()),
            token_mask=tuple(self.token_mask.tolist()),
            logprobs=tuple(self.logprobs.tolist()),
            prompt_len=self.prompt_len,
            model_call_ids=tuple(self.model_call_ids),
            weight_versions=tuple(versions),
            weight_version_spans=tuple(
                WeightVersionSpan(call, start, end, version)
                for call, (start, end), version in zip(self.model_call_ids, bounds, versions, strict=True)
            ),
            link_spans=tuple(LinkSpan(*link) for link in links),
            extras_commitments=self.extras_commitments,
        )


def linearize(receipt: Receipt, calls: Sequence[StagedCall]) -> LinearizedRow:
    """Return the verified row of a receipt's terminal chain, from records.

    ``calls`` holds one staged call per manifest row, in manifest order. Raises ``Rejected`` with the first violated
    rule of section 4; a call that breaks a rule of sections 1 or 3 is ``INVALID_SNAPSHOT``.
    """
    staged, unfit = from_calls(calls)
    listed = object_columns(receipt.manifest, MANIFEST_FIELDS)
    return _verify(ReceiptColumns.of(receipt, listed), object_columns(calls, FIELDS), staged, unfit).record()


def verify(receipt: ReceiptColumns, staged: StagedColumns) -> ChainRow:
    """Return the verified row of a receipt's terminal chain, from columns in manifest order. Raises ``Rejected``."""
    return _verify(receipt, staged.fields, staged, None)


def _verify(receipt: ReceiptColumns, found: Columns, staged: StagedColumns, unfit: str | None) -> ChainRow:
    """Verify ``found``, the calls' own claims; ``staged`` are the calls before the first that is ``unfit``."""
    _check_receipt(receipt)
    if len(found["model_call_id"]) != len(receipt):
        count = len(found["model_call_id"])
        raise Rejected(Code.ROW_COUNT_MISMATCH, fault("staged calls", count, f"{len(receipt)}, one per manifest row"))
    mismatch = earliest(_pair_rules(receipt, found))
    _check_digests(receipt, staged, len(staged) if mismatch is None else mismatch[0])
    if mismatch is not None and mismatch[0] <= len(staged):
        raise _mismatched(receipt, found, *mismatch)
    if unfit is not None:
        raise Rejected(Code.INVALID_SNAPSHOT, f"call {receipt.call_ids[len(staged)]}: {unfit}")
    parents = _check_graph(receipt, staged)
    return _lay_out(receipt, staged, _chain(receipt, parents))


def _check_receipt(receipt: ReceiptColumns) -> None:
    """Check steps 1 to 3: versions, a rollout that succeeded, and a manifest that names each call and key once."""
    for name, supported in VERSIONS.items():
        if receipt.versions[name] != supported:
            raise Rejected(_UNSUPPORTED[name], f"receipt: {fault(name, receipt.versions[name], str(supported))}")
    if receipt.failure_reason is not None:
        raise Rejected(Code.REBUILD_ROLLOUT_FAILED, receipt.failure_reason)
    if receipt.capture_poisoned:
        raise Rejected(Code.REBUILD_CAPTURE_POISONED)
    if not len(receipt):
        raise Rejected(Code.EMPTY_MANIFEST)
    calls, keys = receipt.positions, set(receipt.staging_keys)
    if len(calls) == len(keys) == len(receipt):
        return
    again = [
        (row, code, field, values[row])
        for code, field, values in (
            (Code.DUPLICATE_MANIFEST_ROW, "model_call_id", receipt.call_ids),
            (Code.REBUILD_DUPLICATE_STAGING_KEY, "staging_key", receipt.staging_keys),
        )
        if (row := first_repeated(values)) is not None
    ]
    row, code, field, value = min(again, key=lambda found: found[0])
    raise Rejected(code, call_fault(receipt.call_ids[row], field, value, "another one in every row"))


# ── step 4: pairs ───────────────────────────────────────────────────────────────────────────────────────────────────


def _check_digests(receipt: ReceiptColumns, staged: StagedColumns, count: int) -> None:
    """Check that the first ``count`` calls have the digests of their content."""
    actual, carried = call_digests(staged), staged.fields["digest"]
    corrupt = first_difference(actual[:count], carried[:count])
    if corrupt is not None:
        detail = call_fault(
            receipt.call_ids[corrupt], "digest", as_hex(carried[corrupt]), show(as_hex(actual[corrupt]))
        )
        raise Rejected(Code.CORRUPT_DIGEST, detail)


def _mismatched(receipt: ReceiptColumns, found: Columns, row: int, broken: tuple[Code, str]) -> Rejected:
    """Return the rejection because a field of call ``row`` is not its manifest row's."""
    code, name = broken
    call = found["model_call_id"][row]
    if code is Code.SNAPSHOT_ORDER_MISMATCH and call in receipt.call_ids[:row]:
        code = Code.DUPLICATE_SNAPSHOT
    elif code is Code.SNAPSHOT_ORDER_MISMATCH and call not in receipt.positions:
        code = Code.SNAPSHOT_IDENTITY_MISMATCH
    listed = receipt.rollout_id if name == "rollout_id" else plain(receipt.fields[name][row])
    expected = f"{show(listed)}, as in the {'receipt' if name == 'rollout_id' else 'manifest'}"
    if name in receipt.versions:
        expected = f"that of its manifest row, {show(listed)}, and of the receipt, {show(receipt.versions[name])}"
    return Rejected(code, call_fault(receipt.call_ids[row], name, plain(found[name][row]), expected))


def _pair_rules(receipt: ReceiptColumns, found: Columns) -> Iterator[tuple[tuple[Code, str], Flags]]:
    listed = receipt.fields
    yield (Code.SNAPSHOT_ORDER_MISMATCH, "model_call_id"), found["model_call_id"] != listed["model_call_id"]
    # A bare str would lose its NULs.
    yield (Code.WRONG_ROLLOUT, "rollout_id"), found["rollout_id"] != objects([receipt.rollout_id])
    for name, code in _COMPARED.items():
        differs = found[name] != listed[name]
        yield (code, name), differs if differs.ndim == 1 else differs.any(axis=1)
    for name, version in receipt.versions.items():
        differs = (found[name] != listed[name]) | (found[name] != version)
        yield (Code[f"WRONG_{name.upper()}"], name), differs


# ── step 5: the graph ───────────────────────────────────────────────────────────────────────────────────────────────


def _check_graph(receipt: ReceiptColumns, staged: StagedColumns) -> list[int]:
    """Check that every call's parent is listed and ends where the call starts; return its position, -1 for a root.

    Lengths grow along every link, so a cycle holds a link whose lengths do not fit: only then are cycles searched for.
    """
    position, parent_ids = receipt.positions, staged.fields["parent_call_id"].tolist()
    absent = len(position)
    parents = [-1 if parent is None else position.get(parent, absent) for parent in parent_ids]
    links = np.array(parents, dtype=np.int64)
    missing, child = links == absent, links >= 0
    starts, ends = staged.fields["prev_len"], staged.fields["cum_len"]
    mismatched = child & ~missing & (starts != ends[np.where(missing, 0, links)])
    cyclic = _reach_a_cycle(parents) if mismatched.any() else np.zeros_like(missing)
    broken = earliest(
        (
            ((Code.MISSING_PARENT, "parent_call_id", "a call of the manifest"), missing),
            ((Code.PARENT_LENGTH_MISMATCH, "prev_len", "the length at which its parent ends"), mismatched),
            ((Code.LINEAGE_CYCLE, "parent_call_id", "a path to a root"), cyclic),
        )
    )
    if broken is not None:
        row, (code, name, expected) = broken
        if code is Code.PARENT_LENGTH_MISMATCH:
            expected = f"{ends[parents[row]]}, where its parent ends"
        raise Rejected(code, call_fault(receipt.call_ids[row], name, plain(staged.fields[name][row]), expected))
    return parents


def _reach_a_cycle(parents: Sequence[int]) -> Flags:
    """Return from which calls following parents never ends. Each call is walked over once (D5)."""
    unknown, walking, ending, endless = range(4)
    states = [unknown] * len(parents)
    for start in range(len(parents)):
        walk, current = [], start
        while 0 <= current < len(parents) and states[current] == unknown:
            states[current] = walking
            walk.append(current)
            current = parents[current]
        inside = 0 <= current < len(parents)
        fate = endless if inside and states[current] in (walking, endless) else ending
        for call in walk:
            states[call] = fate
    return np.equal(states, endless)


def _chain(receipt: ReceiptColumns, parents: Sequence[int]) -> list[int]:
    """Return the positions of the calls from the root to the terminal one."""
    current = receipt.positions.get(receipt.terminal_model_call_id or "", -1)
    if current < 0:
        named = receipt.terminal_model_call_id
        raise Rejected(Code.MISSING_TERMINAL, fault("terminal_model_call_id", named, "a call of the manifest"))
    chain = []
    while current >= 0:
        chain.append(current)
        current = parents[current]
    return chain[::-1]


# ── step 6: the row ─────────────────────────────────────────────────────────────────────────────────────────────────


def _lay_out(receipt: ReceiptColumns, staged: StagedColumns, chain: list[int]) -> ChainRow:
    """Join the chain's deltas, each checked against the hashes that tie it to its parent."""
    calls, bounds = np.array(chain, dtype=np.int64), staged.encoded.bounds
    whole = chain == list(range(len(staged)))
    spans = [(0, bounds[-1])] if whole else [(bounds[call], bounds[call + 1]) for call in chain]

    def of_chain(column: NDArray[Any]) -> NDArray[Any]:
        parts = [column[start:end] for start, end in spans]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    lengths = staged.fields["delta_len"][calls]
    offsets = np.zeros(len(chain) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    generation_lens, ordered = _generation(of_chain(staged.generated), offsets)
    broken = earliest(
        (
            (Code.INVALID_MASK_ORDER, ~ordered),
            (Code.EMPTY_GENERATION, generation_lens == 0),
        )
    )
    _check_chain_hashes(receipt, staged, calls if broken is None else calls[: broken[0] + 1])
    if broken is not None:
        raise _misgenerated(
            receipt.call_ids[chain[broken[0]]], broken[1], of_chain(staged.generated), offsets[broken[0] :]
        )
    ids = [staged.encoded.ids[8 * start : 8 * end] for start, end in spans]
    of_row, recorded = prefix_digest_of(ids, int(offsets[-1])), staged.fields["cumulative_hash"][chain[-1]]
    if of_row != recorded.tobytes():
        detail = call_fault(receipt.call_ids[chain[-1]], "cumulative_hash", as_hex(recorded), show(of_row.hex()))
        raise Rejected(Code.CUMULATIVE_HASH_MISMATCH, detail)
    return ChainRow(
        rollout_id=receipt.rollout_id,
        calls=calls,
        model_call_ids=[receipt.call_ids[call] for call in chain],
        token_ids=of_chain(staged.token_ids),
        token_mask=of_chain(staged.token_mask),
        logprobs=of_chain(staged.logprobs),
        offsets=offsets,
        carry_lens=lengths - generation_lens,
        generation_lens=generation_lens,
        weight_versions=staged.fields["weight_version"][calls],
        extras_digest_versions=staged.fields["extras_digest_version"][calls],
        extras_digests=staged.fields["extras_digest"][calls],
    )


def _misgenerated(call_id: str, code: Code, generated: Flags, offsets: Ints) -> Rejected:
    """Return the rejection of a call whose mask is not carry, then generation; ``offsets`` begin at its first token."""
    if code is Code.EMPTY_GENERATION:
        return Rejected(code, call_fault(call_id, "generated tokens", 0, "at least one"))
    own = generated[offsets[0] : offsets[1]]
    first = int(own.argmax())
    index = first + int(own[first:].argmin())
    return Rejected(code, call_fault(call_id, f"token_mask_delta[{index}]", 0.0, "1.0 once a token is generated"))


def _generation(generated: Flags, offsets: Ints) -> tuple[Ints, Flags]:
    """Return, per call, how many tokens were generated, and whether they all come after the carry."""
    lens = np.add.reduceat(generated, offsets[:-1], dtype=np.int64)
    falls = generated[:-1] & ~generated[1:]
    falls[offsets[1:-1] - 1] = False
    ordered = np.ones(len(lens), dtype=np.bool_)
    if falls.any():
        ordered[np.searchsorted(offsets, np.flatnonzero(falls), side="right") - 1] = False
    return lens, ordered


def _check_chain_hashes(receipt: ReceiptColumns, staged: StagedColumns, calls: Ints) -> None:
    """Check that each call extends its parent's chain hash. ``calls`` are positions, root first."""
    actual = chain_digests(staged.encoded, calls.tolist())
    recorded = staged.fields["chain_hash"][calls]
    broken = first_difference(actual, recorded)
    if broken is not None:
        call_id, expected = receipt.call_ids[calls[broken]], show(as_hex(actual[broken]))
        raise Rejected(Code.CHAIN_HASH_MISMATCH, call_fault(call_id, "chain_hash", as_hex(recorded[broken]), expected))
