"""rollproof's own implementation as the gate sees it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from rollproof.impl import digest, lineage, records, terminal
from rollproof.impl.reassembler import RolloutReassembler
from rollproof.properties.adapters.reassembler import ReassemblerAdapter
from rollproof.properties.protocol import Refusal
from rollproof.spec.records import CallRecord, LinearizedRow, Receipt, StagedCall, TerminalSelection
from rollproof.spec.rejections import Rejected
from rollproof.spec.requests import Area


class Ours(ReassemblerAdapter):
    """``rollproof.impl``, all areas."""

    name: ClassVar[str] = "impl"
    areas: ClassVar[frozenset[Area]] = frozenset(
        {Area.DIGEST, Area.RECEIPT, Area.TERMINAL, Area.LINEAGE, Area.ROLLOUT, Area.GROUP}
    )
    reassembler = RolloutReassembler

    def prefix_digest(self, token_ids: tuple[int, ...]) -> str:
        """Section 2."""
        return self._digest(digest.prefix_digest, token_ids)

    def chain_digest(self, parent_chain_hash: str | None, token_ids: tuple[int, ...]) -> str:
        """Section 2."""
        return self._digest(digest.chain_digest, parent_chain_hash, token_ids)

    def extras_digest(self, extras: Any) -> str:
        """Section 2."""
        return self._digest(digest.extras_digest, extras)

    def call_digest(self, call: StagedCall) -> str:
        """Section 2."""
        return self._digest(digest.call_digest, call)

    def _digest(self, function: Any, *arguments: Any) -> str:
        try:
            return str(function(*arguments))
        except ValueError as error:
            raise Refusal(f"no digest: {error}") from None

    def parse_receipt(self, value: Any) -> Receipt:
        """Section 3."""
        try:
            return records.parse_receipt(value)
        except Rejected as rejected:
            raise Refusal(rejected.reason) from None

    def select_terminal(self, records: Sequence[CallRecord]) -> TerminalSelection:
        """Section 3."""
        return terminal.select_terminal(records)

    def linearize(self, receipt: Receipt, calls: Sequence[StagedCall]) -> LinearizedRow:
        """Section 4."""
        try:
            return lineage.linearize(receipt, calls)
        except Rejected as rejected:
            raise Refusal(rejected.reason) from None
