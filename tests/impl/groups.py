"""Groups staged in every mode, finalized, and judged as the contract judges them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch
from attrs import asdict

from rollproof.impl.dataplane.memory import MemoryDataPlane
from rollproof.impl.envelope import encode_routes
from rollproof.impl.outcomes import FinalizedGroup, FinalizedRollout
from rollproof.impl.staged_row import staged_row
from rollproof.properties.adapters.asking import ask
from rollproof.properties.adapters.ours import Ours
from rollproof.spec.constants import ROUTED_EXPERTS
from rollproof.spec.judge.catalogue import CATALOGUE
from rollproof.spec.judge.oracle import answer


def complaints(request) -> list[str]:
    """Return the catalogue's complaints about our answer to one request."""
    expected, actual = answer(request), ask(Ours(), request)
    found = ((item.id, item.check(request, expected, actual)) for item in CATALOGUE if item.covers(request))
    return [f"{name}: {complaint}" for name, complaint in found if complaint is not None]


MODES = {
    "plain": {},
    "direct": {"router_replay_enabled": True},
    "deferred": {"router_replay_enabled": True, "defer_routed_experts_to_policy": True},
}
PIXELS = {"imgs": torch.ones(1, 1, 3), "imgs_sizes": torch.tensor([[1, 1]], dtype=torch.int32)}
SPAN = {
    "modality": "image",
    "placeholder_offset": 0,
    "placeholder_length": 1,
    "placeholder_digest": hashlib.sha256(json.dumps([10]).encode()).hexdigest(),
    "token_id": 10,
    "embedding_spans": [[0, 1]],
    "imgs_sizes": [[1, 1]],
}
"""The item of a one-pixel image whose placeholder is the token 10."""


def guard(value: Any) -> None:
    """Raise TypeError for anything but scalars, containers, standard dataclasses, and tensors."""
    if value is None or isinstance(value, bool | int | float | str | torch.Tensor):
        return
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = [getattr(value, field.name) for field in dataclasses.fields(value)]
    elif isinstance(value, Mapping):
        parts = [*value.keys(), *value.values()]
    elif isinstance(value, list | tuple | set | frozenset):
        parts = list(value)
    else:
        raise TypeError(f"a {type(value).__name__} may not cross the boundary")
    for part in parts:
        guard(part)


def staged_group(make: Any, plane: Any, *, media: bool, partition: str = "staging") -> tuple[list[str], list[Any]]:
    """Stage a group of two valid rollouts around one that has no receipt; every call has routes, one has an image."""
    receipts: list[Any] = []
    for index in (0, 2):
        routes = encode_routes(torch.arange(8, dtype=torch.int16).reshape(4, 1, 2))
        extras = {ROUTED_EXPERTS: routes} | ({"media_spans": [SPAN]} if media and not index else {})
        calls: list[Any] = []
        root = make.add_call(calls, [10, 11, 12, 13], 2, rollout_id=f"g_g{index}", extras=extras)
        child = {ROUTED_EXPERTS: encode_routes(torch.zeros(2, 1, 2, dtype=torch.int16) - 1)}
        make.add_call(calls, [20, 21], 1, rollout_id=f"g_g{index}", parent=root, extras=child)
        for call, found in zip(calls, (extras, child), strict=True):
            attachments = PIXELS if "media_spans" in found else None
            dtype = torch.float32 if media else None
            fields = staged_row(SimpleNamespace(**asdict(call), extras=found), attachments, dtype)
            plane.put_samples([f"{call.rollout_id}/{call.model_call_id}"], partition, fields, [{}])
        receipts.append(make.receipt_of(calls))
    return [f"g_g{index}" for index in range(3)], [receipts[0], None, receipts[1]]


OPTIONS = {"mask_sample": [True, False, True], "fallback_weight_version": 9, "prompt_idx": 3}
REWARDS = [1.0, 0.0, 0.5]


def finalize(make: Any, mode: str, media: bool, **changes: Any) -> tuple[FinalizedGroup, list[FinalizedRollout]]:
    """Return the results of one group, and of its rollouts one by one."""
    plane = MemoryDataPlane()
    rollout_ids, receipts = staged_group(make, plane, media=media)
    finalizer = make.reassembler(plane, capture_media=media, **MODES[mode], **changes)
    rollouts = [
        finalizer.finalize_rollout(rollout_id, receipt, reward=reward)
        for rollout_id, receipt, reward in zip(rollout_ids, receipts, REWARDS, strict=True)
    ]
    return finalizer.finalize_group("g", rollout_ids, receipts, REWARDS, **OPTIONS), rollouts
