"""Recording a real run: what every call of ``finalize_group`` read, published, cleared and returned.

The recorder sits between a reassembler and its data plane, and around the reassembler's two methods. It records facts;
judging them is the audit's. A call that cannot be recorded is counted and named in the file, and never disturbs the
run.
"""

from __future__ import annotations

import inspect
import json
import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Final

from attrs import asdict
from safetensors.numpy import save_file

from rollproof.impl.cuts import CutStore
from rollproof.impl.dataplane.misses import Claim, claim_of
from rollproof.impl.staging import call_plane
from rollproof.properties.adapters.reassembler import named_failure, spec_group
from rollproof.properties.adapters.recording import RecordingPlane, take_repeated
from rollproof.properties.audit import FORMAT, GROUP, LOST, ROLLOUT, SHARDS_SUFFIX
from rollproof.properties.audit.columns import INLINE_BYTES, Store, describe_batch
from rollproof.properties.audit.configuration import read_config
from rollproof.properties.audit.recorded import describe_group, describe_request, describe_rollout, json_text, plain
from rollproof.properties.audit.recorded_call import CURRENT, Call, NotedClaim, current, guarded
from rollproof.properties.audit.recorder_cuts import WatchedCuts
from rollproof.properties.errors import InputError, message_of
from rollproof.properties.wire.codec import encode_value
from rollproof.spec.constants import ROUTED_EXPERTS
from rollproof.spec.judge.staging import Faults
from rollproof.spec.outcomes import Dims
from rollproof.spec.plane import Clear, Effect, Get, Put
from rollproof.spec.records import ReassemblerConfig

LOGGER: Final = logging.getLogger(__name__)


class RecordingClient:
    """A data plane client over another one, local or a Ray actor handle; it has the local one's methods.

    Everything beside the three methods of ``rollproof.impl.dataplane.DataPlane`` is the inner client's own.
    """

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def get_samples(self, sample_ids: Sequence[str], partition_id: str, select_fields: Sequence[str]) -> Any:
        """Read a batch, and record its answer."""
        arguments = {"sample_ids": sample_ids, "partition_id": partition_id, "select_fields": select_fields}
        call = CURRENT.get()
        if call is None:
            return call_plane(self._inner, "get_samples", **arguments)
        content: dict[str, Any] = {}
        claimed: NotedClaim | None = None
        with guarded(call):
            content |= {"partition": partition_id, "keys": list(sample_ids), "columns": list(select_fields)}
            claimed = take_repeated(call.claims, read_of(content))
        if claimed is None:
            call.effects.append({"get": content})
        try:
            answer = call_plane(self._inner, "get_samples", **arguments)
        except Exception as error:
            with guarded(call):
                note_failed_read(call, content, claimed, error)
            raise
        with guarded(call):
            note_answer(call, content, claimed, describe_batch(answer, call.store))
        return answer

    def put_samples(
        self,
        sample_ids: Sequence[str],
        partition_id: str,
        fields: Any = None,
        tags: Sequence[dict[str, Any]] | None = None,
    ) -> Any:
        """Publish rows, recorded before the inner client gets hold of their tensors."""
        arguments = {"sample_ids": sample_ids, "partition_id": partition_id, "fields": fields, "tags": tags}
        call = CURRENT.get()
        if call is None:
            return call_plane(self._inner, "put_samples", **arguments)
        content: dict[str, Any] = {}
        with guarded(call):
            content |= {"partition": partition_id, "sample_ids": list(sample_ids)}
            content["rows"] = None if fields is None else describe_batch(fields, call.store)
            content["tags"] = None if tags is None else encode_value(plain(list(tags)))
        return self._forward(call, "put", content, "put_samples", arguments)

    def clear_samples(self, sample_ids: Sequence[str] | None, partition_id: str) -> Any:
        """Remove rows; None removes the partition."""
        arguments = {"sample_ids": sample_ids, "partition_id": partition_id}
        call = CURRENT.get()
        if call is None:
            return call_plane(self._inner, "clear_samples", **arguments)
        content: dict[str, Any] = {}
        with guarded(call):
            content |= {"partition": partition_id, "keys": None if sample_ids is None else list(sample_ids)}
        return self._forward(call, "clear", content, "clear_samples", arguments)

    def _forward(self, call: Call, kind: str, content: dict[str, Any], method: str, arguments: dict[str, Any]) -> Any:
        call.effects.append({kind: content})
        try:
            return call_plane(self._inner, method, **arguments)
        except Exception as error:
            content["failed"] = type(error).__name__
            call.raised = error
            raise


def note_answer(call: Call, content: dict[str, Any], claimed: NotedClaim | None, described: dict[str, Any]) -> None:
    """Note what a read answered; where it repeats one that claimed something, what that means for the claim."""
    if claimed is None:
        content["answer"] = described
        return
    call.claims.remove(claimed)
    first = claimed.content
    kind = first.pop("missed")
    first.pop("lacks", None)
    if claimed.claim is Claim.COLUMN and len(content["columns"]) < len(first["columns"]):
        first["answer"] = described
    else:  # the plane took back what it said: that was an outage
        first["failed"], call.raised = kind, claimed.error


def read_of(content: dict[str, Any]) -> Get:
    """Return the read that an effect describes."""
    return Get(content["partition"], tuple(content["keys"]), tuple(content["columns"]))


def note_failed_read(call: Call, content: dict[str, Any], claimed: NotedClaim | None, error: Exception) -> None:
    """Note what a read raised: a claim that rows or a column are missing, its repetition, or an outage."""
    claim = claim_of(error, content["keys"], content["columns"])
    if claimed is not None:
        content = claimed.content
        if claim is None or claim is claimed.claim is Claim.COLUMN:
            call.claims.remove(claimed)
    if claim is None:
        content.pop("missed", None)
        content["failed"], call.raised = type(error).__name__, error
    elif claimed is None:
        content["missed"] = type(error).__name__
        if claim is Claim.COLUMN:
            content["lacks"] = str(error.args[0])[:200]
        call.claims.append(NotedClaim(read_of(content), content, claim, error))
    elif claim is claimed.claim is Claim.COLUMN:  # said twice: the rows are there, and lack what they must have
        del content["missed"]
        content["answer"] = {"count": len(content["keys"]), "columns": {}}


class Recorder:
    """Appends what reassemblers do to an audit file. A context manager, usable from several threads.

    ``client`` is what the reassembler is built with in place of ``dp_client``; ``watch`` makes the recorder see its
    calls. Tensors of more than ``inline_bytes`` bytes go into one safetensors file per group beside the file.
    ``lost`` counts the calls that could not be recorded: each leaves a line that says so, if it can be written.
    """

    def __init__(self, path: str | Path, dp_client: Any, *, inline_bytes: int = INLINE_BYTES) -> None:
        self.path = Path(path)
        self.client = RecordingClient(dp_client)
        self.lost = 0
        self._inline_bytes = inline_bytes
        self._lock = threading.Lock()
        self._file: BinaryIO | None = None
        self._shards = 0
        self._dims: dict[str, Dims] = {}
        """(L, K) as published so far, by staging partition (decision D10)."""

    def __enter__(self) -> Recorder:
        self._file = self.path.open("ab")
        if self._file.tell() and not ends_line(self.path):
            self._file.write(b"\n")
        folder = self.shards
        self._shards = sum(1 for _ in folder.iterdir()) if folder.is_dir() else 0
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Write no more lines; watched reassemblers continue without being recorded."""
        with self._lock:
            if self._file is not None:
                self._file.close()
            self._file = None

    @property
    def shards(self) -> Path:
        """The folder of the large tensors."""
        return self.path.with_name(self.path.name + SHARDS_SUFFIX)

    def watch(self, reassembler: Any, **arguments: Any) -> None:
        """Record the calls of ``finalize_group`` and ``finalize_rollout`` of this reassembler.

        Its constructor's arguments are read off its attributes (``name``, ``_name``, or the same of its ``config`` or
        ``_config``); those that are kept elsewhere must be given here. Raises ``InputError`` for one that is neither.
        """
        config = read_config(reassembler, arguments)
        whole, single = reassembler.finalize_group, reassembler.finalize_rollout
        reassembler.finalize_group = self._group_method(config, whole)
        reassembler.finalize_rollout = self._rollout_method(config, single)

    def watch_cuts(self, store: CutStore) -> WatchedCuts:
        """Return a store to use in place of this one: its cuts, restores and completions are recorded (section 11).

        Raises ``InputError`` where the store's ``dp_client`` is not ``client``.
        """
        if store.dp_client is not self.client:
            raise InputError(f"dp_client: got a {type(store.dp_client).__name__}, expected the recorder's client")
        return WatchedCuts(store, self._inline_bytes, partial(self._write, config=None))

    # ── the two methods ─────────────────────────────────────────────────────────────────────────────────────────────

    def _group_method(self, config: ReassemblerConfig, method: Callable[..., Any]) -> Callable[..., Any]:
        def finalize_group(*args: Any, **kwargs: Any) -> Any:
            call = Call(Store(self._inline_bytes))
            line: dict[str, str] = {}
            with guarded(call):
                line["request"] = describe_request(GROUP_SIGNATURE.bind(*args, **kwargs))
            try:
                with current(call):
                    group = method(*args, **kwargs)
            except Exception as error:
                with guarded(call):
                    line["failure"] = json_text(describe_failure(error, call))
                self._write(GROUP, call, line, config)
                raise
            with guarded(call):
                line["result"] = json_text(describe_group(spec_group(group)))
            self._write(GROUP, call, line, config)
            return group

        return finalize_group

    def _rollout_method(self, config: ReassemblerConfig, method: Callable[..., Any]) -> Callable[..., Any]:
        def finalize_rollout(*args: Any, **kwargs: Any) -> Any:
            outer = CURRENT.get()
            call = outer or Call(Store(self._inline_bytes))
            content: dict[str, Any] = {}
            first = len(call.effects)
            try:
                with current(call):
                    rollout = method(*args, **kwargs)
                with guarded(call):
                    content["result"] = describe_rollout(rollout, call.store)
                return rollout
            except Exception as error:
                with guarded(call):
                    content["failure"] = describe_failure(error, call)
                raise
            finally:
                with guarded(call):
                    bound = ROLLOUT_SIGNATURE.bind(*args, **kwargs).arguments
                    content |= {"rollout_id": bound["rollout_id"], "effects": [first, len(call.effects)]}
                    call.rollouts.append(content)
                    if outer is None:
                        line = {"receipt": json_text(bound["receipt"]), "reward": json_text(bound["reward"])}
                        self._write(ROLLOUT, call, line, config)

        return finalize_rollout

    # ── writing ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _write(self, kind: str, call: Call, line: dict[str, str], config: ReassemblerConfig | None) -> None:
        try:
            if call.broken is not None:
                raise call.broken
            values = {"format": json.dumps(FORMAT), "kind": json.dumps(kind)} | line
            if config is not None:
                values["config"] = json.dumps(asdict(config))
                values["dims"] = json.dumps(self._known_dims(config, call))
            if call.store.large:
                values["shard"] = json.dumps(self._save(call.store))
            values["effects"] = json.dumps(call.effects, ensure_ascii=True)
            if call.rollouts:
                values["rollouts"] = json.dumps(call.rollouts)
            self._append(values)
        except Exception as error:
            self.lost += 1
            LOGGER.warning("a call could not be recorded in %s", self.path, exc_info=True)
            try:
                reason = f"{type(error).__name__}: {message_of(error)}"
                self._append({"format": json.dumps(FORMAT), "kind": json.dumps(LOST), "reason": json.dumps(reason)})
            except Exception:
                LOGGER.warning("nor could the file say so")

    def _append(self, values: dict[str, str]) -> None:
        text = ",".join(f'"{name}":{value}' for name, value in values.items())
        with self._lock:
            if self._file is not None:
                self._file.write(f"{{{text}}}\n".encode())
                self._file.flush()

    def _save(self, store: Store) -> str:
        with self._lock:
            self._shards += 1
            name = f"{self._shards:06}.safetensors"
        self.shards.mkdir(exist_ok=True)
        save_file(store.large, self.shards / name)
        return name

    def _known_dims(self, config: ReassemblerConfig, call: Call) -> Dims | None:
        """Return (L, K) as earlier publications showed them; what this call publishes is for later ones."""
        if not config.direct_routes or config.routed_dims is not None:
            return config.routed_dims
        with self._lock:
            known = self._dims.get(config.staging_partition)
            for effect in call.effects:
                rows = effect.get("put", {}).get("rows") or {}
                shape = rows.get("columns", {}).get(ROUTED_EXPERTS, {}).get("shape", ())
                if known is None and len(shape) >= 2:
                    self._dims[config.staging_partition] = (shape[-2], shape[-1])
        return known


def ends_line(path: Path) -> bool:
    """Return whether a non-empty file ends with a line feed; a run that was killed may have left half a line."""
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read() == b"\n"


def describe_failure(error: Exception, call: Call) -> dict[str, Any]:
    """Return what a call raised; ``kind`` is the contract's name for it, null where it has none."""
    failed = {kind for effect in call.effects for kind, content in effect.items() if "failed" in content}
    plane = RecordingPlane(
        inner=None,
        effects=[bare_effect(effect) for effect in call.effects],
        faults=Faults(put="put" in failed, clear="clear" in failed),
        raised=call.raised,
    )
    kind = named_failure(error, plane)
    return {"kind": kind and kind.value, "error": type(error).__name__, "message": message_of(error)[:1000]}


def bare_effect(effect: dict[str, Any]) -> Effect:
    """Return an effect without its data."""
    ((kind, content),) = effect.items()
    if kind == "get":
        return Get(content["partition"], tuple(content["keys"]), tuple(content["columns"]))
    if kind == "put":
        return Put(content["partition"], tuple(content["sample_ids"]), ())
    return Clear(content["partition"], tuple(content["keys"] or ()))


def _group(
    group_id: Any,
    rollout_ids: Any,
    receipts: Any,
    rewards: Any,
    *,
    mask_sample: Any,
    fallback_weight_version: Any,
    prompt_idx: Any,
    loss_multiplier: Any = 1.0,
    canonical_sample_ids: Any = None,
    current_weight_version: Any = None,
) -> None: ...


def _rollout(rollout_id: Any, receipt: Any, *, reward: Any) -> None: ...


GROUP_SIGNATURE: Final = inspect.signature(_group)
ROLLOUT_SIGNATURE: Final = inspect.signature(_rollout)
