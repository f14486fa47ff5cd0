"""Our implementation with one fault each, on paths that few inputs take; and three that break a limit now and then."""

from __future__ import annotations

import hashlib
import math
from typing import Any
from unittest.mock import patch

from attrs import evolve

from rollproof.impl import base64, digest
from rollproof.impl.reassembler import RolloutReassembler
from rollproof.impl.staging import StagingSource
from rollproof.properties.adapters.ours import Ours
from rollproof.properties.adapters.protocol import Refusal
from rollproof.spec.judge.requests import Area
from rollproof.spec.records import TerminalSelection
from rollproof.spec.rejections import Code, Rejected


class LaterRoot(Ours):
    """Of several roots that were admitted at the same time, the last one in the manifest wins, from four roots on."""

    name = "planted-later-root"
    areas = frozenset({Area.TERMINAL})

    def select_terminal(self, records):
        found = super().select_terminal(records)
        roots = [record for record in records if record.parent_call_id is None]
        stamps = [math.inf if root.admitted_at is None else root.admitted_at for root in roots]
        if found.terminal_model_call_id is None or len(stamps) < 4 or len(stamps) == len(set(stamps)):
            return found
        turned = sorted(records, key=lambda record: record.parent_call_id is not None)
        turned = turned[: len(roots)][::-1] + turned[len(roots) :]
        other = super().select_terminal(turned)
        return (
            TerminalSelection(other.terminal_model_call_id, found.reason)
            if other.terminal_model_call_id is not None
            else found
        )


class LooseEnd(Ours):
    """Base64 that ends in two signs of padding may carry bits after its last byte."""

    name = "planted-loose-end"
    areas = frozenset({Area.ROUTES})

    def decode_routes(self, payload):
        def loose(text, byte_count):
            if text.endswith("==") and len(text) == base64.encoded_length(byte_count):
                text = text[:-3] + {0: "A", 1: "Q", 2: "g", 3: "w"}[b64_value(text[-3]) >> 4] + "=="
            return strict(text, byte_count)

        strict = base64.decode
        with patch.object(base64, "decode", loose):
            return super().decode_routes(payload)


def b64_value(char):
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    return max(0, alphabet.find(char))


class Utf16Order(Ours):
    """Keys of extras are sorted by their UTF-16 code units: astral characters come before U+E000."""

    name = "planted-utf16-order"
    areas = frozenset({Area.DIGEST})

    def extras_digest(self, extras):
        def order(keys, key):
            keys = list(keys)
            if any(max(text, default="") >= "\U00010000" for text in keys):
                return sorted(keys, key=lambda text: text.encode("utf-16-be"))
            return sorted(keys, key=key)

        with patch.object(digest, "sorted", order, create=True):
            return super().extras_digest(extras)


# ── beyond a limit ──────────────────────────────────────────────────────────────────────────────────────────────────


class Hostage(Ours):
    """Breaks one limit each on some receipts, plans and envelopes, and ignores everything else."""

    name = "planted-hostage"
    areas = frozenset({Area.RECEIPT, Area.ROUTES})

    def parse_receipt(self, value):
        if type(value) is list and value:
            hashlib.pbkdf2_hmac("sha256", b"", b"", 600_000)
        return super().parse_receipt(value)

    def decode_plan(self, value):
        if type(value) is dict and len(value) == 6:
            bytearray(1_000_000)
        return super().decode_plan(value)

    def decode_routes(self, payload):
        if type(payload) is str and not payload.isascii():
            raise KeyError("no digit")
        return super().decode_routes(payload)


class Endless(Ours):
    """Never answers."""

    name = "planted-endless"

    def parse_receipt(self, value):
        while True:
            pass


class Swallowed(Ours):
    """A receipt with a failure_reason loses it. Every second receipt stream notices."""

    name = "planted-swallowed"
    areas = frozenset({Area.RECEIPT})

    def parse_receipt(self, value):
        found = super().parse_receipt(value)
        if found.failure_reason == "":
            raise Refusal("invalid_receipt")
        return evolve(found, failure_reason=None) if found.failure_reason is not None else found


class TakesErrorsForMisses(StagingSource):
    """As ``except (KeyError, ValueError)`` does."""

    def read(self, keys: Any, columns: Any, optional: Any = ()) -> Any:
        try:
            return super().read(keys, columns, optional)
        except (KeyError, ValueError) as error:
            raise Rejected(Code.MISSING_STAGING_ROW) from error


class SwallowsErrors(RolloutReassembler):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._source = TakesErrorsForMisses(self._dp_client, "staging")
