"""Reading one line of an audit file back into values of the spec.

Lines come from outside, so nothing in them is trusted: whatever does not fit raises ``LineError`` with a sentence
about it. No torch here: an audit is as light as the spec.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from attrs import fields, frozen

from rollproof.properties.adapters.padding import rows_without_padding
from rollproof.properties.audit import FORMAT, GROUP, LOST, ROLLOUT
from rollproof.properties.audit.reading_cuts import READERS, CutRecord, read_writes
from rollproof.properties.audit.stored import Fetch, LineError, column_rows, read_tensor, shard_reader
from rollproof.properties.wire.bounds import TooLarge, check_size, parse_json
from rollproof.properties.wire.codec import decode_value
from rollproof.spec.constants import ROUTE_BOUNDARY, ROUTED_EXPERTS
from rollproof.spec.judge.requests import (
    Accepted,
    Answer,
    Crashed,
    FinalizeGroups,
    FinalizeRollout,
    GroupStep,
    RolloutAnswer,
)
from rollproof.spec.judge.staging import Faults, Staging
from rollproof.spec.outcomes import Failure, GroupOutcome
from rollproof.spec.plane import Clear, Effect, Get, PublishedRow, Put
from rollproof.spec.records import (
    CAPABILITY,
    FinalizedGroup,
    FinalizedRollout,
    GroupRequest,
    ReassemblerConfig,
    RouteAssemblyPlan,
    RouteSpan,
)
from rollproof.spec.tensor import Tensor

PUBLISHED: Final = "published"
DROPPED: Final = "dropped"
PENDING: Final = "pending"

MOST_ROWS: Final = 2**20
"""Rows times columns of one put. A column may hold no bytes at all, so the length of the line does not bound it."""


@frozen
class Recorded:
    """One line: the request, and its outcome. ``group_id`` is the rollout's id for a single rollout."""

    group_id: str
    partition: str
    groups: FinalizeGroups | None = None
    outcome: Answer | None = None
    rollouts: tuple[tuple[FinalizeRollout, Answer], ...] = ()
    kind: str = GROUP
    cut: CutRecord | None = None
    """What a line about generation cuts says; its ``group_id`` names the calls."""

    @property
    def end(self) -> str:
        """Return how the call ended for its group: published, dropped, or pending where it may be tried again."""
        if not isinstance(self.outcome, Accepted):
            return PENDING
        (outcome,) = self.outcome.value
        if outcome.group is not None:
            return DROPPED if outcome.group.dropped else PUBLISHED
        return PUBLISHED if outcome.failure is Failure.CLEAR else PENDING

    @property
    def final(self) -> bool:
        """Whether rows were put, and nothing may publish this group again (section 8).

        A group whose put failed may be tried again, and so may one in deferred mode before it is cleaned up.
        """
        if self.groups is None or not isinstance(self.outcome, Accepted):
            return False
        put = any(isinstance(effect, Put) for effect in self.outcome.value[0].effects)
        return put and not self.groups.steps[0].faults.put and not self.groups.config.defer_routed_experts_to_policy


def read_line(data: bytes, file: Path) -> Recorded:
    """Read the record in one line of ``file``. Raises ``LineError``."""
    try:
        content = parse_json(data)
    except TooLarge as error:
        raise LineError(str(error)) from None
    except ValueError as error:
        raise LineError(f"not JSON ({error})") from None
    if type(content) is not dict or content.get("format") != FORMAT:
        found = content.get("format") if type(content) is dict else None
        raise LineError(f"format {found!r}, expected {FORMAT!r}")
    try:
        if content["kind"] == LOST:
            raise LineError(f"the call could not be recorded: {content['reason']}")
        fetch = shard_reader(content, file)
        readers = {GROUP: read_group, ROLLOUT: read_rollout, **dict.fromkeys(READERS, read_cut)}
        if content["kind"] not in readers:
            raise LineError(f"kind {content['kind']!r}, expected {', '.join(readers)} or {LOST}")
        return readers[content["kind"]](content, fetch)
    except LineError:
        raise
    except KeyError as error:
        raise LineError(f"{error.args[0]!r} is missing") from None
    except Exception as error:
        raise LineError(f"not a record of {FORMAT} ({type(error).__name__}: {error})") from None


# ── requests ────────────────────────────────────────────────────────────────────────────────────────────────────────


def read_group(content: Mapping[str, Any], fetch: Fetch) -> Recorded:
    """Read a call of ``finalize_group``, with the calls of ``finalize_rollout`` that it made."""
    config = read_config(content)
    request = read_request(content["request"])
    reads = [effect["get"] for effect in content["effects"] if "get" in effect]
    staging, faults = read_staging(reads, fetch), read_faults(content["effects"])
    effects = tuple(read_effect(effect, config, fetch) for effect in content["effects"])
    outcome = read_outcome(content, effects)
    singles = []
    for single in content.get("rollouts", ()):
        index = request.rollout_ids.index(single["rollout_id"])
        receipt, reward = request.receipts[index], request.rewards[index]
        singles.append(read_single(single, config, receipt, reward, content["effects"], effects, staging, fetch))
    groups = FinalizeGroups(config, (GroupStep(request, faults),), staging)
    check_size(groups)
    return Recorded(request.group_id, config.partition_id, groups, outcome, tuple(singles))


def read_rollout(content: Mapping[str, Any], fetch: Fetch) -> Recorded:
    """Read a call of ``finalize_rollout`` outside of a group."""
    config = read_config(content)
    reads = [effect["get"] for effect in content["effects"] if "get" in effect]
    staging = read_staging(reads, fetch)
    effects = tuple(read_effect(effect, config, fetch) for effect in content["effects"])
    (single,) = content["rollouts"]
    receipt, reward = decode_value(content["receipt"]), decode_value(content["reward"])
    pair = read_single(single, config, receipt, reward, content["effects"], effects, staging, fetch)
    return Recorded(pair[0].rollout_id, config.partition_id, rollouts=(pair,), kind=ROLLOUT)


def read_cut(content: Mapping[str, Any], fetch: Fetch) -> Recorded:
    """Read what a cut store did: cuts, a restore, or the end of a call."""
    kind, partition = content["kind"], content["partition"]
    for name, wanted in (("partition", str), ("effects", list), ("cuts", list)):
        if type(content.get(name, wanted())) is not wanted:
            raise LineError(f"{name}: got a {type(content[name]).__name__}, expected a {wanted.__name__}")
    staging = read_staging([effect["get"] for effect in content["effects"] if "get" in effect], fetch)
    record = READERS[kind](content, staging, read_writes(content, fetch))
    return Recorded(", ".join(record.calls), partition, kind=kind, cut=record)


def read_single(
    single: Mapping[str, Any],
    config: ReassemblerConfig,
    receipt: Any,
    reward: Any,
    raw_effects: list[Mapping[str, Any]],
    effects: tuple[Effect, ...],
    staging: Staging,
    fetch: Fetch,
) -> tuple[FinalizeRollout, Answer]:
    """Read one call of ``finalize_rollout``: the request, and the answer."""
    first, end = single["effects"]
    faults = read_faults(raw_effects[first:end])
    request = FinalizeRollout(config, single["rollout_id"], receipt, reward, Staging(staging.rows, faults))
    check_size(request)
    if "failure" in single:
        failure = read_failure(single["failure"])
        if isinstance(failure, Crashed):
            return request, failure
        return request, Accepted(RolloutAnswer(effects[first:end], None, failure))
    return request, Accepted(RolloutAnswer(effects[first:end], read_finalized(single["result"], fetch)))


def read_config(content: Mapping[str, Any]) -> ReassemblerConfig:
    """Read the constructor arguments; (L, K) is what the run knew before this call (decision D10)."""
    return _config(json.dumps(content["config"]), json.dumps(content.get("dims")))


@lru_cache(maxsize=64)
def _config(text: str, dims_text: str) -> ReassemblerConfig:
    values = json.loads(text)
    if values.get("routed_dims") is None and values.get("router_replay_enabled") is True:
        values["routed_dims"] = json.loads(dims_text)
    if values.get("routed_dims") is not None:
        values["routed_dims"] = tuple(values["routed_dims"])
    if type(values.get("stop_token_ids")) is list:
        values["stop_token_ids"] = tuple(values["stop_token_ids"])
    config = ReassemblerConfig(**values)
    for one in fields(ReassemblerConfig):
        value = getattr(config, one.name)
        if one.metadata == CAPABILITY and one.default is None:
            sound = value is None or type(value) is str
        elif one.default is None:
            sound = value is None or type(value) is int or (type(value) is tuple and {int} == set(map(type, value)))
        else:
            sound = type(value) is type(one.default)
        if not sound:
            raise LineError(f"config: {one.name} is {value!r}")
    return config


def read_request(content: Mapping[str, Any]) -> GroupRequest:
    """Read the arguments of ``finalize_group``."""
    values = {name: decode_value(value) for name, value in content.items()}
    for name in ("rollout_ids", "receipts", "rewards", "mask_sample", "canonical_sample_ids"):
        if values.get(name) is not None:
            values[name] = tuple(values[name])
    return GroupRequest(**values)


# ── effects ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def read_staging(reads: list[Mapping[str, Any]], fetch: Fetch) -> Staging:
    """Return what staging held, as far as the reads show it; a key that no read answered is not there.

    Raises ``LineError`` where two reads contradict each other: then staging changed in between, and no single state
    of it explains what was published.
    """
    rows: dict[str, dict[str, Tensor]] = {}
    missed: list[Mapping[str, Any]] = []
    for read in reads:
        keys = read["keys"]
        answer = read.get("answer")
        if answer is None or answer["count"] != len(keys):
            if "failed" not in read and "lacks" not in read:
                missed.append(read)
            continue
        for key in keys:
            rows.setdefault(key, {})
        for name, column in answer["columns"].items():
            for key, value in zip(keys, column_rows(column, len(keys), fetch, batch_of_one=True), strict=True):
                known = rows.setdefault(key, {}).setdefault(name, value)
                if known is not value and known != value:
                    raise LineError(f"two reads of {key!r} differ in {name}")
    for read in missed:
        asked = [name for name in read["columns"] if name not in (ROUTED_EXPERTS, ROUTE_BOUNDARY)]
        if all(name in rows.get(key, {}) for key in read["keys"] for name in asked):
            raise LineError(f"a read missed rows that another one found: {', '.join(read['keys'])}")
    return Staging(rows)


def read_faults(effects: list[Mapping[str, Any]]) -> Faults:
    """Return which operations failed with an error of the data plane's own."""
    reads = [effect["get"] for effect in effects if "get" in effect]
    failing = next((index for index, read in enumerate(reads) if "failed" in read), None)
    failed = {kind for effect in effects for kind, content in effect.items() if "failed" in content}
    return Faults(failing, "put" in failed, "clear" in failed)


def read_effect(effect: Mapping[str, Any], config: ReassemblerConfig, fetch: Fetch) -> Effect:
    """Read one operation on the data plane."""
    ((kind, content),) = effect.items()
    partition = content["partition"]
    if kind == "get":
        return Get(partition, tuple(content["keys"]), tuple(content["columns"]))
    if kind == "clear":
        return Clear(partition, ("(the whole partition)",) if content["keys"] is None else tuple(content["keys"]))
    if kind != "put":
        raise LineError(f"effect {kind!r}, expected get, put or clear")
    return Put(partition, tuple(content["sample_ids"]), published_rows(content, config.pad_token_id, fetch))


def published_rows(put: Mapping[str, Any], pad_token_id: int, fetch: Fetch) -> tuple[PublishedRow, ...]:
    """Return what a put published, row by row, without padding."""
    batch, tags = put["rows"], put["tags"]
    count = batch["count"] if batch is not None else len(tags or ())
    if type(count) is not int or not 0 <= count * max(1, len(batch["columns"] if batch else ())) <= MOST_ROWS:
        raise LineError(f"a put of {count!r} rows: expected at most {MOST_ROWS:,}, counted once for each column")
    columns: dict[str, list[Tensor]] = {}
    for name, column in (batch["columns"] if batch is not None else {}).items():
        columns[name] = column_rows(column, count, fetch)
    read_tags = [decode_value(tags[index]) if tags is not None else {} for index in range(count)]
    return rows_without_padding(columns, read_tags, pad_token_id)


# ── outcomes ────────────────────────────────────────────────────────────────────────────────────────────────────────


def read_outcome(content: Mapping[str, Any], effects: tuple[Effect, ...]) -> Answer:
    """Read the outcome of a call of ``finalize_group``."""
    if "failure" not in content:
        return Accepted((GroupOutcome(effects, read_result(content["result"])),))
    failure = read_failure(content["failure"])
    return failure if isinstance(failure, Crashed) else Accepted((GroupOutcome(effects, None, failure),))


def read_failure(content: Mapping[str, Any]) -> Failure | Crashed:
    """Read what was raised: one of the contract's failures, or anything else."""
    if content["kind"] is None:
        return Crashed(content["error"], content["message"])
    return Failure(content["kind"])


def read_result(content: Mapping[str, Any]) -> FinalizedGroup:
    """Read the returned group."""
    values = {name: decode_value(value) for name, value in content.items()}
    for name in ("sample_ids", "sequence_lengths", "tags", "staging_keys"):
        values[name] = tuple(values[name])
    values["fields"] = frozenset(values["fields"])
    return FinalizedGroup(**values)


def read_finalized(content: Mapping[str, Any], fetch: Fetch) -> FinalizedRollout:
    """Read the returned rollout."""
    values = dict(content)
    values["staging_keys"] = tuple(values["staging_keys"])
    for name in ("token_ids", "token_mask", "logprobs"):
        values[name] = read_tensor(values[name], fetch).values()
    if "routed_experts" in values:
        values["routed_experts"] = read_tensor(values["routed_experts"], fetch)
    if "route_plan" in values:
        plan = dict(values["route_plan"])
        plan["spans"] = tuple(RouteSpan(**span) for span in plan["spans"])
        plan["cleanup_staging_keys"] = tuple(plan["cleanup_staging_keys"])
        values["route_plan"] = RouteAssemblyPlan(**plan)
    if "media" in values:
        values["media"] = {name: read_tensor(value, fetch) for name, value in values["media"].items()}
    return FinalizedRollout(**values)
