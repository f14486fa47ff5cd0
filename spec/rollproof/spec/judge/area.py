"""Areas of the contract, and the base of all requests."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from attrs import frozen


class Area(StrEnum):
    """A part of the contract that an implementation may offer on its own."""

    DIGEST = "digest"
    RECEIPT = "receipt"
    TERMINAL = "terminal"
    LINEAGE = "lineage"
    ROLLOUT = "rollout"
    GROUP = "group"
    ROUTES = "routes"
    MEDIA = "media"
    RETAINED = "retained"
    MERGE = "merge"
    ROUTE_ALIGN = "route-align"
    ADVANTAGE = "advantage"
    MEDIA_ROWS = "media-rows"
    BOUNDARY = "boundary"
    SAMPLER = "sampler"
    CUTS = "cuts"


PORTABLE: Final = frozenset({Area.MERGE, Area.ROUTE_ALIGN, Area.ADVANTAGE, Area.MEDIA_ROWS})
"""The areas that any framework has (section 14). No answer is compared with the contract's own there."""
CAPABILITIES: Final = (Area.BOUNDARY, Area.SAMPLER, Area.CUTS)
"""Areas of what is off by default: their requests switch a capability on, and only who says so is asked them."""


@frozen
class Request:
    """One input of one area. Its subclasses are the kinds of request, and ``requests.KINDS`` lists them all."""
