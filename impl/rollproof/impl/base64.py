"""Base64 as envelopes use it: padded, strict, one text per value.

``pybase64`` works with vector instructions, and is used where it is installed (the extra ``fast``); the standard
library's codec does the same, several times slower. Encoding routes for their digest is most of what verifying costs.
"""

from __future__ import annotations

import binascii
from typing import Any, Final


def _pybase64() -> Any:
    """The package, or None where it is not installed."""
    try:
        import pybase64
    except ImportError:
        return None
    return pybase64


_FAST: Final = _pybase64()


def encoded_length(byte_count: int) -> int:
    """Characters of base64, padding included."""
    return -(-byte_count // 3) * 4


def encode(data: Any) -> bytes:
    """The base64 of a bytes-like object."""
    if _FAST is None:
        return binascii.b2a_base64(data, newline=False)
    encoded: bytes = _FAST.b64encode(data)
    return encoded


def decode(text: str, byte_count: int) -> bytearray:
    """The ``byte_count`` bytes that ``text`` encodes; ``ValueError`` for any text that ``encode`` would not write.

    The length is compared before anything is decoded. Each character stands for six bits, so only the last group can
    hold bits or padding that the bytes do not account for.
    """
    if len(text) != encoded_length(byte_count):
        raise ValueError(f"{len(text)} characters of base64 for {byte_count} bytes")
    if _FAST is None:
        data = bytearray(binascii.a2b_base64(text, strict_mode=True))
    else:
        data = _FAST.b64decode_as_bytearray(text, validate=True)
    last = max(0, len(data) - 1) // 3 * 3
    if len(data) != byte_count or encode(data[last:]) != text[-4:].encode("ascii"):
        raise ValueError("the payload ends otherwise than base64 would end it")
    return data
