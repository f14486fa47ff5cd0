"""Staged rollouts and groups of any size, built as columns: the answers of a data plane, and the receipts for them.

A rollout of 100,000 calls or of 10,000,000 tokens takes seconds. Its digests are computed by the implementation that is
measured; the peer, which verifies the same rows, confirms them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, Final

import numpy as np
import torch
from attrs import define, field, frozen
from numpy.typing import NDArray
from tensordict import TensorDict

from rollproof.impl.assembly import RouteFragment, routed_extras_digest
from rollproof.impl.digest import call_digests, extras_digest, prefix_digest_of
from rollproof.impl.group import jagged
from rollproof.impl.spans import placeholder_digest
from rollproof.impl.staged import StagedColumns
from rollproof.spec.constants import (
    CAPTURE_MODES,
    DIGEST_COLUMNS,
    DIGEST_VERSION,
    EXTRAS_DIGEST_VERSION,
    IMAGE,
    MEDIA_SPANS,
    MODE_TEXT,
    MODE_TOKEN_IN,
    ROUTE_ENCODING_ENVELOPE,
    ROUTE_ENCODING_NONE,
    ROUTED_EXPERTS,
    SCHEMA_VERSION,
)
from rollproof.spec.digest import CALL_DOMAIN, CHAIN_DOMAIN, PREFIX_DOMAIN
from rollproof.spec.values import owned_key

VOCABULARY: Final = 151_936
PLACEHOLDER: Final = VOCABULARY
"""The token that stands for an embedding of an image; no text has it."""
PATCH, PATCHES_PER_EMBEDDING = 16, 4
STAGING, TRAIN = "staging", "train"


@frozen(eq=False, slots=False)
class StagedRollout:
    """One rollout, staged: C calls of as many tokens each, the last of which is the terminal one."""

    keys: list[str]
    receipt: dict[str, Any]
    answer: TensorDict
    """The answer to one batched read of all its rows."""
    columns: StagedColumns = field(repr=False)
    chain: list[int]
    """The calls from the root to the terminal one."""

    @cached_property
    def hashed(self) -> list[bytearray]:
        """Buffers as long as what any verifier must hash: each call, each link of the chain, the row once."""
        fields, delta = self.columns.fields, self.columns.fields["delta_len"].tolist()
        names = ("rollout_id", "model_call_id", "mode", "parent_call_id")
        texts = zip(*(fields[name].tolist() for name in names), strict=True)
        fixed = len(CALL_DOMAIN) + 3 + 1 + 4 * 8 + 6 * 8 + 32 + 2 * 33
        calls = [
            fixed + sum(8 + len(text.encode()) for text in row if text is not None) + 16 * tokens
            for row, tokens in zip(texts, delta, strict=True)
        ]
        links = [len(CHAIN_DOMAIN) + 1 + 32 * (call > 0) + 8 + 8 * delta[call] for call in self.chain]
        row = len(PREFIX_DOMAIN) + 8 + 8 * sum(delta[call] for call in self.chain)
        return [bytearray(length) for length in (*calls, *links, row)]


def chain_of(calls: int) -> list[int]:
    """Return the parents of calls that each continue the one before; -1 is the root's."""
    return list(range(-1, calls - 1))


def star_of(calls: int) -> list[int]:
    """Return the parents of calls that all continue the first one."""
    return [-1] + [0] * (calls - 1)


def rollout_of(
    parents: Sequence[int],
    tokens: int,
    rollout_id: str = "group-7_g0",
    routes: Sequence[RouteFragment] | None = None,
    image: int | None = None,
) -> StagedRollout:
    """Return the rollout whose call ``i`` continues ``parents[i] < i`` with ``tokens`` tokens; half of them are carry.

    ``routes`` are the calls' own, all of one shape. Without routes, every call may begin with an ``image``, a square of
    so many pixels a side. Only the terminal call's cumulative hash is real: a verifier recomputes no other, and hashing
    every prefix here would take longer than the measurement.
    """
    fields, ids, mask, logprobs = _unhashed(parents, tokens, rollout_id)
    metadata: list[Any] = [None] * len(parents)
    if image is not None:
        starts = fields["prev_len"].tolist()
        metadata = [_show_image(ids[call * tokens :], start, image) for call, start in enumerate(starts)]
    offsets = np.arange(len(parents) + 1, dtype=np.int64) * tokens
    columns = StagedColumns(fields, ids, mask, logprobs, offsets)
    path = [len(parents) - 1]
    while parents[path[-1]] >= 0:
        path.append(parents[path[-1]])
    path.reverse()
    extras = map(extras_digest, metadata) if routes is None else map(routed_extras_digest, routes)
    fields["extras_digest"] = _digests(map(bytes.fromhex, extras))
    fields["chain_hash"] = _digests(_chain_hashes(columns, parents))
    fields["cumulative_hash"] = np.zeros((len(parents), 32), dtype=np.uint8)
    pieces = [columns.encoded.ids[8 * tokens * call : 8 * tokens * (call + 1)] for call in path]
    fields["cumulative_hash"][-1] = np.frombuffer(prefix_digest_of(pieces, tokens * len(path)), dtype=np.uint8)
    fields["digest"] = _digests(call_digests(columns))
    keys = [owned_key(rollout_id, call_id) for call_id in fields["model_call_id"]]
    answer = _answer(columns, [json.dumps(value) for value in metadata], routes)
    if image is not None:
        answer.update(_media_columns(len(parents), image, answer["extras_metadata_json"]))
    return StagedRollout(keys, _receipt(rollout_id, keys, fields), answer, columns, path)


def _show_image(carry: NDArray[np.int64], start: int, side: int) -> dict[str, Any]:
    """Write the placeholder of an image into the beginning of a call's tokens, and return the call's extras."""
    count = (side // PATCH) ** 2 // PATCHES_PER_EMBEDDING
    carry[:count] = PLACEHOLDER
    item = {
        "modality": IMAGE,
        "placeholder_offset": start,
        "placeholder_length": count,
        "placeholder_digest": placeholder_digest(carry[:count]),
        "token_id": PLACEHOLDER,
        "embedding_spans": [[start, count]],
        "imgs_sizes": [[side, side]],
    }
    return {MEDIA_SPANS: [item]}


def _media_columns(count: int, side: int, metadata: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the media columns of calls with one image each, bfloat16."""
    hashes = b"".join(hashlib.sha256(row.numpy().tobytes()).digest() for row in metadata.unbind())
    pixels = torch.zeros(count, (side // PATCH) ** 2, 3 * PATCH**2, dtype=torch.bfloat16)
    return {
        "media_present": torch.ones(count, dtype=torch.bool),
        "media_has_frames": torch.zeros(count, dtype=torch.bool),
        "media_metadata_digest": torch.frombuffer(bytearray(hashes), dtype=torch.uint8).reshape(count, -1),
        "media_imgs": pixels,
        "media_imgs_sizes": torch.full((count, 1, 2), side, dtype=torch.int32),
        "media_num_frames": torch.zeros(count, 1, dtype=torch.int32),
    }


def _unhashed(
    parents: Sequence[int], tokens: int, rollout_id: str
) -> tuple[dict[str, NDArray[Any]], NDArray[np.int64], NDArray[np.float32], NDArray[np.float32]]:
    """Return everything of the calls but their digests: their fields, and the three token columns."""
    count, carry = len(parents), tokens // 2
    depths = [0] * count
    for call, parent in enumerate(parents):
        depths[call] = depths[parent] + 1 if parent >= 0 else 0
    names = [f"call-{call:04}" for call in range(count)]
    start = np.array(depths, dtype=np.int64) * tokens
    delta = np.full(count, tokens, dtype=np.int64)
    fields: dict[str, NDArray[Any]] = {
        "rollout_id": np.array([rollout_id] * count, dtype=object),
        "model_call_id": np.array(names, dtype=object),
        "parent_call_id": np.array([names[parent] if parent >= 0 else None for parent in parents], dtype=object),
        "mode": np.array([MODE_TEXT if parent < 0 else MODE_TOKEN_IN for parent in parents], dtype=object),
        "prev_len": start,
        "delta_len": delta,
        "cum_len": start + delta,
        "weight_version": np.arange(count, dtype=np.int64) // 8,
        "schema_version": np.full(count, SCHEMA_VERSION, dtype=np.int64),
        "digest_version": np.full(count, DIGEST_VERSION, dtype=np.int64),
        "extras_digest_version": np.full(count, EXTRAS_DIGEST_VERSION, dtype=np.int64),
    }
    position = np.arange(tokens, dtype=np.int64)
    ids = (7 * np.arange(count, dtype=np.int64)[:, None] + 13 * position) % VOCABULARY
    mask = (position >= carry).astype(np.float32)
    logprobs = np.where(position >= carry, -0.001 * ((position - carry) % 997), 0.0).astype(np.float32)
    return fields, ids.reshape(-1), np.tile(mask, count), np.tile(logprobs, count)


def _chain_hashes(columns: StagedColumns, parents: Sequence[int]) -> list[bytes]:
    """Return, per call, the hash that ties it to its parent's (section 2), in any tree."""
    encoded, hashes = columns.encoded, list[bytes]()
    for (start, end), count, parent in zip(pairwise(encoded.bounds), encoded.counts, parents, strict=True):
        link = b"\x00" if parent < 0 else b"\x01" + hashes[parent]
        message = b"".join((CHAIN_DOMAIN, link, count, encoded.ids[8 * start : 8 * end]))
        hashes.append(hashlib.sha256(message).digest())
    return hashes


def _digests(values: Any) -> NDArray[np.uint8]:
    return np.frombuffer(b"".join(values), dtype=np.uint8).reshape(-1, 32).copy()


def _answer(columns: StagedColumns, metadata: Sequence[str], routes: Sequence[RouteFragment] | None) -> TensorDict:
    """Return the wire columns (section 9) as a batched read gives them: vectors jagged, scalars dense."""
    fields, count = columns.fields, len(columns)
    parents = fields["parent_call_id"]
    lengths = np.zeros(count, dtype=np.int64) if routes is None else fields["delta_len"]
    encoding = ROUTE_ENCODING_NONE if routes is None else ROUTE_ENCODING_ENVELOPE
    offsets = torch.from_numpy(columns.offsets)
    wire: dict[str, torch.Tensor] = {
        "token_ids_delta": _jagged(columns.token_ids, offsets),
        "token_mask_delta": _jagged(columns.token_mask, offsets),
        "generation_logprobs_delta": _jagged(columns.logprobs, offsets),
        "rollout_id_utf8": _texts(fields["rollout_id"].tolist()),
        "model_call_id_utf8": _texts(fields["model_call_id"].tolist()),
        "parent_call_id_utf8": _texts(["\x00" if parent is None else parent for parent in parents]),
        "extras_metadata_json": _texts(metadata),
        "parent_call_id_present": torch.tensor([parent is not None for parent in parents]),
        "chain_hash_present": torch.ones(count, dtype=torch.bool),
        "cumulative_hash_present": torch.ones(count, dtype=torch.bool),
        "capture_mode": torch.tensor([CAPTURE_MODES.index(mode) for mode in fields["mode"]]),
        "routed_experts_encoding": torch.full((count,), encoding),
        "routed_len": torch.from_numpy(lengths),
    }
    for name in ("prev_len", "delta_len", "cum_len", "weight_version"):
        wire[name] = torch.from_numpy(fields[name])
    for name in ("schema_version", "digest_version", "extras_digest_version"):
        wire[name] = torch.from_numpy(fields[name])
    for name in DIGEST_COLUMNS:
        wire[name] = _jagged(fields[name.removesuffix("_bytes")].reshape(-1), torch.arange(count + 1) * 32)
    if routes is not None:
        wire[ROUTED_EXPERTS] = _jagged(torch.cat([fragment.routes for fragment in routes]).numpy(), offsets)
    return TensorDict(wire, batch_size=[count])


def _jagged(values: NDArray[Any], offsets: torch.Tensor) -> torch.Tensor:
    return torch.nested.nested_tensor_from_jagged(torch.from_numpy(values), offsets)


def _texts(values: Sequence[str]) -> torch.Tensor:
    return jagged([np.frombuffer(bytearray(value.encode()), dtype=np.uint8) for value in values])


def _receipt(rollout_id: str, keys: Sequence[str], fields: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """Return the rollout's receipt as JSON values."""
    texts = ("model_call_id", "parent_call_id", "mode")
    numbers = ("prev_len", "delta_len", "cum_len", "weight_version")
    digests = ("digest", "extras_digest", "chain_hash", "cumulative_hash")
    lists = {name: fields[name].tolist() for name in (*texts, *numbers)}
    lists |= {name: [row.tobytes().hex() for row in fields[name]] for name in digests}
    lists |= {"staging_key": list(keys), "response_id": [f"resp-{call_id}" for call_id in lists["model_call_id"]]}
    return {
        "rollout_id": rollout_id,
        "manifest": [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)],
        "terminal_model_call_id": lists["model_call_id"][-1],
        "terminal_selection": "declared",
    }


# ── groups ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@frozen(eq=False)
class StagedGroup:
    """Rollouts of one prompt, staged."""

    rollouts: tuple[StagedRollout, ...]

    @property
    def tokens(self) -> int:
        """The tokens of all its rows."""
        return sum(len(rollout.columns.token_ids) for rollout in self.rollouts)

    def finalize(self, reassembler: Any) -> Any:
        """Finalize the group. Raises ``AssertionError`` if a row was rejected."""
        group = reassembler.finalize_group(
            GROUP,
            [rollout.receipt["rollout_id"] for rollout in self.rollouts],
            [rollout.receipt for rollout in self.rollouts],
            [1.0] * len(self.rollouts),
            mask_sample=[False] * len(self.rollouts),
            fallback_weight_version=0,
            prompt_idx=0,
        )
        if group.valid_row_count != len(self.rollouts):
            raise AssertionError(f"{group.valid_row_count} of {len(self.rollouts)} rows are valid: {group.metrics}")
        return group


GROUP: Final = "group-7"


def group_of(
    rollouts: int, calls: int, tokens: int, routed_dims: tuple[int, int] | None = None, image: int | None = None
) -> StagedGroup:
    """Return rollouts of one chain of calls each; with (layers, top-k) every call has routes, equal in all rollouts.

    With ``image`` every call has one, of so many pixels a side.
    """
    routes = None if routed_dims is None else [route_fragment(tokens, *routed_dims, seed) for seed in range(calls)]
    chain = chain_of(calls)
    return StagedGroup(
        tuple(rollout_of(chain, tokens, f"{GROUP}_g{index}", routes, image) for index in range(rollouts))
    )


def route_fragment(tokens: int, layers: int, top_k: int, seed: int, experts: int = 128) -> RouteFragment:
    """Return some routes of one call, int16: ``top_k`` distinct experts per token and layer."""
    generator = np.random.default_rng(seed)
    some = np.argsort(generator.random((256, layers, experts)), axis=-1)[..., :top_k].astype(np.int16)
    chosen = some[generator.integers(0, len(some), tokens)]
    return RouteFragment(torch.from_numpy(chosen), ROUTE_ENCODING_ENVELOPE, b"null")


@define(eq=False)
class PreparedPlane:
    """A data plane that costs nothing: it returns prepared answers, and discards what is put.

    With ``fresh`` it answers a copy, as a plane does that fetches rows from elsewhere. What was put last is ``put``.
    """

    group: StagedGroup
    fresh: bool = False
    put: Any = None

    def get_samples(self, sample_ids: list[str], partition_id: str, select_fields: list[str]) -> TensorDict:
        """Return the rollout's whole answer: all its rows, in the order of its manifest."""
        found = next(rollout for rollout in self.group.rollouts if rollout.keys == sample_ids)
        columns = {name: found.answer.get(name) for name in select_fields if name in found.answer.keys()}  # noqa: SIM118
        answer = TensorDict(columns, batch_size=[len(sample_ids)])
        return answer.clone() if self.fresh else answer

    def put_samples(self, sample_ids: list[str], partition_id: str, fields: Any, tags: Any) -> None:
        """Keep the rows as they are."""
        self.put = fields

    def clear_samples(self, sample_ids: list[str], partition_id: str) -> None:
        """Do nothing: nothing is stored."""


def fill(plane: Any, group: StagedGroup) -> None:
    """Stage the group in a data plane."""
    for rollout in group.rollouts:
        plane.put_samples(rollout.keys, STAGING, rollout.answer, [{}] * len(rollout.keys))
