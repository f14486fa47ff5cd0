"""The scalar rules are confirmed over all paths, and wrong ones are not."""

from __future__ import annotations

import pytest

pytest.importorskip("crosshair", reason="the solver is in the extra dev")

from rollproof.properties.symbolic import routes
from rollproof.properties.symbolic.prover import Status, prove
from rollproof.properties.symbolic.registry import RULES


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_every_rule_is_confirmed(rule):
    assert rule.statement(*rule.witness) is True
    assert prove(rule, timeout=60).status is Status.CONFIRMED


def test_a_classification_that_reads_past_the_fragment_is_refuted(monkeypatch):
    def one_row_on(*lengths):
        leading, first, used = right(*lengths)
        return leading, first + (1 if used and first else 0), used

    right = routes.sentinel_and_used
    monkeypatch.setattr(routes, "sentinel_and_used", one_row_on)
    assert prove(routes.used_rows_lie_inside_the_fragment, timeout=60).status is Status.REFUTED
