"""Known differences between nemo-gym 0.7.0 and the contract, as data.

Almost all of it is leniency: a value outside the contract's domains is taken as it is. ``leniency`` says how such a
disagreement is told from any other; here are the kinds of value, and how to move each into the contract's domain.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

from attrs import evolve

from rollproof.properties.adapters.protocol import AnswerClass, Deviation
from rollproof.properties.nemo_gym.examples import examples_of
from rollproof.properties.nemo_gym.layout import layout_extras_digest
from rollproof.properties.nemo_gym.leniency import Leniency, Undo, deviations_of
from rollproof.properties.strategies.rollouts.recipes import realize
from rollproof.spec.constants import (
    DIGEST_VERSION,
    EXTRAS_DIGEST_VERSION,
    INT63_LIMIT,
    MAX_EXTRAS_DEPTH,
    RESERVED_ROLLOUT_ID,
    SCHEMA_VERSION,
    UINT64_LIMIT,
)
from rollproof.spec.judge.requests import (
    Accepted,
    Answer,
    Area,
    Crashed,
    ExtrasDigest,
    LinearizeGrowth,
    Refused,
    Request,
)
from rollproof.spec.judge.rules.lineage import MAX_GROWTH
from rollproof.spec.records import Receipt, StagedCall
from rollproof.spec.tensor import is_float32, to_float32
from rollproof.spec.values import is_digest, is_text

DEPTH_OF_RECURSION_ERROR: Final = 150
"""The encoder takes three frames per container. With Python's default limit of 1,000 and half of it in use already, it
cannot die in fewer."""

# ── staged calls ────────────────────────────────────────────────────────────────────────────────────────────────────


def is_wide(value: object) -> bool:
    """Return whether a value is an integer of exactly 64 bits: it hashes, but no int64 row holds it."""
    return type(value) is int and INT63_LIMIT <= value < UINT64_LIMIT


def narrow_integers(call: StagedCall) -> StagedCall:
    """Replace token ids, lengths and weight version of 64 bits by smaller ones."""
    ids = tuple(0 if is_wide(token) else token for token in call.token_ids_delta)
    version = 0 if is_wide(call.weight_version) else call.weight_version
    call = evolve(call, token_ids_delta=ids, weight_version=version)
    sums = all(type(value) is int for value in (call.prev_len, call.delta_len, call.cum_len))
    if sums and is_wide(call.cum_len) and call.cum_len == call.prev_len + call.delta_len:
        call = evolve(call, prev_len=min(call.prev_len, 1), cum_len=min(call.prev_len, 1) + call.delta_len)
    return call


def without_minus_zero(call: StagedCall) -> StagedCall:
    """Replace -0.0 as a mask and as the log-probability of a carry token by 0.0."""
    pairs = list(zip(call.token_mask_delta, call.generation_log_probs_delta, strict=False))
    if not len(pairs) == len(call.token_mask_delta) == len(call.generation_log_probs_delta):
        return call
    return evolve(
        call,
        token_mask_delta=tuple(plus_zero(mask) for mask, _ in pairs),
        generation_log_probs_delta=tuple(plus_zero(logp) if mask == 0.0 else logp for mask, logp in pairs),
    )


def plus_zero(value: Any) -> Any:
    """Return 0.0 for either zero, and anything else as it is."""
    return 0.0 if type(value) is float and value == 0.0 else value


def rounded_log_probs(call: StagedCall) -> StagedCall:
    """Round float64 log-probabilities of generated tokens to the float32 under which they are digested."""
    if len(call.token_mask_delta) != len(call.generation_log_probs_delta):
        return call

    def rounded(mask: Any, value: Any) -> Any:
        outside = mask == 1.0 and type(value) is float and math.isfinite(value) and not is_float32(value)
        nearest = to_float32(value) if outside else value
        return nearest if is_float32(nearest) else value

    columns = zip(call.token_mask_delta, call.generation_log_probs_delta, strict=True)
    return evolve(call, generation_log_probs_delta=tuple(rounded(mask, value) for mask, value in columns))


def plain_rollout_id(call: StagedCall) -> StagedCall:
    """Replace a rollout id with a "/" in it by one that no other call has by accident."""
    return evolve(call, rollout_id=call.rollout_id.replace("/", "\0")) if type(call.rollout_id) is str else call


def unreserved_rollout_id(call: StagedCall) -> StagedCall:
    """Replace the rollout id of generation cuts by one that no other call has by accident."""
    return evolve(call, rollout_id="\0cut") if call.rollout_id == RESERVED_ROLLOUT_ID else call


def hexadecimal_digest(call: StagedCall) -> StagedCall:
    """Replace a malformed digest by a wrong one: the package compares before it checks the form."""
    return call if is_digest(call.digest) else evolve(call, digest="0" * 64)


# ── receipts ────────────────────────────────────────────────────────────────────────────────────────────────────────

LENGTHS: Final = ("prev_len", "delta_len", "cum_len")
VERSIONS: Final = {
    "schema_version": SCHEMA_VERSION,
    "digest_version": DIGEST_VERSION,
    "extras_digest_version": EXTRAS_DIGEST_VERSION,
}
FREE_TEXTS: Final = ("failure_reason", "terminal_attribution_reason")
BOOLEANS: Final = {
    **dict.fromkeys(("1", "on", "t", "true", "y", "yes"), True),
    **dict.fromkeys(("0", "off", "f", "false", "n", "no"), False),
}
"""Strings that the package reads as a bool, in any case."""


def manifest_rows(value: Mapping[str, Any]) -> list[tuple[int, dict[str, Any]]]:
    """Return the manifest's objects with their positions."""
    manifest = value.get("manifest")
    rows = manifest if type(manifest) is list else []
    return [(index, row) for index, row in enumerate(rows) if type(row) is dict]


def strict_types(value: dict[str, Any]) -> Iterator[Undo]:
    """Convert coerced values: strings and bools, 2.0 for 2, bytes for strings, tuples for lists; also large ints."""
    if type(value.get("manifest")) is tuple:
        value["manifest"] = list(value["manifest"])
    for holder in (value, *(row for _, row in manifest_rows(value))):
        for name, version in VERSIONS.items():
            if type(holder.get(name)) in (float, bool) and holder[name] == version:
                holder[name] = version
    for name in ("reward", "capture_poisoned", *FREE_TEXTS):
        if type(value.get(name)) is bytes:
            with contextlib.suppress(ValueError):
                value[name] = value[name].decode()
    reward = value.get("reward")
    if type(reward) is bool or (type(reward) is str and reward.isascii()):
        with contextlib.suppress(ValueError):
            value["reward"] = float(reward)
    poisoned = value.get("capture_poisoned")
    if type(poisoned) in (int, float) and poisoned in (0, 1):
        value["capture_poisoned"] = bool(poisoned)
    if type(poisoned) is str:
        value["capture_poisoned"] = BOOLEANS.get(poisoned.lower(), poisoned)
    for index, row in manifest_rows(value):
        yield from shorter_integers(index, row)


def shorter_integers(index: int, row: dict[str, Any]) -> Iterator[Undo]:
    """Replace a manifest row's integers of more than 63 bits by smaller ones in the same relation."""
    for name in ("weight_version", "fingerprint_version"):
        if type(row.get(name)) is int and row[name] >= INT63_LIMIT:
            yield restore_in_row(index, {name: row[name]})
            row[name] = 0
    lengths = {name: row.get(name) for name in LENGTHS}
    if not all(type(length) is int and length >= 0 for length in lengths.values()):
        return
    prev, delta, total = (int(row[name]) for name in LENGTHS)
    if prev + delta == total and total >= INT63_LIMIT:
        yield restore_in_row(index, lengths)
        row |= {"prev_len": min(prev, 1), "delta_len": min(delta, 1), "cum_len": min(prev, 1) + min(delta, 1)}


def restore_in_row(index: int, originals: Mapping[str, Any]) -> Undo:
    """Return an undo that puts a manifest row's fields back."""

    def undo(receipt: Receipt) -> Receipt:
        rows = list(receipt.manifest)
        rows[index] = evolve(rows[index], **originals)
        return evolve(receipt, manifest=tuple(rows))

    return undo


def plain_receipt_id(value: dict[str, Any]) -> Iterator[Undo]:
    """Replace a rollout id with a "/" in it."""
    original = value.get("rollout_id")
    if type(original) is str and "/" in original and is_text(original):
        value["rollout_id"] = "r"
        yield lambda receipt: evolve(receipt, rollout_id=original)


def unreserved_receipt_id(value: dict[str, Any]) -> Iterator[Undo]:
    """Replace the rollout id of generation cuts."""
    if value.get("rollout_id") == RESERVED_ROLLOUT_ID:
        value["rollout_id"] = "r"
        yield _restore("rollout_id", RESERVED_ROLLOUT_ID)


def encodable_text(value: dict[str, Any]) -> Iterator[Undo]:
    """Replace free text with a lone surrogate."""
    for name in FREE_TEXTS:
        original = value.get(name)
        if type(original) is str and not is_text(original):
            value[name] = ""
            yield _restore(name, original)


def _restore(name: str, original: Any) -> Undo:
    return lambda receipt: evolve(receipt, **{name: original})


# ── the list ──────────────────────────────────────────────────────────────────────────────────────────────────────────

_DIGEST, _RECEIPT, _LINEAGE = Area.DIGEST, Area.RECEIPT, Area.LINEAGE

LENIENCIES: Final = (
    Leniency(
        "D1",
        "1",
        "Token ids, lengths and weight versions of 64 bits are digested and linearized; no int64 row holds them.",
        call=narrow_integers,
        areas=(_DIGEST, _LINEAGE),
    ),
    Leniency(
        "D2",
        "1",
        "-0.0 passes as a mask and as a carry log-probability; it digests differently, so one row has several digests.",
        call=without_minus_zero,
        areas=(_DIGEST, _LINEAGE),
    ),
    Leniency(
        "float64-log-prob",
        "1",
        "A float64 log-probability is digested as the float32 it rounds to, and returned unrounded in the row.",
        call=rounded_log_probs,
        areas=(_DIGEST, _LINEAGE),
    ),
    Leniency(
        "rollout-id-slash",
        "1",
        'A rollout id may contain "/", so one staging key may belong to two rollouts.',
        call=plain_rollout_id,
        receipt=plain_receipt_id,
        areas=(_DIGEST, _RECEIPT, _LINEAGE),
    ),
    Leniency(
        "D24",
        "1",
        "__generation_cut__, under which the package stages rows of generation cuts, is taken for a rollout's id.",
        call=unreserved_rollout_id,
        receipt=unreserved_receipt_id,
        areas=(_DIGEST, _RECEIPT, _LINEAGE),
    ),
    Leniency(
        "malformed-digest",
        "4",
        "A staged call whose digest is not 64 lowercase hex characters is corrupt_digest instead of invalid_snapshot.",
        call=hexadecimal_digest,
        areas=(_LINEAGE,),
    ),
    Leniency(
        "D16",
        "3",
        'Receipt types are coerced: "3.0" or true as a reward, "no" or 0 as a bool, 2.0 as a version, bytes as text, '
        "a tuple as the manifest; integers may have more than 63 bits.",
        receipt=strict_types,
        areas=(_RECEIPT,),
    ),
    Leniency(
        "lone-surrogate",
        "1",
        "Free text may hold a lone surrogate, which has no UTF-8.",
        receipt=encodable_text,
        areas=(_RECEIPT,),
    ),
)


def deep_digest(request: Request, expected: Answer) -> Iterator[Answer]:
    """Yield the digest that the layout gives, however deep, until the encoder's recursion dies (decision D3)."""
    if not isinstance(request, ExtrasDigest) or not isinstance(expected, Refused):
        return
    extras = realize(request.extras)
    depth = depth_of(extras)
    if type(extras) is not dict or depth <= MAX_EXTRAS_DEPTH:
        return
    digest = layout_extras_digest(extras)
    if digest is not None:
        yield Accepted(digest)
    if depth >= DEPTH_OF_RECURSION_ERROR:
        yield Crashed(RecursionError.__name__)


def depth_of(value: Any) -> int:
    """Return how many lists and mappings are nested in one another."""
    depth, layer = 0, [value]
    while layer := [item for item in layer if type(item) in (list, dict)]:
        depth += 1
        layer = [below for item in layer for below in (item if type(item) is list else item.values())]
    return depth


def quadratic_growth(request: Request, _: Answer) -> Iterator[AnswerClass]:
    """Yield growth that is more than linear, and at most the square of the number of calls (decision D5)."""
    if isinstance(request, LinearizeGrowth):
        ratio = request.many / request.few

        def quadratic(actual: Answer) -> bool:
            match actual:
                case Accepted((int(few), int(many))):
                    return few * MAX_GROWTH * ratio < many <= few * ratio**2
            return False

        yield quadratic


DEVIATIONS: Final[tuple[Deviation, ...]] = (
    *deviations_of(LENIENCIES),
    Deviation(
        "D3",
        Area.DIGEST,
        "2",
        "Extras deeper than 64 containers are digested, and deep ones die with RecursionError, which no guard catches.",
        deep_digest,
        examples_of("D3", Area.DIGEST),
    ),
    Deviation(
        "D5",
        Area.LINEAGE,
        "4",
        "The graph check walks to the root once per call, so its work grows with the square of the calls.",
        quadratic_growth,
        examples_of("D5", Area.LINEAGE),
    ),
)
