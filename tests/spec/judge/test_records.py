"""Each invariant of receipts alone on a wrong answer made by hand: no later one may be needed to notice."""

from __future__ import annotations

import pytest
from answers import complaint

from rollproof.spec.judge.requests import Answer, Crashed, ParseReceipt, Refused


@pytest.mark.parametrize("actual", [Crashed("KeyError"), Refused("identity_mismatch: r"), Refused("")])
def test_receipt_3_notices_another_answer_to_a_value_that_is_not_a_receipt(actual: Answer) -> None:
    assert complaint("RECEIPT-3", ParseReceipt(None), Refused("invalid_receipt"), actual)


@pytest.mark.parametrize("text", ["", ": a reason", ":"])
def test_receipt_3_leaves_what_follows_the_code_of_a_refusal_free(text: str) -> None:
    refused = Refused(f"invalid_receipt{text}")
    assert complaint("RECEIPT-3", ParseReceipt(None), Refused("invalid_receipt"), refused) is None
