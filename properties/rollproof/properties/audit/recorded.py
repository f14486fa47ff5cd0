"""Requests and results as JSON text, quickly: receipts are large, and nearly always plain JSON already."""

from __future__ import annotations

import inspect
import json
from contextlib import suppress
from typing import Any, Final

import numpy as np
import torch
from attrs import asdict, fields

from rollproof.properties.adapters.reassembler import spec_rollout
from rollproof.properties.adapters.tensors import to_torch
from rollproof.properties.audit.columns import Store, describe_tensor
from rollproof.properties.wire.codec import encode_value
from rollproof.spec.records import FinalizedGroup

TOKEN_FIELDS: Final = ("token_ids", "token_mask", "logprobs")


def json_text(value: Any) -> str:
    """Return a value in the codec's notation. What it cannot write becomes bytes: the contract accepts them nowhere."""
    try:
        text = json.dumps(value)
        if '"$' not in text and json.loads(text) == value:
            return text
    except (TypeError, ValueError, RecursionError):
        pass
    return json.dumps(encode_any(value))


def encode_any(value: Any) -> Any:
    """Apply ``encode_value`` to containers item by item, so that one odd item does not spoil the others."""
    try:
        return encode_value(value)
    except TypeError:
        if isinstance(value, list | tuple):
            items = [encode_any(item) for item in value]
            return items if isinstance(value, list) else {"$tuple": items}
        if isinstance(value, dict):
            return {"$dict": [[encode_any(key), encode_any(item)] for key, item in value.items()]}
        if isinstance(value, np.generic | np.ndarray | torch.Tensor) and value.ndim == 0:
            # A reward may be one; the number that it holds is what counts (decision D6).
            with suppress(Exception):
                return encode_value(value.item())
        return encode_value(type(value).__qualname__.encode())


def plain(value: Any) -> Any:
    """Return tags and numbers without the scalar types of numpy and torch."""
    if isinstance(value, np.generic) or (isinstance(value, torch.Tensor) and value.dim() == 0):
        return value.item()
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def describe_request(bound: inspect.BoundArguments) -> str:
    """Return the arguments of ``finalize_group`` as JSON."""
    bound.apply_defaults()
    values = {name: list(value) if isinstance(value, tuple) else value for name, value in bound.arguments.items()}
    values["mask_sample"] = [bool(flag) for flag in values["mask_sample"]]
    for name in ("fallback_weight_version", "prompt_idx", "current_weight_version"):
        values[name] = plain(values[name])
    # Each by itself: what the codec cannot write in one of them changes the notation of what holds it.
    return f"{{{', '.join(f'{json.dumps(name)}: {json_text(value)}' for name, value in values.items())}}}"


def describe_group(group: FinalizedGroup) -> dict[str, Any]:
    """Return a returned group as JSON."""
    values = {field.name: getattr(group, field.name) for field in fields(FinalizedGroup)}
    return {name: sorted(value) if name == "fields" else plain(value) for name, value in values.items()}


def describe_rollout(rollout: Any, store: Store) -> dict[str, Any]:
    """Return a returned rollout as JSON, its long columns as tensors.

    Floats stay 64 bits wide: rounding is for the judge.
    """
    found = spec_rollout(rollout)
    values: dict[str, Any] = {
        name: getattr(found, name)
        for name in ("rollout_id", "valid", "rejection_reason", "reward", "prompt_len", "min_wv", "max_wv")
    }
    values["staging_keys"] = list(found.staging_keys)
    for name, kind in zip(TOKEN_FIELDS, (torch.int64, torch.float64, torch.float64), strict=True):
        values[name] = describe_tensor(torch.tensor(getattr(found, name), dtype=kind), store)
    if found.routed_experts is not None:
        values["routed_experts"] = describe_tensor(to_torch(found.routed_experts), store)
    if found.route_plan is not None:
        values["route_plan"] = asdict(found.route_plan)
    if found.media is not None:
        values["media"] = {name: describe_tensor(to_torch(kept), store) for name, kept in found.media.items()}
    return values
