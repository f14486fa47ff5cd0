"""NVIDIA's nemo-gym as an implementation: the reference for digests, receipts, terminal selection and lineage.

None of us wrote it, so an agreement between it and the spec says more than any two derivations of ours. It is called
through the public functions of ``nemo_gym.token_id_capture.staging``. Receipts are parsed by its own pydantic models;
requests of the lineage area, which may hold anything, go in through ``model_construct``, because a model that validates
first would hide the codes that the verifier itself must report.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from typing import Any, Final, cast

from attrs import asdict, fields

from rollproof.properties.adapters.protocol import Refusal
from rollproof.properties.nemo_gym.deviations import DEVIATIONS
from rollproof.properties.nemo_gym.routes import ROUTE_DEVIATIONS, NemoGymRoutes
from rollproof.spec.judge.requests import Area
from rollproof.spec.records import (
    CallRecord,
    ExtrasCommitment,
    LinearizedRow,
    LinkSpan,
    Receipt,
    StagedCall,
    TerminalSelection,
    WeightVersionSpan,
)

INSTALL_HINT: Final = (
    "nemo-gym is not installed: pip install orjson pydantic, "
    "then pip install --no-deps --ignore-requires-python nemo-gym==0.7.0"
)
REFUSALS: Final = (TypeError, ValueError, OverflowError)
"""What the public digest functions raise for a value without a digest."""


class NemoGym(NemoGymRoutes):
    """The public package ``nemo-gym``: digest, receipt, terminal, lineage, and the codec part of routes.

    Raises ``ImportError`` with an installation hint where the package is missing.
    """

    name = "nemo-gym"
    areas = frozenset({Area.DIGEST, Area.RECEIPT, Area.TERMINAL, Area.LINEAGE, Area.ROUTES})
    deviations = (*DEVIATIONS, *ROUTE_DEVIATIONS)
    packages = ("nemo_gym",)

    def __init__(self) -> None:
        self.staging = load_staging()

    def prefix_digest(self, token_ids: tuple[int, ...]) -> str:
        """Return the cumulative hash (section 2)."""
        return self._digest(self.staging.hash_token_ids, token_ids)

    def chain_digest(self, parent_chain_hash: str | None, token_ids: tuple[int, ...]) -> str:
        """Return the chain hash (section 2)."""
        return self._digest(self.staging.compute_chain_hash, parent_chain_hash, token_ids)

    def extras_digest(self, extras: Any) -> str:
        """Return the extras digest (section 2). A ``RecursionError`` is not a refusal and escapes."""
        return self._digest(self.staging.compute_extras_digest, extras)

    def call_digest(self, call: StagedCall) -> str:
        """Return the digest of a staged call (section 2)."""
        columns = asdict(call, recurse=False)
        del columns["digest"]
        return self._digest(self.staging.compute_staging_digest, **columns)

    def parse_receipt(self, value: Any) -> Receipt:
        """Read a JSON value with the package's receipt model (section 3)."""
        try:
            return receipt_of(self.staging.RolloutReceipt.model_validate(value))
        except self.staging.ValidationError as error:
            raise Refusal(f"invalid_receipt: {error.title}: {error.error_count()} violations") from None

    def select_terminal(self, records: Sequence[CallRecord]) -> TerminalSelection:
        """Walk over the parent links (section 3)."""
        found = self.staging.select_terminal_call([self.theirs_record(record) for record in records])
        return TerminalSelection(found.terminal_model_call_id, found.reason)

    def linearize(self, receipt: Receipt, calls: Sequence[StagedCall]) -> LinearizedRow:
        """Return the verified row (section 4)."""
        try:
            row = self.staging.verify_and_linearize(
                self.theirs_receipt(receipt), [self.theirs_call(call) for call in calls]
            )
        except self.staging.ReceiptVerificationError as error:
            raise Refusal(str(error)) from None
        return row_of(row)

    # ── the spec's records as the package's, unvalidated ────────────────────────────────────────────────────────────

    def theirs_record(self, record: CallRecord) -> Any:
        """Return a manifest row."""
        return self.staging.CallRecord.model_construct(**asdict(record, recurse=False))

    def theirs_receipt(self, receipt: Receipt) -> Any:
        """Return a receipt with its manifest."""
        columns = asdict(receipt, recurse=False)
        columns["manifest"] = [self.theirs_record(record) for record in receipt.manifest]
        return self.staging.RolloutReceipt.model_construct(**columns)

    def theirs_call(self, call: StagedCall) -> Any:
        """Return a staged call, its token columns as lists."""
        columns = asdict(call, recurse=False)
        for name in ("token_ids_delta", "token_mask_delta", "generation_log_probs_delta"):
            columns[name] = list(columns[name])
        return self.staging.StagedCallBaseSnapshot.model_construct(**columns)

    @staticmethod
    def _digest(function: Any, *args: Any, **kwargs: Any) -> str:
        try:
            return cast(str, function(*args, **kwargs))
        except REFUSALS as error:
            raise Refusal(f"no digest: {type(error).__name__}") from None


class _Staging:
    """The public names of the staging package, with pydantic's ``ValidationError`` beside them."""

    def __init__(self) -> None:
        self._package = importlib.import_module("nemo_gym.token_id_capture.staging")
        self.ValidationError: Any = importlib.import_module("pydantic").ValidationError

    def __getattr__(self, name: str) -> Any:
        return getattr(self._package, name)


def load_staging() -> Any:
    """Return the staging package; ``ImportError`` says how to install it."""
    try:
        return _Staging()
    except ImportError as error:
        raise ImportError(f"{INSTALL_HINT} ({error})") from error


# ── the package's records as the spec's ─────────────────────────────────────────────────────────────────────────────


def receipt_of(found: Any) -> Receipt:
    """Convert a receipt of the package."""
    values = {field.name: getattr(found, field.name) for field in fields(Receipt)}
    values["manifest"] = tuple(record_of(record) for record in found.manifest)
    return Receipt(**values)


def record_of(found: Any) -> CallRecord:
    """Convert a manifest row of the package."""
    return CallRecord(**{field.name: getattr(found, field.name) for field in fields(CallRecord)})


def call_of(found: Any) -> StagedCall:
    """Convert a staged record or snapshot of the package."""
    values = {field.name: getattr(found, field.name) for field in fields(StagedCall)}
    for name in ("token_ids_delta", "token_mask_delta", "generation_log_probs_delta"):
        values[name] = tuple(values[name])
    return StagedCall(**values)


def row_of(found: Any) -> LinearizedRow:
    """Convert a linearized row of the package."""

    def spans(kind: Any, items: Iterable[Any]) -> tuple[Any, ...]:
        names = [field.name for field in fields(kind)]
        return tuple(kind(*(getattr(item, name) for name in names)) for item in items)

    return LinearizedRow(
        rollout_id=found.rollout_id,
        token_ids=tuple(found.token_ids),
        token_mask=tuple(found.token_mask),
        logprobs=tuple(found.logprobs),
        prompt_len=found.prompt_len,
        model_call_ids=tuple(found.model_call_ids),
        weight_versions=tuple(found.weight_versions),
        weight_version_spans=spans(WeightVersionSpan, found.weight_version_spans),
        link_spans=tuple(LinkSpan(*span) for span in found.link_spans),
        extras_commitments=spans(ExtrasCommitment, found.extras_commitments),
    )
