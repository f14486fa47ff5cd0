"""The spec itself as an implementation: what mutants are made of, and a check that the gate can hold at all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from rollproof.properties.protocol import Adapter, Refusal
from rollproof.spec import oracle
from rollproof.spec.outcomes import GroupOutcome
from rollproof.spec.plane import Staging
from rollproof.spec.records import (
    CallRecord,
    LinearizedRow,
    ReassemblerConfig,
    Receipt,
    StagedCall,
    TerminalSelection,
)
from rollproof.spec.requests import (
    Area,
    CallDigest,
    ChainDigest,
    ExtrasDigest,
    FinalizeGroups,
    FinalizeRollout,
    GroupStep,
    Linearize,
    ParseReceipt,
    PrefixDigest,
    Refused,
    Request,
    RolloutAnswer,
    SelectTerminal,
)


class Reference(Adapter):
    """Every area, answered by ``rollproof.spec``."""

    name: ClassVar[str] = "spec"
    areas: ClassVar[frozenset[Area]] = frozenset(Area)

    def ask(self, request: Request) -> Any:
        """The spec's value, or its refusal."""
        answer = oracle.answer(request)
        if isinstance(answer, Refused):
            raise Refusal(answer.reason)
        return answer.value  # type: ignore[union-attr]

    def prefix_digest(self, token_ids: tuple[int, ...]) -> str:
        """Section 2."""
        return str(self.ask(PrefixDigest(token_ids)))

    def chain_digest(self, parent_chain_hash: str | None, token_ids: tuple[int, ...]) -> str:
        """Section 2."""
        return str(self.ask(ChainDigest(parent_chain_hash, token_ids)))

    def extras_digest(self, extras: Any) -> str:
        """Section 2."""
        return str(self.ask(ExtrasDigest(extras)))

    def call_digest(self, call: StagedCall) -> str:
        """Section 2."""
        return str(self.ask(CallDigest(call)))

    def parse_receipt(self, value: Any) -> Receipt:
        """Section 3."""
        receipt: Receipt = self.ask(ParseReceipt(value))
        return receipt

    def select_terminal(self, records: Sequence[CallRecord]) -> TerminalSelection:
        """Section 3."""
        selection: TerminalSelection = self.ask(SelectTerminal(tuple(records)))
        return selection

    def linearize(self, receipt: Receipt, calls: Sequence[StagedCall]) -> LinearizedRow:
        """Section 4."""
        row: LinearizedRow = self.ask(Linearize(receipt, tuple(calls)))
        return row

    def finalize_rollout(
        self, config: ReassemblerConfig, rollout_id: str, receipt: Any, reward: Any, staging: Staging
    ) -> RolloutAnswer:
        """Section 5."""
        rollout: RolloutAnswer = self.ask(FinalizeRollout(config, rollout_id, receipt, reward, staging))
        return rollout

    def finalize_groups(
        self, config: ReassemblerConfig, steps: Sequence[GroupStep], staging: Staging
    ) -> tuple[GroupOutcome, ...]:
        """Section 8."""
        groups: tuple[GroupOutcome, ...] = self.ask(FinalizeGroups(config, tuple(steps), staging))
        return groups
