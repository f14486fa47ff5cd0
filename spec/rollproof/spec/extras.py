"""A call's extras, trusted only if their digest equals the one the call committed to (sections 2, 6, 7 and 9).

The staged metadata is JSON from outside. Routes travel beside it and are put back before the digest is compared. Media
spans and the digest of retained media are read from extras, so they must be the value that was committed to, and have
one value only.
"""

from __future__ import annotations

import json
from typing import Any, Final

from attrs import field, frozen

from rollproof.spec.constants import (
    MAX_EXTRAS_DEPTH,
    ROUTE_BOUNDARY,
    ROUTE_ENCODING_ENVELOPE,
    ROUTE_ENCODING_LIST,
    ROUTED_EXPERTS,
)
from rollproof.spec.digest import extras_digest
from rollproof.spec.envelope import LIST_DTYPE, encode_routes, nested_lists
from rollproof.spec.records import CAPABILITY
from rollproof.spec.rejections import Rejected
from rollproof.spec.tensor import Tensor
from rollproof.spec.values import expect, fault, first_repeated, show

METADATA: Final = "extras_metadata_json"


@frozen
class RouteFragment:
    """One call's routes as staged: ``[T, L, K]``, how they were encoded, and the rest of the call's extras."""

    routes: Tensor
    encoding: int
    extras_metadata_json: bytes
    boundary: Tensor | None = field(default=None, metadata=CAPABILITY)
    """The sidecar as staged, ``[1, L, K]`` (section 10), where it was read."""


def committed_extras(commitment: str, metadata: bytes, fragment: RouteFragment | None = None) -> dict[str, Any]:
    """Return the extras that digest to ``commitment``; none at all is an empty mapping.

    ``fragment`` holds the call's routes where it staged some, because the commitment covers them too. Raises
    ``ValueError`` for extras that are not what was committed to: other ones, malformed, with a name twice, with routes
    in the metadata, or nested deeper than has a digest.
    """
    extras = read_metadata(metadata) if fragment is None else extras_around(fragment)
    actual = extras_digest(extras)
    expect(actual == commitment, "extras digest", actual, f"{show(commitment)}, the call's commitment")
    return extras or {}


def extras_around(fragment: RouteFragment) -> dict[str, Any]:
    """Return the call's extras with its routes and its sidecar put back; ``ValueError`` where they cannot be.

    The encoding is not covered by a digest: a wrong one rebuilds other extras. A sidecar is always an envelope.
    """
    extras = read_metadata(fragment.extras_metadata_json) or {}
    try:
        if fragment.boundary is not None:
            extras = {**extras, ROUTE_BOUNDARY: encode_routes(fragment.boundary)}
        if fragment.encoding == ROUTE_ENCODING_ENVELOPE:
            return {**extras, ROUTED_EXPERTS: encode_routes(fragment.routes)}
        if fragment.encoding == ROUTE_ENCODING_LIST and fragment.routes.dtype == LIST_DTYPE:
            return {**extras, ROUTED_EXPERTS: nested_lists(fragment.routes)}
    except Rejected as rejected:
        raise ValueError(rejected.detail) from None
    expected = f"1, or 2 for {LIST_DTYPE} routes (these are {fragment.routes.dtype})"
    raise ValueError(fault("routed_experts_encoding", fragment.encoding, expected))


def read_metadata(data: bytes) -> dict[str, Any] | None:
    """Return a call's extras without its routes: a JSON object, or null. ``ValueError`` for anything else.

    A name that occurs twice has no one value, and routes belong into their own column: with a copy of them here, a
    forged ``routed_len`` of 0 would agree with the commitment and still lose them.
    """
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=distinct_names)
    except RecursionError:
        raise ValueError(fault(METADATA, data, f"at most {MAX_EXTRAS_DEPTH} levels")) from None
    except (UnicodeDecodeError, json.JSONDecodeError):
        raise ValueError(fault(METADATA, data, "JSON in UTF-8")) from None
    if value is None:
        return None
    expect(type(value) is dict, METADATA, value, "an object or null")
    expect(ROUTED_EXPERTS not in value, METADATA, ROUTED_EXPERTS, "routes in their own column only")
    return dict(value)


def distinct_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object; ``ValueError`` if a name repeats."""
    names = [name for name, _ in pairs]
    again = first_repeated(names)
    if again is not None:
        raise ValueError(fault(METADATA, names[again], "distinct names"))
    return dict(pairs)
