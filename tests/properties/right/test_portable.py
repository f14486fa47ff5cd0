"""Right estimators and layouts of media are held, and what they declare falls where they do not declare it."""

from __future__ import annotations

import pytest

from rollproof.properties.gate.profiles import PROFILES
from rollproof.properties.gate.run import Check
from rollproof.properties.right import load_right
from rollproof.properties.right.estimators import ESTIMATORS
from rollproof.properties.right.media_layouts import LAYOUTS
from rollproof.properties.right.portable import PortableImplementation
from rollproof.spec.portable import Policy

RIGHT = [*ESTIMATORS, *LAYOUTS]
BREAKS = {
    Policy.MASKED_VOTE: "ADV-3",
    Policy.UNCENTERED: "ADV-4",
    Policy.SINGLETON_RAW: "ADV-4",
    Policy.ROWS_VOTE: "ADV-5",
    Policy.COARSE: "ADV-7",
}
"""What falls where a policy is followed and not declared."""


def check(implementation, most):
    return Check(implementation, tuple(implementation.areas), PROFILES["quick"], 0, most, shrink=False).run()


@pytest.mark.parametrize("variant", RIGHT, ids=lambda variant: variant.name)
def test_a_right_variant_is_held(variant):
    assert not check(load_right(variant.name), 6).falsified


@pytest.mark.deep
@pytest.mark.parametrize("variant", RIGHT, ids=lambda variant: variant.name)
def test_a_right_variant_is_held_at_full_size(variant):
    report = check(load_right(variant.name), None)
    assert report.held
    assert report.exercised


@pytest.mark.parametrize("policy", BREAKS)
def test_a_policy_that_is_not_declared_is_a_fault(policy):
    (variant,) = (one for one in ESTIMATORS if policy in one.policies)
    report = check(PortableImplementation(variant, frozenset()), 20)
    assert [finding.invariant_id for finding in report.falsified] == [BREAKS[policy]]
