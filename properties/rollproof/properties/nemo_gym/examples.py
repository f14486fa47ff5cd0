"""The smallest inputs of every known deviation of nemo-gym.

Generated requests meet some of these values once in a thousand. A declared deviation that has gone is news, so every
check runs all of them.
"""

from __future__ import annotations

from typing import Any, Final

from attrs import evolve

from rollproof.properties.nemo_gym.layout import WRONG_DIGEST, layout_digest
from rollproof.properties.strategies.rollouts.recipes import Nest
from rollproof.properties.strategies.rollouts.staged_calls import call_record, raw_record
from rollproof.spec.constants import RESERVED_ROLLOUT_ID
from rollproof.spec.digest import chain_digest, prefix_digest
from rollproof.spec.judge.requests import (
    Area,
    CallDigest,
    ClassifySpan,
    DecodeRoutes,
    ExtrasDigest,
    Linearize,
    LinearizeGrowth,
    ParseReceipt,
    Request,
)
from rollproof.spec.records import Receipt, StagedCall

INT63: Final = 2**63
_HASH: Final = "0" * 64
ROOT: Final = StagedCall(
    "r", "c", None, "text", 0, 2, 2, 0, (1, 2), (0.0, 1.0), (0.0, -0.5), _HASH, _HASH, _HASH, _HASH
)
"""A root of one carry and one generated token; ``call`` gives it its hashes."""


def call(**changes: Any) -> StagedCall:
    """Return ``ROOT`` with changes, and with every hash as the byte layout gives it."""
    changed = evolve(ROOT, **changes)
    ids = changed.token_ids_delta
    hashed = evolve(changed, chain_hash=chain_digest(None, ids), cumulative_hash=prefix_digest(ids))
    return evolve(hashed, digest=layout_digest(hashed) or WRONG_DIGEST)


def rollout(*calls: StagedCall) -> Linearize:
    """Return a rollout that lists exactly these calls; the last is its terminal."""
    manifest = tuple(call_record(one, "x") for one in calls)
    return Linearize(Receipt(calls[0].rollout_id, manifest, calls[-1].model_call_id, "declared"), calls)


def receipt(row: dict[str, Any] | None = None, **changes: Any) -> ParseReceipt:
    """Return a valid raw receipt of one call, with changes to its manifest row and to itself."""
    entry = raw_record(ROOT, "x") | (row or {})
    value = {"rollout_id": "r", "manifest": [entry], "terminal_model_call_id": "c", "terminal_selection": "declared"}
    return ParseReceipt(value | changes)


def _far_child() -> StagedCall:
    """Return a call that says that it starts at 2^63."""
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
    ("D5", LinearizeGrowth(100, 1600)),
    ("float64-log-prob", CallDigest(call(**_FLOAT64))),
    ("float64-log-prob", rollout(call(**_FLOAT64))),
    ("rollout-id-slash", CallDigest(call(**_SLASH))),
    ("rollout-id-slash", rollout(call(**_SLASH))),
    ("rollout-id-slash", receipt(**_SLASH)),
    ("D24", CallDigest(call(rollout_id=RESERVED_ROLLOUT_ID))),
    ("D24", rollout(call(rollout_id=RESERVED_ROLLOUT_ID))),
    ("D24", receipt(rollout_id=RESERVED_ROLLOUT_ID)),
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
    LinearizeGrowth: Area.LINEAGE,
    ParseReceipt: Area.RECEIPT,
}


def area_of(request: Request) -> Area:
    """Return the area that an example belongs to."""
    return _AREAS[type(request)]


def examples_of(name: str, area: Area) -> tuple[Request, ...]:
    """Return the examples of one deviation in one area."""
    return tuple(request for example, request in EXAMPLES if example == name and area_of(request) is area)
