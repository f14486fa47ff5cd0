"""Reading recorded generation cuts back: the requests of area ``cuts``, and what the store answered (section 11).

A history in a line has made-up cuts where the durable part of the call was cut before: of those, the spec's own answers
are taken for the store's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias, TypeVar

from attrs import evolve, frozen

from rollproof.properties.audit import COMPLETION, CUT, RESTORE
from rollproof.properties.audit.stored import Fetch, LineError, column_rows
from rollproof.properties.wire.codec import load, load_record
from rollproof.spec.chunks import parse_cut_key
from rollproof.spec.constants import ROUTED_EXPERTS
from rollproof.spec.cut_records import DurablePrefix, RunningCall
from rollproof.spec.cuts import Partition
from rollproof.spec.judge.cuts import CutHistory, PlayCuts, RestoreCut, RestoredCut, RestoredRoutes
from rollproof.spec.judge.oracle import answer
from rollproof.spec.judge.requests import Accepted, Answer, Crashed, Refused, Request
from rollproof.spec.judge.staging import Staging
from rollproof.spec.plane import Clear, Effect, PublishedRow, Put
from rollproof.spec.tensor import Tensor, to_float32
from rollproof.spec.values import is_text, owned_key

MOST_ROWS: Final = 2**20
"""Rows times columns of one put."""
MOST_HASHED: Final = 2**24
"""Chunks times tokens of one call: the spec hashes the call so far at every cut."""
COMPLETED: Final = "completed"
ABANDONED: Final = "abandoned"

OF_WHOLE_ROWS: Final = frozenset({"CUTS-17"})
"""It is not asked of final rows with routes, which no history has; CUTS-16 judges those."""
NONE: Final[frozenset[str]] = frozenset()

Asked = TypeVar("Asked", bound=Request)
Writes: TypeAlias = tuple[Effect, ...]
Promise: TypeAlias = tuple[tuple[str, ...], str]
"""The keys of an acknowledgement, and its digest."""


@frozen
class CutRecord:
    """What a line says about cuts: what is judged by itself, and what later lines must agree with."""

    calls: tuple[str, ...]
    pairs: tuple[tuple[Request, Answer, frozenset[str]], ...] = ()
    """Each request with its answer, and the invariants that are not asked of it."""
    broken: tuple[tuple[str, str], ...] = ()
    """What is wrong with an answer that no request is about."""
    unjudged: int = 0
    promised: tuple[tuple[str, Promise], ...] = ()
    """Acknowledgements that the line gives, or that it restored a call from, each with its call."""
    continued: tuple[Promise, ...] = ()
    """Acknowledgements that the line continues."""
    final_key: str | None = None
    """Where a final row was put."""
    ended: str | None = None
    """How the line ends its call: completed or abandoned."""


# ── cuts ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def read_cuts(content: Mapping[str, Any], writes: Writes) -> CutRecord:
    """Read one call of ``cut_all``: every cut with its part of what was written."""
    requests = [read_play(one["request"]) for one in content["cuts"]]
    failing = failed(content, "put")
    record = CutRecord(tuple(name_of(request.call) for request in requests))
    promised: list[tuple[str, Promise]] = []
    continued: list[Promise] = []
    pairs: list[tuple[Request, Answer, frozenset[str]]] = []
    for index, (one, request) in enumerate(zip(content["cuts"], requests, strict=True)):
        others = [other.call for other in requests if other is not request]
        own = tuple(part_of(writes, request.call, others, first=index == 0))
        found = None if one["answer"] is None else load_record(one["answer"], DurablePrefix)
        if found is not None:
            promised.append((record.calls[index], promise_of(found)))
        if "unjudged" in one:
            continue
        *before, step = request.steps
        request = evolve(request, steps=(*before, evolve(step, failing_put=failing)))
        wanted = history(request)
        acknowledged = (*wanted.acknowledgements[:-1], found)
        keys = next((item.staging_keys for item in reversed(acknowledged) if item is not None), ())
        end: Writes = (Clear(Partition().name, keys),) if keys else ()
        pairs.append((request, Accepted(CutHistory(acknowledged, (*wanted.writes[: len(before)], own, end))), NONE))
        continued += last_promise(wanted.acknowledgements[:-1])
    unjudged = len(requests) - len(pairs)
    return evolve(record, pairs=tuple(pairs), unjudged=unjudged, promised=tuple(promised), continued=tuple(continued))


def read_request(content: Any, kind: type[Asked]) -> Asked:
    """Read a request that has to be of this kind."""
    request = load(content)
    if not isinstance(request, kind):
        raise LineError(f"got a {type(request).__name__}, expected {kind.__name__}")
    return request


def read_play(content: Any) -> PlayCuts:
    """Read the request of a cut or of an end; log-probs are rounded to what rows hold."""
    request = read_request(content, PlayCuts)
    tokens = len(request.call.carry_ids) + len(request.call.before) + sum(len(step.token_ids) for step in request.steps)
    if (tokens + 1) * (len(request.steps) + 1) > MOST_HASHED:
        raise LineError(f"{tokens:,} tokens in {len(request.steps):,} chunks: more than the spec can hash")
    steps = tuple(evolve(step, log_probs=rounded(step.log_probs)) for step in request.steps)
    tail = None if request.tail is None else evolve(request.tail, log_probs=rounded(request.tail.log_probs))
    return evolve(request, steps=steps, tail=tail)


def rounded(log_probs: Sequence[float]) -> tuple[float, ...]:
    """Return log-probs as float32."""
    return tuple(map(to_float32, log_probs))


def history(request: PlayCuts) -> CutHistory:
    """Return the spec's own history; an empty one where it refuses the final row."""
    found = answer(request)
    return found.value if isinstance(found, Accepted) else CutHistory((), ((),))


def last_promise(acknowledgements: Sequence[DurablePrefix | None]) -> list[Promise]:
    """Return what a call continues, if anything."""
    last = acknowledgements[-1] if acknowledgements else None
    return [] if last is None else [promise_of(last)]


def promise_of(acknowledged: DurablePrefix) -> Promise:
    """Return an acknowledgement as later lines are compared with it."""
    keys, digest = acknowledged.staging_keys, acknowledged.prefix_digest
    if not keys or not all(map(is_text, (*keys, digest))):
        raise LineError(f"a promise of {keys!r:.200} with the digest {digest!r:.80}: expected keys and a string")
    return keys, digest


def name_of(call: RunningCall) -> str:
    """Return a call in a word."""
    return owned_key(call.capture_key, call.model_call_id)


def is_chunk_of(key: Any, call: RunningCall) -> bool:
    """Return whether a key is that of a chunk of this call."""
    try:
        parsed = parse_cut_key(key)
    except ValueError:
        return False
    return (parsed.capture_key, parsed.model_call_id) == (call.capture_key, call.model_call_id)


def part_of(writes: Writes, call: RunningCall, others: Sequence[RunningCall], *, first: bool) -> Iterator[Effect]:
    """Yield a call's part of some writes; the first call's is also what is nobody's."""

    def own(key: Any) -> bool:
        return is_chunk_of(key, call) or (first and not any(is_chunk_of(key, other) for other in others))

    for effect in writes:
        if isinstance(effect, Put):
            pairs = [pair for pair in zip(effect.sample_ids, effect.rows, strict=True) if own(pair[0])]
            if pairs:
                yield Put(effect.partition, tuple(key for key, _ in pairs), tuple(row for _, row in pairs))
        elif isinstance(effect, Clear) and any(map(own, effect.keys)):
            yield Clear(effect.partition, tuple(filter(own, effect.keys)))


# ── restores ────────────────────────────────────────────────────────────────────────────────────────────────────────


def read_restore(content: Mapping[str, Any], staging: Staging, writes: Writes) -> CutRecord:
    """Read one restore, over the chunks that it read."""
    request = evolve(read_request(content["request"], RestoreCut), staging=staging)
    rows = [staging.rows[key] for key in request.acknowledged.staging_keys if key in staging.rows]
    tokens = sum(row["token_ids_delta"].count for row in rows if "token_ids_delta" in row)
    if tokens > MOST_HASHED:
        raise LineError(f"a prefix of {tokens:,} tokens: expected at most {MOST_HASHED:,}")
    record = CutRecord((name_of(request.call),))
    if writes:
        record = evolve(record, broken=(("CUTS-11", f"a restore made {len(writes)} puts or clears"),))
    if "failure" in content:
        failure = content["failure"]
        if failure["kind"] == "plane":
            return evolve(record, unjudged=1)
        return evolve(record, pairs=((request, raised(failure), NONE),))
    found = Accepted(load_record(content["result"], RestoredCut))
    promised = ((record.calls[0], promise_of(request.acknowledged)),)
    return evolve(record, pairs=((request, found, NONE),), promised=promised)


def raised(failure: Mapping[str, Any]) -> Answer:
    """Return a refusal, or a crash."""
    if failure["kind"] == "refused":
        return Refused(failure["message"])
    return Crashed(failure["error"], failure["message"])


# ── the end ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def read_completion(content: Mapping[str, Any], staging: Staging, writes: Writes) -> CutRecord:
    """Read a completion, or an abandonment where the request has no tail."""
    request = read_play(content["request"])
    record = CutRecord((name_of(request.call),))
    if "failure" in content:
        return failed_completion(record, request, content, staging, writes)
    tail, clear_failed = request.tail, failed(content, "clear")
    failed_clears = content["result"]
    if tail is None:
        failed_clears -= clear_failed  # the spec's data plane fails only where there is a tail
    else:
        request = evolve(request, tail=evolve(tail, failing_clear=clear_failed))
        key = owned_key(request.call.capture_key, tail.model_call_id)
        if any(isinstance(effect, Put) for effect in writes):
            record = evolve(record, final_key=key)
        elif key in staging.rows:  # the very row was there already, and was read to see that
            writes = (Put(Partition().name, (key,), (PublishedRow(dict(staging.rows[key]), {}),)), *writes)
    record = evolve(record, ended=ABANDONED if tail is None else COMPLETED)
    if "unjudged" in content:
        return evolve(record, unjudged=1)
    wanted = history(request)
    found = CutHistory(wanted.acknowledgements, (*wanted.writes[:-1], writes), failed_clears)
    pairs: list[tuple[Request, Answer, frozenset[str]]]
    pairs = [(request, Accepted(found), OF_WHOLE_ROWS if "routes" in content else NONE)]
    if "routes" in content:
        routes = read_request(content["routes"], RestoredRoutes)
        if routes.routes.shape[:1] > (MOST_ROWS,):
            raise LineError(f"routes of shape {routes.routes.shape}: expected at most {MOST_ROWS:,} tokens")
        pairs.append((routes, Accepted(final_routes(writes)), NONE))
    return evolve(record, pairs=tuple(pairs), continued=tuple(last_promise(wanted.acknowledgements)))


def failed_completion(
    record: CutRecord, request: PlayCuts, content: Mapping[str, Any], staging: Staging, writes: Writes
) -> CutRecord:
    """Read a completion that raised: the chunks stay, and what the spec refuses too is refused rightly."""
    if any(isinstance(effect, Clear) for effect in writes):
        record = evolve(record, broken=(("CUTS-8", "chunks are cleared, and no final row is put"),))
    tail, failure = request.tail, content["failure"]
    another = tail is not None and owned_key(request.call.capture_key, tail.model_call_id) in staging.rows
    if failure["kind"] == "plane" or another or "unjudged" in content or "routes" in content:
        return evolve(record, unjudged=1)
    return evolve(record, pairs=((request, raised(failure), NONE),))


def final_routes(writes: Writes) -> Tensor | None:
    """Return the routes of the row that was put, ``[T, L, K]``."""
    rows = [row for effect in writes if isinstance(effect, Put) for row in effect.rows]
    staged = rows[0].columns.get(ROUTED_EXPERTS) if rows else None
    return None if staged is None else Tensor(staged.dtype, staged.shape[1:], staged.data)


# ── effects ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def failed(content: Mapping[str, Any], kind: str) -> bool:
    """Return whether a put or a clear failed."""
    return any("failed" in effect.get(kind, {}) for effect in content["effects"])


def read_writes(content: Mapping[str, Any], fetch: Fetch) -> Writes:
    """Return puts and clears, as the spec writes them: rows as they are staged, in its own partition."""
    partition = content["partition"]

    def place(name: Any) -> str:
        return Partition().name if name == partition else f"{name!r}, expected {partition!r}"

    writes: list[Effect] = []
    for effect in content["effects"]:
        ((kind, one),) = effect.items()
        if kind == "clear":
            keys = ("(the whole partition)",) if one["keys"] is None else tuple(one["keys"])
            writes.append(Clear(place(one["partition"]), keys))
        elif kind == "put":
            writes.append(Put(place(one["partition"]), tuple(one["sample_ids"]), staged_rows(one["rows"], fetch)))
        elif kind != "get":
            raise LineError(f"effect {kind!r}, expected get, put or clear")
    return tuple(writes)


def staged_rows(batch: Mapping[str, Any], fetch: Fetch) -> tuple[PublishedRow, ...]:
    """Return the rows of a put with their batch dimension of one, and without tags."""
    count, columns = batch["count"], batch["columns"]
    if type(count) is not int or not 0 <= count * max(1, len(columns)) <= MOST_ROWS:
        raise LineError(f"a put of {count!r} rows: expected at most {MOST_ROWS:,}, counted once for each column")
    read = {name: column_rows(column, count, fetch, batch_of_one=True) for name, column in columns.items()}
    return tuple(PublishedRow({name: rows[at] for name, rows in read.items()}, {}) for at in range(count))


READERS: Final[Mapping[str, Callable[[Mapping[str, Any], Staging, Writes], CutRecord]]] = {
    CUT: lambda content, _, writes: read_cuts(content, writes),
    RESTORE: read_restore,
    COMPLETION: read_completion,
}
