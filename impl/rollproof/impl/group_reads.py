"""One read for the base columns of a whole group (``reads="group"``), in place of one per rollout, with its media.

A data plane answers a batch as a whole: what one row lacks, all rows of the answer lack, and where a row is missing the
answer does not say whose. So rows that are missing take a second read. The rows of the first answer, each by its own
rollout and call id, or the plane's error by the rows that it names, say which rows are there; these are read again, and
an answer of as many rows proves it: then every other row is missing. Where the plane does not say which rows are there,
or contradicts itself, every rollout is read separately; and a rollout whose rows cannot be accepted as they came in the
group's answer is read separately before it is rejected. A lost or damaged row costs its own rollout only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from attrs import field, frozen

from rollproof.impl.checks import fault, first_of
from rollproof.impl.columns import Answer, HeldRows, read_texts
from rollproof.impl.dataplane import has_new_answers
from rollproof.impl.dataplane.misses import missing_names
from rollproof.impl.records import ReceiptColumns, read_receipt
from rollproof.impl.rollout import check_receipt
from rollproof.impl.staged import base_columns
from rollproof.impl.staging import FewerRows, StagingSource
from rollproof.spec.constants import MEDIA_TENSOR_COLUMNS, ROUTED_EXPERTS
from rollproof.spec.records import ReassemblerConfig
from rollproof.spec.rejections import Code, Rejected

READ_ALONE: Final = frozenset(
    code.code
    for code in (
        Code.INVALID_STAGING_ROW,
        Code.STAGING_KEY_MISMATCH,
        Code.CALL_ID_MISMATCH,
        Code.DUPLICATE_FETCHED_CALL_ID,
        Code.REBUILD_FAILED,
        Code.INVALID_MEDIA_COLUMNS,
    )
)
"""Rejections that may be about how the group's rows came together: such a rollout is finalized on a read of its own."""


@frozen(eq=False)
class GroupRows(StagingSource):
    """A source that has the rows of one group's base read; it reads everything else."""

    rows: HeldRows
    position: Mapping[str, int]
    """Which of the rows each staging key has."""
    absent: frozenset[str]
    """The staging keys whose rows the plane does not hold."""
    receipts: Mapping[str, ReceiptColumns] = field(factory=dict)
    """The receipts that rows were read for, by rollout id."""

    def read(self, keys: Sequence[str], columns: Sequence[str], optional: Sequence[str] = ()) -> Answer:
        """Return the rows of ``keys``, as ``StagingSource.read`` does."""
        lost = [key for key in keys if key in self.absent]
        if lost:
            raise Rejected(Code.MISSING_STAGING_ROW, f"{first_of(lost)}: {fault('staged row', None, 'one')}")
        if not self.has_read(keys, columns):
            return self.alone().read(keys, columns, optional)
        names = [*columns, *(name for name in optional if name in self.rows.columns)]
        return self.rows.take([self.position[key] for key in keys], names)

    def alone(self) -> StagingSource:
        """Return a source that reads everything."""
        self.rows.keep()
        return StagingSource(self.dp_client, self.partition)

    def has_read(self, keys: Sequence[str], columns: Sequence[str]) -> bool:
        """Return whether the group's read has these columns of these rows."""
        return bool(keys) and set(columns) <= self.rows.columns.keys() and all(key in self.position for key in keys)


def read_group(
    config: ReassemblerConfig, source: StagingSource, rollout_ids: Sequence[str], receipts: Sequence[Any]
) -> GroupRows:
    """Read the base columns of all rollouts with a valid receipt, with routes in direct router replay, and with media.

    Takes a second read where rows are missing. Nothing is held where the plane says that a column is missing, or does
    not say which rows are. Its other errors propagate as they are.
    """
    parsed = {
        rollout_id: found
        for rollout_id, receipt in zip(rollout_ids, receipts, strict=True)
        if (found := _receipt(rollout_id, receipt)) is not None
    }
    wanted = dict.fromkeys(key for receipt in parsed.values() for key in receipt.staging_keys)
    present: list[str] | None = list(wanted)
    columns, optional = base_columns(config), [ROUTED_EXPERTS] if config.direct_routes else []
    optional += MEDIA_TENSOR_COLUMNS if config.capture_media else ()
    rows, held, new = HeldRows({}, 0), list[str](), has_new_answers(source.dp_client)
    try:
        if present:
            rows, held = HeldRows.of(source.read(present, columns, optional), new=new), present
    except Rejected as refusal:
        present = _present(list(wanted), refusal)
        try:
            if present:
                rows, held = HeldRows.of(source.read(present, columns, optional), new=new), present
        except Rejected:
            present = None
    absent = frozenset() if present is None else frozenset(wanted.keys() - set(present))
    position = {key: row for row, key in enumerate(held)}
    return GroupRows(source.dp_client, source.partition, rows, position, absent, parsed)


def _present(keys: Sequence[str], refusal: Rejected) -> list[str] | None:
    """Return which of the rows are there, by what a refused read says; None where it does not say."""
    if isinstance(refusal, FewerRows):
        found = _identities(refusal)
        return [key for key in keys if key in found] if len(found & set(keys)) == refusal.count else None
    if refusal.code is not Code.MISSING_STAGING_ROW:
        return None
    missing = missing_names(refusal.__cause__, keys)
    return [key for key in keys if key not in missing] if 0 < len(missing) < len(keys) else None


def _identities(fewer: FewerRows) -> set[str]:
    """Return the staging keys that the answered rows give themselves; none where they cannot be read."""
    try:
        rollout_ids = read_texts(fewer.answer, "rollout_id_utf8") if fewer.count else []
        call_ids = read_texts(fewer.answer, "model_call_id_utf8") if fewer.count else []
    except ValueError:
        return set()
    return {f"{rollout_id}/{call_id}" for rollout_id, call_id in zip(rollout_ids, call_ids, strict=False)}


def _receipt(rollout_id: str, receipt: Any) -> ReceiptColumns | None:
    """Return a receipt whose rows will be read; None where its rollout is rejected before."""
    try:
        parsed = read_receipt(receipt)
        check_receipt(rollout_id, parsed)
    except Rejected:
        return None
    return parsed
