"""Where nemo-gym 0.7.0 is known to differ from the contract, as data.

Almost all of it is leniency: a value outside the contract's domains is taken as it is. ``leniency`` says how such a
disagreement is told from any other; here are the kinds of value, and how to move each into the contract's domain.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

from attrs import evolve

from rollproof.properties.adapters.leniency import Leniency, Undo, deviations_of
from rollproof.properties.protocol import Deviation
from rollproof.properties.strategies.recipes import realize
from rollproof.spec.constants import (
    DIGEST_VERSION,
    EXTRAS_DIGEST_VERSION,
    INT63_LIMIT,
    MAX_EXTRAS_DEPTH,
    SCHEMA_VERSION,
    UINT64_LIMIT,
)
from rollproof.spec.digest import extras_digest
from rollproof.spec.records import Receipt, StagedCall
from rollproof.spec.requests import (
    Accepted,
    Answer,
    Area,
    Crashed,
    ExtrasDigest,
    LinearizeGrowth,
    Refused,
    Request,
)
from rollproof.spec.rules.lineage import MAX_GROWTH
from rollproof.spec.tensor import is_float32, to_float32
from rollproof.spec.values import is_digest, is_text

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
    """A rollout id with a "/" in it, replaced by one that no other call has by accident."""
    return evolve(call, rollout_id=call.rollout_id.replace("/", "\0")) if type(call.rollout_id) is str else call


def hexadecimal_digest(call: StagedCall) -> StagedCall:
    """A digest that is no digest, replaced by a wrong one: the package compares before it looks at the form."""
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
"""Texts that the package reads as a bool, in any case."""


def manifest_rows(value: Mapping[str, Any]) -> list[tuple[int, dict[str, Any]]]:
    """The manifest's objects with their positions."""
    manifest = value.get("manifest")
    rows = manifest if type(manifest) is list else []
    return [(index, row) for index, row in enumerate(rows) if type(row) is dict]


def strict_types(value: dict[str, Any]) -> Iterator[Undo]:
    """Texts and bools as numbers, texts and numbers as bools, 2.0 as 2, bytes as text, tuples as lists; large ints."""
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
    """A manifest row's integers of more than 63 bits, replaced by smaller ones in the same relation."""
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


def too_deep(request: Request, expected: Answer, actual: Answer) -> bool:
    """Decision D3: deeper than 64 containers and otherwise sound, yet digested; or the encoder's recursion died."""
    if not isinstance(request, ExtrasDigest) or not isinstance(expected, Refused):
        return False
    layers = list(shallow_layers(realize(request.extras)))
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
    return bool(few * MAX_GROWTH * ratio < many <= few * ratio**2)


DEVIATIONS: Final[tuple[Deviation, ...]] = (
    *deviations_of(LENIENCIES),
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
