"""Real histories: rollouts captured by nemo-gym's own core, staged through our sink, with the receipts it produced.

Generated histories only cover what their author thought of. Here the deltas, hashes and digests come from nemo-gym's
``RolloutTokenCapture`` and its vLLM adapter, fed with chat completions shaped as a vLLM server answers; the rows go
through our staging sink into a data plane; the receipt is put together from nemo-gym's own records and terminal
selection; and nemo-gym's ``verify_and_linearize`` says what row must come of it.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, Protocol

from attrs import NOTHING, define, evolve, field, fields, frozen
from hypothesis.strategies import SearchStrategy

from rollproof.properties.nemo_gym.adapter import call_of, load_staging, receipt_of, row_of
from rollproof.properties.nemo_gym.conversations import (
    CAPTURED_ROLLOUT,
    Conversation,
    Outcome,
    Turn,
    conversations,
    history,
    response,
    response_id,
    said,
)
from rollproof.properties.strategies.stream import Stream
from rollproof.spec.constants import (
    MODE_TEXT,
    MODE_TOKEN_IN,
)
from rollproof.spec.judge.invariant import Case, describe, difference, invariant
from rollproof.spec.judge.requests import Accepted, Answer, Area, FinalizeRollout, Linearize, Refused
from rollproof.spec.judge.staging import Staging
from rollproof.spec.records import CallRecord, ReassemblerConfig, StagedCall
from rollproof.spec.staged import Row

OUTSIDE_REBUILD: Final = frozenset({"rollout_failed", "capture_poisoned"})
"""Codes of the verifier that ``finalize_rollout`` reports separately, before anything is rebuilt."""
FAILED_CALL: Final = "worker_capture_failed"
"""The failure that the gate records for a call whose capture did not complete."""


class Sink(Protocol):
    """The interface that the capture core writes to; ``rollproof.impl.staging.StagingSink`` is one."""

    def stage(self, record: Any, *, attachments: Mapping[str, Any] | None = None) -> Any:
        """Store one record durably before returning a stage result."""


class Source(Protocol):
    """The interface from which a worker reads the calls that make up a prefix."""

    def fetch(self, staging_keys: list[str]) -> Sequence[Any]:
        """Return one base snapshot per key, in order."""


@frozen
class CapturedRollout:
    """The outcome of a captured conversation."""

    rollout_id: str
    receipt: dict[str, Any]
    """As JSON."""
    calls: tuple[StagedCall, ...]
    """The manifest's staged calls, in manifest order."""
    answer: Answer
    """The verdict of nemo-gym's own verifier on its own receipt and snapshots."""
    theirs: tuple[Any, Any]
    """Its receipt and snapshots, as its own models."""
    rows: Mapping[str, Row] = field(factory=dict)
    """What the sink put into the data plane, by staging key: dead branches and rejected calls too."""

    def linearize(self) -> Linearize:
        """Return the request to verify and linearize it."""
        return Linearize(receipt_of(self.theirs[0]), self.calls)

    def finalize(self, config: ReassemblerConfig | None = None) -> FinalizeRollout:
        """Return the request to finalize it, over exactly the rows that were staged."""
        config = config or ReassemblerConfig()
        return FinalizeRollout(config, self.rollout_id, self.receipt, self.receipt["reward"], Staging(self.rows))

    def difference(self, found: Answer) -> str | None:
        """Return how an answer to ``finalize`` differs from nemo-gym's own verdict, or None."""
        return difference_from(self.answer, found)


def difference_from(theirs: Answer, found: Answer) -> str | None:
    """Return how a finalized rollout differs from what nemo-gym's verifier says of it, or None.

    An accepted rollout must be its row, bit for bit; a refused one must name its code.
    """
    if not isinstance(found, Accepted) or found.value.rollout is None:
        return f"expected a rollout, but it {describe(found)}"
    rollout = found.value.rollout
    if isinstance(theirs, Refused):
        code = theirs.code if theirs.code in OUTSIDE_REBUILD else f"rebuild_failed:{theirs.code}"
        reason = rollout.rejection_reason or "accepted"
        return None if f"{reason}:".startswith(f"{code}:") else f"nemo-gym refuses with {code}, found {reason}"
    if not isinstance(theirs, Accepted) or not rollout.valid:
        return f"nemo-gym accepts it, found {rollout.rejection_reason}"
    columns = ("token_ids", "token_mask", "logprobs", "prompt_len")
    row, ours = (tuple(getattr(side, name) for name in columns) for side in (theirs.value, rollout))
    return difference(row, ours)


@define
class Gate:
    """The model server's side: admits calls, keeps the ledger, and assembles the receipt."""

    conversation: Conversation
    sink: Sink
    source: Source
    staging: Any = field(factory=load_staging)
    records: list[Any] = field(factory=list)
    """The manifest rows, in the order in which calls were committed."""
    admissions: list[Any] = field(factory=list)
    """What each call was admitted with, in the order of the calls that were made."""
    failures: list[str] = field(factory=list)
    snapshots: list[Any] = field(factory=list)
    _committed: dict[int, Any] = field(factory=dict)
    _chains: dict[int, list[str]] = field(factory=dict)

    def run(self) -> CapturedRollout:
        """Make every call of the conversation, then close the rollout."""
        for position, turn in enumerate(self.conversation.turns):
            if turn.parent is None or turn.parent in self._committed:
                self._make(position, turn)
        receipt = self._receipt()
        return CapturedRollout(
            self.conversation.rollout_id,
            receipt.model_dump(mode="json"),
            tuple(call_of(snapshot) for snapshot in self.snapshots),
            verdict(receipt, self.snapshots),
            (receipt, self.snapshots),
        )

    def _make(self, position: int, turn: Turn) -> None:
        """Admit one call, let the worker capture it, and commit or record its failure."""
        tee = _Tee(self.sink)
        adapter = vllm_adapter()
        capture = self.staging.RolloutTokenCapture(
            sink=tee, weight_version_fn=lambda: turn.weight_version, adapter=adapter
        )
        admission = self._admit(position, turn)
        self.admissions.append(admission)
        prefix = self._prefix(admission)
        call = capture.begin_call(admission, prefix_token_ids=prefix or None)
        request = adapter.enter_prefix({}, prefix)
        if turn.outcome is Outcome.FAILED:
            coords = capture.fail_call(call, reason="the engine failed")
        else:
            coords = capture.complete_call_from_response(call, response(position, turn, request))
        if coords.disposition != "staged":
            self.failures.append(FAILED_CALL)
            return
        record = self.staging.CallRecord(
            **{name: getattr(coords, name) for name in COMMITTED},
            mode=admission.mode,
            admitted_at=turn.admitted_at,
            response_id=response_id(position),
            **self._fingerprints(position),
        )
        self.records.append(record)
        self.snapshots.append(
            self.staging.StagedCallBaseSnapshot.model_validate(tee.staged.model_dump(exclude={"extras"}))
        )
        self._committed[position] = record
        self._chains[position] = [*self._chain_of(turn.parent), record.staging_key]

    def _chain_of(self, parent: int | None) -> list[str]:
        return [] if parent is None else self._chains[parent]

    def _admit(self, position: int, turn: Turn) -> Any:
        identity = {"rollout_id": self.conversation.rollout_id, "model_call_id": f"call-{position}"}
        if turn.parent is None:
            return self.staging.CaptureAdmission(**identity, mode=MODE_TEXT)
        parent, chain = self._committed[turn.parent], self._chains[turn.parent]
        prefix = {"required_prefix_token_ids": self._resolve(chain)} if turn.inline_prefix else {"staging_chain": chain}
        return self.staging.CaptureAdmission(
            **identity,
            mode=MODE_TOKEN_IN,
            parent_call_id=parent.model_call_id,
            prev_len=parent.cum_len,
            parent_chain_hash=parent.chain_hash,
            **prefix,
        )

    def _fingerprints(self, position: int) -> dict[str, Any]:
        """Return what lets the gate recognise a call's answer in a later request's messages."""
        package = importlib.import_module("nemo_gym.token_id_capture.fingerprint")
        asked = history(self.conversation, position)
        return {
            "fingerprint_version": package.FINGERPRINT_VERSION,
            "output_fingerprint": package.assistant_fingerprint([said(position)]),
            "continuation_fingerprint": package.assistant_fingerprint([*asked, said(position)]),
        }

    def _prefix(self, admission: Any) -> list[int]:
        """Return a worker's use of an admission: its ids, or the deltas of the staged calls that it names."""
        return list(admission.required_prefix_token_ids) or self._resolve(admission.staging_chain)

    def _resolve(self, chain: list[str]) -> list[int]:
        return [token for snapshot in self.source.fetch(list(chain)) for token in snapshot.token_ids_delta]

    def _receipt(self) -> Any:
        """Return the receipt as a framework assembles it at the rollout's end."""
        terminal, method, reason = self._terminal()
        failure = next(iter(self.failures), None) or (reason if terminal is None else None)
        return self.staging.RolloutReceipt(
            rollout_id=self.conversation.rollout_id,
            reward=1.0,
            terminal_model_call_id=terminal,
            manifest=self.records,
            capture_poisoned=failure is not None,
            failure_reason=failure,
            terminal_selection=method,
            terminal_attribution_reason=reason,
        )

    def _terminal(self) -> tuple[str | None, str, str]:
        if self.conversation.declared is not None:
            kept = response_id(self.conversation.declared)
            found = self.staging.resolve_terminal(self.records, None, declared_response_id=kept)
            return found.model_call_id, "declared", found.reason
        chosen = self.staging.select_terminal_call(self.records)
        return chosen.terminal_model_call_id, "heuristic", chosen.reason


def verdict(receipt: Any, snapshots: Sequence[Any]) -> Answer:
    """Return the verdict of nemo-gym's verifier on its own receipt and snapshots."""
    staging = load_staging()
    try:
        return Accepted(row_of(staging.verify_and_linearize(receipt, snapshots)))
    except staging.ReceiptVerificationError as error:
        return Refused(str(error))


COMMITTED: Final = tuple(
    one.name for one in fields(CallRecord) if one.default is NOTHING and one.name not in ("response_id", "mode")
)
"""Fields that a manifest row takes from the worker's acknowledgement."""


def vllm_adapter() -> Any:
    """Return the package's own adapter for vLLM's responses."""
    return importlib.import_module("nemo_gym.token_id_capture.adapters.vllm").VLLMCaptureAdapter()


@define
class _Tee:
    """A sink that keeps the record it passes on."""

    inner: Sink
    staged: Any = None

    def stage(self, record: Any, *, attachments: Mapping[str, Any] | None = None) -> Any:
        """Pass the record on, with attachments only where there are some, as the capture core does."""
        self.staged = record
        return self.inner.stage(record) if attachments is None else self.inner.stage(record, attachments=attachments)


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the capture core's log: scripted failures are not news."""
    logger = logging.getLogger("nemo_gym.token_id_capture.staging.capture")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)


def capture(conversation: Conversation, sink: Sink, source: Source) -> CapturedRollout:
    """Run a conversation through nemo-gym's capture core into ``sink``, and get the row from its verifier.

    ``source`` reads what ``sink`` staged. Raises ``ImportError`` where nemo-gym is not installed.
    """
    with quiet():
        return Gate(conversation, sink, source).run()


def captured(conversation: Conversation) -> CapturedRollout:
    """Capture a conversation into our staging sink over a data plane inside the process."""
    from rollproof.impl.staging import StagingSink
    from rollproof.properties.nemo_gym.source import PARTITION, SnapshotSource, StagedRows

    plane = StagedRows()
    rollout = capture(conversation, StagingSink(plane, PARTITION), SnapshotSource(plane))
    return evolve(rollout, rows=plane.rows)


def captured_rollouts(*, failures: bool = True) -> SearchStrategy[CapturedRollout]:
    """Draw rollouts of scripted conversations, captured by nemo-gym's own core; see ``conversations``."""
    return conversations(failures=failures).map(captured)


# ── in the gate ─────────────────────────────────────────────────────────────────────────────────────────────────────


def verdict_on(request: FinalizeRollout) -> Answer:
    """Return the verdict of nemo-gym's verifier on the receipt and the staged rows of a captured rollout."""
    from rollproof.properties.nemo_gym.source import SnapshotSource, StagedRows

    receipt = load_staging().RolloutReceipt.model_validate(request.receipt)
    plane = StagedRows.holding(request.staging.rows)
    return verdict(receipt, SnapshotSource(plane).fetch([record.staging_key for record in receipt.manifest]))


@invariant(
    "CAPTURED-1",
    Area.ROLLOUT,
    "5",
    "A rollout captured by nemo-gym's own core finalizes to exactly the row of its own verify_and_linearize.",
    (FinalizeRollout,),
)
def captured_row(case: Case[FinalizeRollout]) -> str | None:
    """Checked against nemo-gym's verdict, not against the spec."""
    return (
        difference_from(verdict_on(case.request), case.answer) if case.request.rollout_id == CAPTURED_ROLLOUT else None
    )


def streams(area: Area) -> Iterator[Stream]:
    """Yield captured rollouts for the areas lineage and rollout; none where nemo-gym or our sink cannot be loaded."""
    if area not in (Area.LINEAGE, Area.ROLLOUT):
        return
    try:
        load_staging()
        importlib.import_module("rollproof.impl.staging")
    except ImportError:
        return
    if area is Area.LINEAGE:
        yield Stream("captured", area, captured_rollouts().map(lambda rollout: rollout.linearize()), 0.2)
    if area is Area.ROLLOUT:
        yield Stream("captured", area, captured_rollouts().map(lambda rollout: rollout.finalize()), 0.5)
