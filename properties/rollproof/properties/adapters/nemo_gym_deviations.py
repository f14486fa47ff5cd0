"""Where nemo-gym 0.7.0 is known to differ from the contract, as data.

Almost all of it is leniency: a value outside the contract's domains is taken as it is. So a disagreement is told apart
by granting it: ``applies`` asks the contract again with the offending value moved into its domain, and demands that
the contract, with all leniencies of the package granted, gives exactly the package's answer, and without this one
does not. A disagreement with any other cause stays one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from attrs import evolve, field, frozen

from rollproof.properties.protocol import Deviation
from rollproof.spec.constants import INT63_LIMIT, MAX_EXTRAS_DEPTH, UINT64_LIMIT
from rollproof.spec.digest import (
    CALL_DOMAIN,
    call_digest,
    extras_digest,
    float32s,
    hash_bytes,
    sha256,
    sized,
    text,
    tokens,
    u64,
)
from rollproof.spec.invariant import difference
from rollproof.spec.lineage import (
    COMPARED_FIELDS,
    check_graph,
    check_manifest,
    check_pairs,
    check_receipt_state,
    lay_out,
    terminal_chain,
)
from rollproof.spec.receipt import parse_receipt
from rollproof.spec.records import CallRecord, Receipt, StagedCall
from rollproof.spec.rejections import Code, Rejected
from rollproof.spec.requests import (
    Accepted,
    Answer,
    Area,
    CallDigest,
    Crashed,
    ExtrasDigest,
    Linearize,
    LinearizeGrowth,
    ParseReceipt,
    Refused,
    Request,
)
from rollproof.spec.rules.lineage import MAX_GROWTH
from rollproof.spec.tensor import is_float32, to_float32
from rollproof.spec.values import is_digest, is_text

Undo = Callable[[Receipt], Receipt]
"""Puts back into a parsed receipt what was moved out of the raw one."""


def unchanged(call: StagedCall) -> StagedCall:
    """A leniency that does not concern staged calls."""
    return call


def readable(value: dict[str, Any]) -> Iterator[Undo]:
    """A leniency that does not concern receipts."""
    return iter(())


@frozen
class Leniency:
    """One kind of value that the package takes and the contract does not, and how to move it into the contract."""

    id: str
    section: str
    sentence: str
    call: Callable[[StagedCall], StagedCall] = unchanged
    """A staged call with that kind of value replaced by one of the contract's domain."""
    receipt: Callable[[dict[str, Any]], Iterator[Undo]] = readable
    """Does the same to a raw receipt in place, and yields how to put back what is read as it was."""
    areas: frozenset[Area] = field(factory=frozenset)


# ── staged calls ────────────────────────────────────────────────────────────────────────────────────────────────────


def is_wide(value: object) -> bool:
    """An integer of exactly 64 bits: it hashes, but no int64 row holds it."""
    return type(value) is int and INT63_LIMIT <= value < UINT64_LIMIT


def narrow_integers(call: StagedCall) -> StagedCall:
    """Token ids, lengths and weight version of 64 bits, replaced by smaller ones."""
    ids = tuple(0 if is_wide(token) else token for token in call.token_ids_delta)
    version = 0 if is_wide(call.weight_version) else call.weight_version
    call = evolve(call, token_ids_delta=ids, weight_version=version)
    sums = all(type(value) is int for value in (call.prev_len, call.delta_len, call.cum_len))
    if sums and is_wide(call.cum_len) and call.cum_len == call.prev_len + call.delta_len:
        call = evolve(call, prev_len=min(call.prev_len, 1), cum_len=min(call.prev_len, 1) + call.delta_len)
    return call


def without_minus_zero(call: StagedCall) -> StagedCall:
    """-0.0 as a mask and as the log-probability of a carry token, replaced by 0.0."""
    pairs = list(zip(call.token_mask_delta, call.generation_log_probs_delta, strict=False))
    if not len(pairs) == len(call.token_mask_delta) == len(call.generation_log_probs_delta):
        return call
    return evolve(
        call,
        token_mask_delta=tuple(plus_zero(mask) for mask, _ in pairs),
        generation_log_probs_delta=tuple(plus_zero(logp) if mask == 0.0 else logp for mask, logp in pairs),
    )


def plus_zero(value: Any) -> Any:
    """0.0 for either zero, and anything else as it is."""
    return 0.0 if type(value) is float and value == 0.0 else value


def rounded_log_probs(call: StagedCall) -> StagedCall:
    """Float64 log-probabilities of generated tokens, rounded to the float32 under which they are digested."""
    if len(call.token_mask_delta) != len(call.generation_log_probs_delta):
        return call

    def rounded(mask: Any, value: Any) -> Any:
        outside = mask == 1.0 and type(value) is float and math.isfinite(value) and not is_float32(value)
        nearest = to_float32(value) if outside else value
        return nearest if is_float32(nearest) else value

    columns = zip(call.token_mask_delta, call.generation_log_probs_delta, strict=True)
    return evolve(call, generation_log_probs_delta=tuple(rounded(mask, value) for mask, value in columns))


def plain_rollout_id(call: StagedCall) -> StagedCall:
    """A rollout id with a "/" in it, replaced."""
    return evolve(call, rollout_id="r") if type(call.rollout_id) is str and "/" in call.rollout_id else call


def hexadecimal_digest(call: StagedCall) -> StagedCall:
    """A digest that is no digest, replaced by a wrong one: the package compares before it looks at the form."""
    return call if is_digest(call.digest) else evolve(call, digest="0" * 64)


# ── receipts ────────────────────────────────────────────────────────────────────────────────────────────────────────

LENGTHS: Final = ("prev_len", "delta_len", "cum_len")
VERSIONS: Final = {"schema_version": 2, "digest_version": 2, "extras_digest_version": 1}
BOOLEANS: Final = {
    **dict.fromkeys(("1", "on", "t", "true", "y", "yes"), True),
    **dict.fromkeys(("0", "off", "f", "false", "n", "no"), False),
}
"""Texts that the package reads as a bool, in any case."""


def manifest_rows(value: Mapping[str, Any]) -> list[tuple[int, dict[str, Any]]]:
    """The manifest's objects with their positions."""
    manifest = value.get("manifest")
    rows = manifest if type(manifest) is list else []
    return [(index, row) for index, row in enumerate(rows) if type(row) is dict]


def strict_types(value: dict[str, Any]) -> Iterator[Undo]:
    """Texts and bools as numbers, texts and numbers as bools, 2.0 as 2, a tuple as a list, and large integers."""
    if type(value.get("manifest")) is tuple:
        value["manifest"] = list(value["manifest"])
    for holder in (value, *(row for _, row in manifest_rows(value))):
        for name, version in VERSIONS.items():
            if type(holder.get(name)) in (float, bool) and holder[name] == version:
                holder[name] = version
    reward = value.get("reward")
    if type(reward) is bool or (type(reward) is str and reward.isascii()):
        try:
            value["reward"] = float(reward)
        except ValueError:
            pass
    poisoned = value.get("capture_poisoned")
    if type(poisoned) in (int, float) and poisoned in (0, 1):
        value["capture_poisoned"] = bool(poisoned)
    if type(poisoned) is str:
        value["capture_poisoned"] = BOOLEANS.get(poisoned.lower(), poisoned)
    for index, row in manifest_rows(value):
        yield from shorter_integers(index, row)


def shorter_integers(index: int, row: dict[str, Any]) -> Iterator[Undo]:
    """A manifest row's integers of more than 63 bits, replaced by smaller ones in the same relation."""
    for name in ("weight_version", "fingerprint_version"):
        if type(row.get(name)) is int and row[name] >= INT63_LIMIT:
            yield restore_in_row(index, {name: row[name]})
            row[name] = 0
    lengths = {name: row.get(name) for name in LENGTHS}
    prev, delta, total = lengths.values()
    if all(type(length) is int and length >= 0 for length in (prev, delta, total)) and prev + delta == total:
        if total >= INT63_LIMIT:
            yield restore_in_row(index, lengths)
            row |= {"prev_len": min(prev, 1), "delta_len": min(delta, 1), "cum_len": min(prev, 1) + min(delta, 1)}


def restore_in_row(index: int, originals: Mapping[str, Any]) -> Undo:
    """Puts a manifest row's fields back."""

    def undo(receipt: Receipt) -> Receipt:
        rows = list(receipt.manifest)
        rows[index] = evolve(rows[index], **originals)
        return evolve(receipt, manifest=tuple(rows))

    return undo


def plain_receipt_id(value: dict[str, Any]) -> Iterator[Undo]:
    """A rollout id with a "/" in it, replaced."""
    original = value.get("rollout_id")
    if type(original) is str and "/" in original and is_text(original):
        value["rollout_id"] = "r"
        yield lambda receipt: evolve(receipt, rollout_id=original)


def encodable_text(value: dict[str, Any]) -> Iterator[Undo]:
    """Free text with a lone surrogate, replaced."""
    for name in ("failure_reason", "terminal_attribution_reason"):
        original = value.get(name)
        if type(original) is str and not is_text(original):
            value[name] = ""
            yield _restore(name, original)


def _restore(name: str, original: Any) -> Undo:
    return lambda receipt: evolve(receipt, **{name: original})


# ── the leniencies, and the contract's answer with some of them granted ─────────────────────────────────────────────

_DIGEST, _RECEIPT, _LINEAGE = Area.DIGEST, Area.RECEIPT, Area.LINEAGE

LENIENCIES: Final = (
    Leniency(
        "D1",
        "1",
        "Token ids, lengths and weight versions of 64 bits are digested and linearized, though no int64 row holds them.",
        call=narrow_integers,
        areas=frozenset({_DIGEST, _LINEAGE}),
    ),
    Leniency(
        "D2",
        "1",
        "-0.0 passes as a mask and as a carry log-probability; it digests differently, so one row has several digests.",
        call=without_minus_zero,
        areas=frozenset({_DIGEST, _LINEAGE}),
    ),
    Leniency(
        "float64-log-prob",
        "1",
        "A float64 log-probability is digested as the float32 it rounds to, and returned unrounded in the row.",
        call=rounded_log_probs,
        areas=frozenset({_DIGEST, _LINEAGE}),
    ),
    Leniency(
        "rollout-id-slash",
        "1",
        'A rollout id may contain "/", so one staging key may belong to two rollouts.',
        call=plain_rollout_id,
        receipt=plain_receipt_id,
        areas=frozenset({_DIGEST, _RECEIPT, _LINEAGE}),
    ),
    Leniency(
        "malformed-digest",
        "4",
        "A staged call whose digest is not 64 lowercase hex characters is corrupt_digest instead of invalid_snapshot.",
        call=hexadecimal_digest,
        areas=frozenset({_LINEAGE}),
    ),
    Leniency(
        "D16",
        "3",
        'Receipt types are coerced: "3.0" or true as a reward, "no" or 0 as a bool, 2.0 as a version, a tuple as the '
        "manifest, and integers beyond 63 bits.",
        receipt=strict_types,
        areas=frozenset({_RECEIPT}),
    ),
    Leniency(
        "lone-surrogate",
        "1",
        "Free text may hold a lone surrogate, which has no UTF-8.",
        receipt=encodable_text,
        areas=frozenset({_RECEIPT}),
    ),
)


def moved(call: StagedCall, granted: Sequence[Leniency]) -> StagedCall:
    """The call with what these leniencies grant moved into the contract's domains."""
    for leniency in granted:
        call = leniency.call(call)
    return call


def layout_digest(call: StagedCall) -> str | None:
    """What the byte layout of section 2 gives for a call, in the domain or not; None where it cannot be laid out."""
    try:
        return sha256(
            CALL_DOMAIN,
            bytes([call.schema_version, call.digest_version, call.extras_digest_version])
            + text(call.rollout_id)
            + text(call.model_call_id)
            + (b"\x00" if call.parent_call_id is None else b"\x01" + text(call.parent_call_id))
            + text(call.mode)
            + b"".join(u64(value) for value in (call.prev_len, call.delta_len, call.cum_len, call.weight_version))
            + sized(tokens(call.token_ids_delta))
            + sized(float32s(call.token_mask_delta))
            + sized(float32s(call.generation_log_probs_delta))
            + hash_bytes(call.extras_digest)
            + b"".join(b"\x01" + hash_bytes(value) for value in (call.chain_hash, call.cumulative_hash)),
        )
    except (TypeError, ValueError, OverflowError):
        return None


def has_digest(call: StagedCall) -> bool:
    """Whether the contract gives the call a digest; its own is not looked at."""
    try:
        call_digest(evolve(call, digest="0" * 64))
    except ValueError:
        return False
    return True


def granted_linearize(request: Linearize, granted: Sequence[Leniency]) -> Answer:
    """The contract's answer if the staged calls were checked with these leniencies."""
    receipt, calls = request.receipt, request.calls
    try:
        check_receipt_state(receipt)
        check_manifest(receipt)
        if len(calls) != len(receipt.manifest):
            raise Rejected(Code.ROW_COUNT_MISMATCH)
        check_pairs(*moved_pairs(receipt, calls, granted))
        records = {record.model_call_id: record for record in receipt.manifest}
        check_graph(records)
        chain = terminal_chain(receipt, records)
        by_id = {call.model_call_id: call for call in calls}
        return Accepted(lay_out(receipt.rollout_id, [by_id[record.model_call_id] for record in chain]))
    except Rejected as rejected:
        return Refused(rejected.reason)


def moved_pairs(
    receipt: Receipt, calls: Sequence[StagedCall], granted: Sequence[Leniency]
) -> tuple[Receipt, list[StagedCall]]:
    """Manifest rows and calls with the granted values moved, and digests that are right exactly where they were.

    A pair that differs in the rollout or in a compared field stays as it is: there the difference is the answer.
    """
    renamed = moved(evolve(calls[0], rollout_id=receipt.rollout_id), granted).rollout_id
    records = []
    moved_calls = []
    for record, call in zip(receipt.manifest, calls, strict=True):
        if call.rollout_id == receipt.rollout_id:
            if all(getattr(call, name) == getattr(record, name) for name in COMPARED_FIELDS):
                original, call = call, moved(call, granted)
                if layout_digest(original) == original.digest and has_digest(call):
                    call = evolve(call, digest=call_digest(call))
                record = evolve(record, **{name: getattr(call, name) for name in COMPARED_FIELDS})
            call = evolve(call, rollout_id=renamed)
        records.append(record)
        moved_calls.append(call)
    return evolve(receipt, rollout_id=renamed, manifest=tuple(records)), moved_calls


def granted_receipt(value: Any, granted: Sequence[Leniency]) -> Receipt | None:
    """The receipt that the contract would read if these leniencies were its own."""
    if type(value) is not dict:
        return None
    value = dict(value)
    if type(value.get("manifest")) in (list, tuple):
        rows = [dict(row) if type(row) is dict else row for row in value["manifest"]]
        value["manifest"] = type(value["manifest"])(rows)
    undo = [step for leniency in granted for step in leniency.receipt(value)]
    try:
        receipt = parse_receipt(value)
    except Rejected:
        return None
    for step in undo:
        receipt = step(receipt)
    return receipt


# ── one predicate per kind of request ───────────────────────────────────────────────────────────────────────────────


def explains(own: Leniency, request: Request, expected: Answer, actual: Answer) -> bool:
    """Whether the disagreement is this leniency: granted all, the contract agrees; granted all others, it does not."""
    others = [leniency for leniency in LENIENCIES if leniency is not own]
    if not isinstance(expected, Refused):
        return False
    match request:
        case CallDigest(call) if isinstance(actual, Accepted):
            laid_out = actual.value == layout_digest(call)
            return laid_out and has_digest(moved(call, LENIENCIES)) and not has_digest(moved(call, others))
        case Linearize() if expected.code == Code.INVALID_SNAPSHOT.code:
            full, without = granted_linearize(request, LENIENCIES), granted_linearize(request, others)
            return agree(full, actual) and not agree(without, actual)
        case ParseReceipt(value) if isinstance(actual, Accepted):
            return granted_receipt(value, LENIENCIES) == actual.value and granted_receipt(value, others) is None
    return False


def agree(one: Answer, other: Answer) -> bool:
    """The same row, or the same code."""
    if isinstance(one, Refused) and isinstance(other, Refused):
        return one.code == other.code
    both = isinstance(one, Accepted) and isinstance(other, Accepted)
    return both and difference(one.value, other.value) is None


def too_deep(request: Request, expected: Answer, actual: Answer) -> bool:
    """Decision D3: deeper than 64 containers and otherwise sound, and it was digested, or the encoder's recursion died."""
    if not isinstance(request, ExtrasDigest) or not isinstance(expected, Refused):
        return False
    layers = list(shallow_layers(request.extras))
    if isinstance(actual, Crashed):
        return len(layers) > 1 and actual.error == RecursionError.__name__
    return len(layers) > 1 and isinstance(actual, Accepted) and all(map(has_extras_digest, layers))


def has_extras_digest(extras: Any) -> bool:
    """Whether the contract gives these extras a digest."""
    try:
        extras_digest(extras)
    except ValueError:
        return False
    return True


def shallow_layers(extras: Any, height: int = MAX_EXTRAS_DEPTH) -> Iterator[Any]:
    """Extras cut into layers of at most ``height`` containers, null in the place of what was cut off.

    Together the layers hold every value of the extras; only the depth is gone. One layer means: not too deep.
    """
    waiting = [extras]
    while waiting:
        layer, cut = _cut(waiting.pop(), height)
        waiting += ({"": item} for item in cut)
        yield layer


def _cut(value: Any, height: int) -> tuple[Any, list[Any]]:
    if type(value) not in (list, dict):
        return value, []
    if height == 0:
        return None, [value]
    items = [_cut(item, height - 1) for item in (value if type(value) is list else value.values())]
    cut = [item for _, below in items for item in below]
    kept = [item for item, _ in items]
    return (kept if type(value) is list else dict(zip(value, kept, strict=True))), cut


def grows_quadratically(request: Request, _: Answer, actual: Answer) -> bool:
    """Decision D5: more than linear, and no more than the square of the number of calls."""
    if not isinstance(request, LinearizeGrowth) or not isinstance(actual, Accepted):
        return False
    few, many = actual.value
    ratio = request.many / request.few
    return few * MAX_GROWTH * ratio < many <= few * ratio**2


def _leniency(own: Leniency, area: Area) -> Deviation:
    return Deviation(
        own.id,
        area,
        own.section,
        own.sentence,
        lambda request, expected, actual: explains(own, request, expected, actual),
    )


DEVIATIONS: Final[tuple[Deviation, ...]] = (
    *(_leniency(own, area) for own in LENIENCIES for area in sorted(own.areas)),
    Deviation(
        "D3",
        Area.DIGEST,
        "2",
        "Extras deeper than 64 containers are digested, and deep ones die with RecursionError, which no guard catches.",
        too_deep,
    ),
    Deviation(
        "D5",
        Area.LINEAGE,
        "4",
        "The graph check walks to the root once per call, so its work grows with the square of the calls.",
        grows_quadratically,
    ),
)
