"""Metrics are shares and sums of rows."""

from __future__ import annotations

from cases import every

from rollproof.properties.symbolic.build import pick
from rollproof.properties.symbolic.group import rollout
from rollproof.spec.constants import MODE_TEXT, MODE_TOKEN_IN
from rollproof.spec.metrics import receipt_metrics, rollout_metrics
from rollproof.spec.outcomes import RolloutOutcome
from rollproof.spec.tensor import Tensor


@every(first=(False, True), second=(False, True), third=(False, True), with_media=(False, True))
def test_rates_are_shares_of_rows(first: bool, second: bool, third: bool, with_media: bool) -> bool:
    """The rate of invalid rows is that of all rows, that of media rows is of valid rows, or 0 without any."""
    flags = first, second, third
    fields = {"media": {"pixel_values": Tensor.of("float32", [0.0])}} if with_media else {}
    metrics = rollout_metrics([RolloutOutcome(rollout(valid, **fields)) for valid in flags])
    rates = metrics["finalize/invalid_row_rate"], metrics["finalize/media_row_rate"]
    return rates == (1.0 - flags.count(True) / 3, 1.0 if with_media and any(flags) else 0.0)


@every(first=range(5), second=range(5))
def test_every_manifest_row_is_counted_once(first: int, second: int) -> bool:
    """Calls are counted as token_in where they say so or say nothing, the others as text roots, and non-objects not."""
    rows = [{"mode": MODE_TOKEN_IN}, {}, {"mode": MODE_TEXT}, {"mode": 7}, "row"]
    metrics = receipt_metrics([{"manifest": [pick(rows, first), pick(rows, second)]}])
    counts = metrics["finalize/token_in_calls"], metrics["finalize/text_root_calls"]
    return counts == (sum(row < 2 for row in (first, second)), sum(2 <= row < 4 for row in (first, second)))
