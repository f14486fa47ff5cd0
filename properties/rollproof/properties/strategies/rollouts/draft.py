"""A rollout being edited: the parts of a history that can be made to disagree.

An edit changes a draft in place. ``amend`` changes what was captured, receipt and staged call alike, with the digest
made right again; ``stage`` and ``list_as`` change one side only; ``put_column`` changes a wire column. So each edit can
break exactly one rule.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any, TypeAlias

from attrs import define, evolve, field
from hypothesis import reject

from rollproof.properties.strategies.rollouts.history import (
    Call,
    History,
    receipt_record,
    redigest,
    staged_columns,
)
from rollproof.properties.strategies.rollouts.staged_calls import SHARED_FIELDS
from rollproof.properties.strategies.scalars import Bytes
from rollproof.spec.judge.requests import FinalizeRollout, Linearize, ParseReceipt
from rollproof.spec.judge.staging import OnMiss, Staging
from rollproof.spec.records import ReassemblerConfig
from rollproof.spec.tensor import Tensor


class Inapplicable(Exception):
    """The draft has nothing that the edit could change."""


@define
class Draft:
    """A rollout being edited. Manifest rows, staged calls and keys are in manifest order."""

    rollout_id: Any
    receipt: Any
    """The raw receipt; an edit may replace it by anything."""
    calls: list[Call]
    keys: list[str]
    """Where each call is staged."""
    terminal: str | None
    columns: dict[int, dict[str, Tensor | None]] = field(factory=dict)
    """Per call, wire columns to replace, or to leave out."""
    missing: set[int] = field(factory=set)
    """Calls that are not staged at all."""
    strangers: dict[str, dict[str, Tensor]] = field(factory=dict)
    """Rows of other rollouts in the same partition."""
    reward: Any = 0.0
    config: ReassemblerConfig = field(factory=ReassemblerConfig)
    on_miss: OnMiss = OnMiss.FEWER

    @classmethod
    def of(cls, history: History) -> Draft:
        """Return a draft of a history, unchanged."""
        keys = [call.key for call in history.calls]
        return cls(history.rollout_id, history.raw_receipt(), list(history.calls), keys, history.terminal_call_id)

    # ── picking ─────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def manifest(self) -> list[dict[str, Any]]:
        """The raw manifest rows."""
        rows = self.receipt.get("manifest") if type(self.receipt) is dict else None
        if type(rows) is not list:
            raise Inapplicable
        return rows

    @property
    def count(self) -> int:
        """How many calls have a manifest row."""
        return min(len(self.manifest), len(self.calls))

    def pick(self, decide: Bytes, condition: Callable[[Call], bool] = lambda call: True) -> int:
        """Return the position of a call that has a manifest row and satisfies the condition; the first one for a 0."""
        found = [index for index in range(self.count) if condition(self.calls[index])]
        if not found:
            raise Inapplicable
        return decide.choose(found)

    def pick_two(self, decide: Bytes) -> tuple[int, int]:
        """Return two positions, in order."""
        first = self.pick(decide)
        second = self.pick(decide, lambda call: call is not self.calls[first])
        return min(first, second), max(first, second)

    def child(self, decide: Bytes) -> int:
        """Return the position of a call that continues another."""
        return self.pick(decide, lambda call: call.staged.parent_call_id is not None)

    def chain(self) -> list[str]:
        """Return the ids of the terminal chain, root first."""
        parents = {call.id: call.staged.parent_call_id for call in self.calls}
        walk: list[str] = []
        current = self.terminal
        while current is not None and current in parents and current not in walk:
            walk.append(current)
            current = parents[current]
        return walk[::-1]

    def on_chain(self, decide: Bytes, condition: Callable[[Call], bool] = lambda call: True) -> int:
        """Return the position of a call of the terminal chain."""
        chain = set(self.chain())
        return self.pick(decide, lambda call: call.id in chain and condition(call))

    def off_chain(self, decide: Bytes, condition: Callable[[Call], bool] = lambda call: True) -> int:
        """Return the position of a call on a dead branch."""
        chain = set(self.chain())
        return self.pick(decide, lambda call: call.id not in chain and condition(call))

    # ── changing ────────────────────────────────────────────────────────────────────────────────────────────────────

    def amend(self, index: int, **changes: Any) -> None:
        """Change what was captured: the staged call and its manifest row, with a correct digest."""
        self.calls[index] = redigest(self._changed(index, changes))
        staged = self.calls[index].staged
        self.list_as(index, **{name: getattr(staged, name) for name in (*changes, "digest") if name in SHARED_FIELDS})

    def stage(self, index: int, **changes: Any) -> None:
        """Change the staged call alone."""
        self.calls[index] = self._changed(index, changes)

    def restage(self, index: int, **changes: Any) -> None:
        """Change the staged call alone, with a correct digest of its own."""
        self.calls[index] = redigest(self._changed(index, changes))

    def _changed(self, index: int, changes: dict[str, Any]) -> Call:
        return evolve(self.calls[index], staged=evolve(self.calls[index].staged, **changes))

    def list_as(self, index: int, **changes: Any) -> None:
        """Change the manifest row alone."""
        self.manifest[index].update(changes)

    def put_column(self, index: int, name: str, column: Tensor | None) -> None:
        """Replace a wire column, or leave it out."""
        self.columns.setdefault(index, {})[name] = column

    def drop(self, index: int) -> None:
        """Take a call out of the rollout, manifest and staging alike."""
        del self.manifest[index], self.calls[index], self.keys[index]
        self.columns = {at - (at > index): columns for at, columns in self.columns.items() if at != index}
        self.missing = {at - (at > index) for at in self.missing if at != index}

    def set_terminal(self, call_id: str | None) -> None:
        """Name another terminal call."""
        self.terminal = call_id
        self.receipt["terminal_model_call_id"] = call_id

    # ── requests ────────────────────────────────────────────────────────────────────────────────────────────────────

    def rows(self) -> dict[str, dict[str, Tensor]]:
        """Return the staged rows."""
        rows = dict(self.strangers)
        for index, (key, call) in enumerate(zip(self.keys, self.calls, strict=True)):
            if index not in self.missing:
                columns = staged_columns(call)
                for name, column in self.columns.get(index, {}).items():
                    if column is None:
                        columns.pop(name, None)
                    else:
                        columns[name] = column
                rows[key] = columns
        return rows

    def finalize(self) -> FinalizeRollout:
        """Return the request to finalize it."""
        staging = Staging(self.rows(), on_miss=self.on_miss)
        return FinalizeRollout(self.config, self.rollout_id, self.receipt, self.reward, staging)

    def linearize(self) -> Linearize:
        """Return the request to verify and linearize it. The receipt must still have all fields."""
        fields = {name: value for name, value in self.receipt.items() if name != "manifest"}
        return Linearize(receipt_record(fields, self.manifest), tuple(call.staged for call in self.calls))

    def parse(self) -> ParseReceipt:
        """Return the request to read its receipt."""
        return ParseReceipt(self.receipt)


Edit: TypeAlias = Callable[[Draft, Bytes], None]
"""Breaks a rule, or changes what no rule forbids. Raises ``Inapplicable`` where there is nothing to change."""


def apply(edit: Edit, draft: Draft, decide: Bytes) -> None:
    """Edit the draft, or discard this example."""
    try:
        edit(draft, decide)
    except Inapplicable:
        reject()


def fresh(value: Any) -> Any:
    """Return a copy of a JSON value from a table, so that a later edit cannot change the table."""
    return deepcopy(value) if type(value) in (dict, list) else value


def flipped(digest: str, decide: Bytes) -> str:
    """Return another digest: one hex character differs."""
    at = decide.below(len(digest))
    return digest[:at] + format(int(digest[at], 16) ^ (1 + decide.below(15)), "x") + digest[at + 1 :]
