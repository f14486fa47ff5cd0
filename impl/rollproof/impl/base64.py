"""Base64 as envelopes use it: padded, strict, one string per value.

``pybase64`` works with vector instructions, and is used where it is installed (the extra ``fast``); the standard
library's codec does the same, several times slower. Encoding routes for their digest is most of what verifying costs.
"""

from __future__ import annotations

import binascii
from typing import Any, Final

from rollproof.impl.checks import fault


def _pybase64() -> Any:
    """Return the package, or None where it is not installed."""
    try:
        import pybase64
    except ImportError:
        return None
    return pybase64


_FAST: Final = _pybase64()


def encoded_length(byte_count: int) -> int:
    """Return the characters of base64, padding included."""
    return -(-byte_count // 3) * 4


def encode(data: Any) -> bytes:
    """Return the base64 of a bytes-like object."""
    if _FAST is None:
        return binascii.b2a_base64(data, newline=False)
    encoded: bytes = _FAST.b64encode(data)
    return encoded


def decode(text: str, byte_count: int) -> bytearray:
    """Return the ``byte_count`` bytes that ``text`` encodes; ``ValueError`` for what ``encode`` would not write.

    The length is compared before anything is decoded. Each character represents six bits, so only the last group can
    hold bits or padding that the bytes do not account for.
    """
    if len(text) != encoded_length(byte_count):
        raise ValueError(
            fault("characters of base64", len(text), f"{encoded_length(byte_count)} for {byte_count} bytes")
        )
    try:
        if _FAST is None:
            data = bytearray(binascii.a2b_base64(text, strict_mode=True))
        else:
            data = _FAST.b64decode_as_bytearray(text, validate=True)
    except ValueError:
        raise ValueError(fault("payload", text, "base64")) from None
    last = max(0, len(data) - 1) // 3 * 3
    if len(data) != byte_count or encode(data[last:]) != text[-4:].encode("ascii"):
        raise ValueError(
            fault("end of payload", text[-4:], "canonical base64: its padding, and zeros after the last bit")
        )
    return data
