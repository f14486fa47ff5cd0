"""The smallest input of every known deviation of nemo-gym, and a stream of them for the gate.

Generated requests meet some of these values once in a thousand. A declared deviation that has gone is news, so every
check looks at all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from attrs import evolve, fields
from hypothesis import strategies as st

from rollproof.properties.adapters.leniency import WRONG_DIGEST, layout_digest
from rollproof.properties.strategies.recipes import Nest
from rollproof.properties.strategies.requests import Stream
from rollproof.spec.digest import chain_digest, prefix_digest
from rollproof.spec.records import CallRecord, Receipt, StagedCall
from rollproof.spec.requests import (
    Area,
    CallDigest,
    ClassifySpan,
    DecodeRoutes,
    ExtrasDigest,
    Linearize,
    ParseReceipt,
    Request,
)
from rollproof.spec.values import owned_key

INT63: Final = 2**63
_HASH: Final = "0" * 64
ROOT: Final = StagedCall(
    "r", "c", None, "text", 0, 2, 2, 0, (1, 2), (0.0, 1.0), (0.0, -0.5), _HASH, _HASH, _HASH, _HASH
)
"""A root of one carry and one generated token; ``call`` gives it its hashes."""


def call(**changes: Any) -> StagedCall:
    """``ROOT`` with changes, and with every hash as the byte layout gives it."""
    changed = evolve(ROOT, **changes)
    ids = changed.token_ids_delta
    hashed = evolve(changed, chain_hash=chain_digest(None, ids), cumulative_hash=prefix_digest(ids))
    return evolve(hashed, digest=layout_digest(hashed) or WRONG_DIGEST)


def rollout(*calls: StagedCall) -> Linearize:
    """A rollout that lists exactly these calls as they are; the last is its terminal."""
    shared = [field.name for field in fields(CallRecord) if hasattr(ROOT, field.name)]
    manifest = tuple(
        CallRecord(
            **{name: getattr(one, name) for name in shared},
            staging_key=owned_key(one.rollout_id, one.model_call_id),
            response_id="x",
        )
        for one in calls
    )
    return Linearize(Receipt(calls[0].rollout_id, manifest, calls[-1].model_call_id, "declared"), calls)


def receipt(row: dict[str, Any] | None = None, **changes: Any) -> ParseReceipt:
    """A valid raw receipt of one call, with changes to its manifest row and to itself."""
    names = ("model_call_id", "prev_len", "delta_len", "cum_len", "weight_version", "digest", "extras_digest", "mode")
    entry = {name: getattr(ROOT, name) for name in (*names, "chain_hash", "cumulative_hash")}
    entry |= {"staging_key": owned_key("r", "c"), "response_id": "x"} | (row or {})
    value = {"rollout_id": "r", "manifest": [entry], "terminal_model_call_id": "c", "terminal_selection": "declared"}
    return ParseReceipt(value | changes)


def _far_child() -> StagedCall:
    """A call that says that it starts at 2^63."""
    far = evolve(
        call(), model_call_id="d", parent_call_id="c", mode="token_in", prev_len=INT63, cum_len=INT63 + ROOT.delta_len
    )
    return evolve(far, digest=layout_digest(far) or WRONG_DIGEST)


_WIDE_ID: Final = {"token_ids_delta": (INT63, 2)}
_MINUS_ZERO_MASK: Final = {"token_mask_delta": (-0.0, 1.0)}
_MINUS_ZERO_CARRY: Final = {"generation_log_probs_delta": (-0.0, -0.5)}
_FLOAT64: Final = {"generation_log_probs_delta": (0.0, -0.1)}
_SLASH: Final[dict[str, Any]] = {"rollout_id": "a/b"}

EXAMPLES: Final[tuple[tuple[str, Request], ...]] = (
    ("D1", CallDigest(call(**_WIDE_ID))),
    ("D1", CallDigest(call(weight_version=2**64 - 1))),
    ("D1", CallDigest(_far_child())),
    ("D1", rollout(call(**_WIDE_ID))),
    ("D1", rollout(call(weight_version=INT63))),
    ("D1", rollout(call(), _far_child())),
    ("D2", CallDigest(call(**_MINUS_ZERO_MASK))),
    ("D2", CallDigest(call(**_MINUS_ZERO_CARRY))),
    ("D2", rollout(call(**_MINUS_ZERO_MASK))),
    ("D2", rollout(call(**_MINUS_ZERO_CARRY))),
    ("D3", ExtrasDigest(Nest("dict", 65))),
    ("D3", ExtrasDigest({"": Nest("list", 64)})),
    ("D3", ExtrasDigest(Nest("dict", 100_000))),
    ("float64-log-prob", CallDigest(call(**_FLOAT64))),
    ("float64-log-prob", rollout(call(**_FLOAT64))),
    ("rollout-id-slash", CallDigest(call(**_SLASH))),
    ("rollout-id-slash", rollout(call(**_SLASH))),
    ("rollout-id-slash", receipt(**_SLASH)),
    ("malformed-digest", rollout(evolve(call(), digest="A" * 64))),
    ("D16", receipt(reward="3.0")),
    ("D16", receipt(reward=True)),
    ("D16", receipt(reward=b"3.0")),
    ("D16", receipt(capture_poisoned="no")),
    ("D16", receipt(capture_poisoned=b"no")),
    ("D16", receipt(capture_poisoned=0)),
    ("D16", receipt(capture_poisoned=0.0)),
    ("D16", receipt(terminal_attribution_reason=b"x")),
    ("D16", receipt(schema_version=2.0)),
    ("D16", receipt(extras_digest_version=True)),
    ("D16", receipt({"digest_version": 2.0})),
    ("D16", receipt({"weight_version": INT63})),
    ("D16", receipt({"fingerprint_version": 2**64})),
    ("D16", receipt({"delta_len": INT63, "cum_len": INT63})),
    ("D16", ParseReceipt({**receipt().value, "manifest": tuple(receipt().value["manifest"])})),
    ("lone-surrogate", receipt(terminal_attribution_reason="\ud800")),
    ("lone-surrogate", receipt(capture_poisoned=True, failure_reason="\ud800")),
    ("D9-shape", DecodeRoutes("nrlre1:int8:+1x1x1:AA==")),
    ("D9-shape", DecodeRoutes("nrlre1:int8: 1x1x1:AA==")),
    ("D9-shape", DecodeRoutes("nrlre1:int8:01x1x1:AA==")),
    ("D9-shape", DecodeRoutes("nrlre1:int8:1x1x0_1:AA==")),
    ("D9-shape", DecodeRoutes("nrlre1:int8:1x1x\u0661:AA==")),
    ("D9-base64", DecodeRoutes("nrlre1:int8:1x1x1:AB==")),
    ("D9-base64", DecodeRoutes("nrlre1:int16:1x1x1:AAB=")),
    ("list-id-range", DecodeRoutes([[[2**15]]])),
    ("D1-lengths", ClassifySpan(0, 0, INT63)),
)
"""Per deviation, requests that show it and nothing else."""

_AREAS: Final = {
    CallDigest: Area.DIGEST,
    ClassifySpan: Area.ROUTES,
    DecodeRoutes: Area.ROUTES,
    ExtrasDigest: Area.DIGEST,
    Linearize: Area.LINEAGE,
    ParseReceipt: Area.RECEIPT,
}


def area_of(request: Request) -> Area:
    """The area that an example belongs to."""
    return _AREAS[type(request)]


def streams(area: Area) -> Iterator[Stream]:
    """All examples of an area."""
    requests = [request for _, request in EXAMPLES if area_of(request) is area]
    if requests:
        yield Stream("known-deviations", area, st.sampled_from(requests), 0.3)
