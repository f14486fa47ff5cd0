"""A call's extras, taken at their word only where they digest to what the call's own digest covers (sections 2, 7, 9).

The staged metadata is JSON from outside. Media spans and the digest of retained media are read from it, so it must be
the text that was committed to, with one value only.
"""

from __future__ import annotations

from typing import Any

from rollproof.spec.assembly import RouteFragment, extras_around, read_metadata
from rollproof.spec.constants import ROUTE_ENCODING_NONE
from rollproof.spec.digest import extras_digest
from rollproof.spec.rejections import Rejected


def committed_extras(fragment: RouteFragment | None, metadata_json: bytes, commitment: str) -> dict[str, Any]:
    """The extras that digest to ``commitment``; none at all is an empty mapping.

    ``fragment`` holds the call's routes where it staged some, because the commitment covers them too: without it, such
    a call's extras cannot be checked. Raises ``ValueError`` for extras that are not what was committed to: other ones,
    malformed, with a name twice, with routes of their own, or nested deeper than has a digest.
    """
    try:
        if fragment is None or fragment.encoding == ROUTE_ENCODING_NONE:
            extras = read_metadata(metadata_json)
        else:
            extras = extras_around(fragment)
    except Rejected as rejected:
        raise ValueError(rejected.reason) from None
    actual = extras_digest(extras)
    if actual != commitment:
        raise ValueError(f"the extras digest to {actual}, committed was {commitment}")
    return extras or {}
