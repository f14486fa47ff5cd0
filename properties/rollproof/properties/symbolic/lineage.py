"""Verifying and linearizing a chain (section 4): carry boundary, spans, the graph of calls."""

from __future__ import annotations

from rollproof.properties.symbolic.build import accepted, staged_call
from rollproof.properties.symbolic.rule import rule
from rollproof.spec.lineage import (
    carry_length,
)
from rollproof.spec.records import StagedCall

MASKS = "all masks of 1 to 4 tokens"


def masked(mask: list[bool]) -> StagedCall:
    """Return a call whose generated tokens are the flagged ones."""
    return staged_call("a", None, [1.0 if generated else 0.0 for generated in mask])


@rule("4", ("LINEAGE-3", "LINEAGE-2"), MASKS, ([False, True],))
def carry_comes_before_generation(mask: list[bool]) -> bool:
    """A call is refused iff a carry token follows a generated one, or none is generated.

    pre: 1 <= len(mask) <= 4
    post: _
    """
    return accepted(carry_length, masked(mask)) == (any(mask) and mask == sorted(mask))


@rule("4", ("LINEAGE-2", "LINEAGE-4"), MASKS, ([False, True],))
def the_carry_is_every_token_before_generation(mask: list[bool]) -> bool:
    """The carry boundary is the number of tokens that were not generated.

    pre: 1 <= len(mask) <= 4
    pre: any(mask) and mask == sorted(mask)
    post: _
    """
    return carry_length(masked(mask)) == mask.count(False)
