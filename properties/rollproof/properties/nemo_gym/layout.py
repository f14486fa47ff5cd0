"""The byte layouts of section 2 without their domains: what an encoder that checks less would digest."""

from __future__ import annotations

import struct
from typing import Any, Final

from attrs import frozen

from rollproof.spec.constants import EXTRAS_DIGEST_VERSION
from rollproof.spec.digest import CALL_DOMAIN, EXTRAS_DOMAIN, call_payload, extra, sha256, text, u64
from rollproof.spec.records import StagedCall

WRONG_DIGEST: Final = "0" * 64
"""Stands for a digest that was wrong already: moving a value must not make it right."""


def layout_digest(call: StagedCall) -> str | None:
    """Return what the byte layout of section 2 gives for a call, in the domain or not; None where it has no layout."""
    try:
        return sha256(CALL_DOMAIN, call_payload(call))
    except (TypeError, ValueError, OverflowError, struct.error):
        return None


@frozen
class _Key:
    """A mapping's key that is still to be encoded."""

    key: str


def layout_extras_digest(extras: dict[str, Any]) -> str | None:
    """Digest extras of any depth by the byte layout; None where something else in them has no digest."""
    pieces: list[bytes] = []
    waiting: list[Any] = [extras]
    try:
        while waiting:
            value = waiting.pop()
            if isinstance(value, _Key):
                pieces.append(text(value.key))
            elif type(value) is list:
                pieces.append(b"L" + u64(len(value)))
                waiting += reversed(value)
            elif type(value) is dict:
                keys = sorted(value, key=lambda key: key.encode("utf-8"))
                pieces.append(b"D" + u64(len(keys)))
                waiting += (part for key in reversed(keys) for part in (value[key], _Key(key)))
            else:
                pieces.append(extra(value))
    except (AttributeError, TypeError, ValueError):
        return None
    return sha256(EXTRAS_DOMAIN, bytes([EXTRAS_DIGEST_VERSION]) + b"".join(pieces))
