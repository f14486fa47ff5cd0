"""A request described by what makes it special: how it differs from the plainest request of its kind.

The plainest request is one that every right implementation accepts: one call with one token where a rollout is
needed, the empty or the shortest value elsewhere. Any request is that one with some fields changed. The changes are a
dict from paths to values, in Python's own notation, which is what a finding prints and what its program runs:

len(calls) = 2
    calls[1].delta_len = 9
    value['reward'] = 'x'
    value['manifest'] = (absent)

A new item of a sequence or a mapping starts as a copy of the last plain one, so that only differences are listed.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from itertools import combinations, islice
from typing import Any, Final

from attrs import evolve, fields, has
from attrs.exceptions import NotAnAttrsClassError

from rollproof.properties.strategies.rollouts.history import Call, History, redigest
from rollproof.properties.strategies.rollouts.recipes import RECIPES
from rollproof.properties.strategies.rollouts.staged_calls import staged_call
from rollproof.spec.chunks import chunk_row
from rollproof.spec.constants import BUNDLE_PIXELS, BUNDLE_SIZES
from rollproof.spec.cut_records import DurablePrefix, RunningCall
from rollproof.spec.digest import chain_digest, extras_digest, prefix_digest
from rollproof.spec.judge import requests
from rollproof.spec.judge.cuts import ParseCutKey, PlayCuts, RestoreCut, RestoredRoutes, Tail
from rollproof.spec.judge.invariant import ABSENT, difference
from rollproof.spec.judge.portable import AdvantageRequest, AlignRoutes, MediaRows, MergeCalls, MergeTwice
from rollproof.spec.judge.requests import GroupStep, Linearize, Request
from rollproof.spec.judge.staging import Staging
from rollproof.spec.portable import Call as SessionCall
from rollproof.spec.portable import Captured, MediaRollout, ScoredRow
from rollproof.spec.records import GroupRequest, ReassemblerConfig, RouteAssemblyPlan, StagedCall
from rollproof.spec.retained import PrefixRow
from rollproof.spec.staged import encode_row
from rollproof.spec.tensor import Tensor

Changes = Mapping[str, Any]
"""Path to value."""

CALL: Final = SessionCall((0,), (0,), (-1.0,))
"""The shortest call of which a trainer can learn something."""
RUNNING: Final = RunningCall("r", "c0", None, None, (), ())
"""A call without a prompt."""
SCORED: Final = ScoredRow("g0", "r0-0", (1,), 0.0)
"""A row that is alone in its batch."""
SEALED: Final = ("chain_hash", "cumulative_hash", "digest")
"""Hashes of a staged call, which follow from its tokens and its parent: listed only where they differ."""

MOST_TRIED: Final = 1_000
"""Ways to leave items out of one sequence that are tried."""


@cache
def plainest() -> dict[type, Request]:
    """Return the plainest request of every kind."""
    call = staged_call((0,), 0, call_id="c0")
    history = History("r", (Call(call, response_id="resp-0"),), "c0")
    rollout = history.finalize()
    config, receipt, staging = ReassemblerConfig(), rollout.receipt, rollout.staging
    group = GroupRequest("g", ("r",), (receipt,), (0.0,), (True,))
    bundle = {BUNDLE_PIXELS: Tensor("bfloat16", (1, 1, 3), bytes(6)), BUNDLE_SIZES: Tensor.of("int64", [1, 1], (1, 2))}
    plan = RouteAssemblyPlan("staging", (), ("r/c0",), 0)
    linearize = history.linearize()
    key, chunk = "__generation_cut__/k/r/c0/0", chunk_row(RUNNING, 0, (0,), (0.0,), 0, None)
    found: tuple[Request, ...] = (
        requests.PrefixDigest(()),
        requests.ChainDigest(None, ()),
        requests.ExtrasDigest(None),
        requests.CallDigest(history.calls[0].staged),
        requests.ParseReceipt(receipt),
        requests.SelectTerminal(linearize.receipt.manifest),
        linearize,
        requests.LinearizeGrowth(),
        rollout,
        requests.FinalizeGroups(config, (GroupStep(group),), staging),
        requests.DecodeRoutes([[[0]]]),
        requests.EncodeRoutes(Tensor.of("int8", [0], (1, 1, 1))),
        requests.ClassifySpan(0, 0, 0),
        requests.DecodePlan(
            {
                "schema_version": 2,
                "staging_partition": "staging",
                "spans": [],
                "cleanup_staging_keys": ["r/c0"],
                "expected_token_length": 0,
            }
        ),
        requests.EncodePlan(plan),
        requests.ExecutePlan(plan, {}, (1, 1), 0),
        requests.AlignEngineRows(Tensor.of("int8", [0], (1, 1, 1)), 0, 1),
        requests.ReplayGroup(evolve(config, router_replay_enabled=True), group, staging, (1, 1)),
        requests.ChainMedia((bundle,)),
        requests.StageMedia(None, "bfloat16"),
        requests.MediaDigest(None),
        requests.SameMedia(None, None),
        requests.CutGeneration({}, [], None, "bfloat16"),
        requests.Restore(PrefixRow(b"{}", extras_digest({})), [], None),
        requests.CheckCompletion((), (), (), (), ()),
        ParseCutKey(key),
        PlayCuts(RUNNING, (), Tail("c1", (0,), (0.0,), 0)),
        RestoreCut(RUNNING, DurablePrefix((key,), 1, chunk.digest, 1), Staging({key: encode_row(chunk)}), 0),
        RestoredRoutes(Tensor.of("int16", [0], (1, 1, 1)), 0, 1, ()),
        MergeCalls((CALL,), 0.0, None, 0, ()),
        MergeTwice((CALL,), 0.0, None, 0, ()),
        AlignRoutes((CALL,), (Captured(0, (((0,),),)),), 1, False),
        AdvantageRequest((SCORED,), (SCORED,)),
        MediaRows((MediaRollout("r0", (0,), (1,)),), 99, 2, None),
    )
    return {type(request): request for request in found}


# ── from a request to its changes ───────────────────────────────────────────────────────────────────────────────────


def changes(request: Request) -> dict[str, Any]:
    """Return how a request differs from the plainest one of its kind; ``changed`` makes it again."""
    plain = plainest()[type(request)]
    told = {path: value for path, value in _compared(plain, request, "") if not _is_sealed(path)}
    return told | dict(_compared(_sealed(_applied(plain, told)), request, ""))


def _compared(base: Any, value: Any, path: str) -> Iterator[tuple[str, Any]]:
    kind = type(value)
    if difference(base, value) is None:
        return
    if kind is not type(base) or kind is Tensor or isinstance(value, RECIPES):
        yield path, value
    elif has(kind):
        for name in _names(kind):
            yield from _compared(getattr(base, name), getattr(value, name), f"{path}.{name}".lstrip("."))
    elif isinstance(value, tuple | list) and base and any(map(_is_container, value)):
        if len(value) != len(base):
            yield f"len({path})", len(value)
        for index, item in enumerate(value):
            yield from _compared(base[min(index, len(base) - 1)], item, f"{path}[{index}]")
    elif isinstance(value, Mapping):
        yield from ((f"{path}[{key!r}]", ABSENT) for key in base if key not in value)
        for key, item in value.items():
            yield from _compared_entry(base, key, item, f"{path}[{key!r}]")
    else:
        yield path, value


def _compared_entry(base: Mapping[Any, Any], key: Any, item: Any, path: str) -> Iterator[tuple[str, Any]]:
    if key in base:
        yield from _compared(base[key], item, path)
        return
    last = next(reversed([*base.values()]), None)
    found = [*_compared(last, item, path)] if _is_container(item) and type(last) is type(item) else []
    yield from found or [(path, item)]


def _is_container(value: Any) -> bool:
    return isinstance(value, Mapping) or (has(type(value)) and not isinstance(value, (Tensor, *RECIPES)))


def _is_sealed(path: str) -> bool:
    return path.rpartition(".")[2] in SEALED


def _names(kind: type) -> list[str]:
    return [one.name for one in fields(kind) if one.init]


# ── and back ────────────────────────────────────────────────────────────────────────────────────────────────────────


def changed(kind: type, told: Changes) -> Request:
    """Return the plainest request of a kind with these changes. Raises ``ValueError`` for a path that it lacks."""
    first = {path: value for path, value in told.items() if not _is_sealed(path)}
    last = {path: value for path, value in told.items() if _is_sealed(path)}
    made: Request = _applied(_sealed(_applied(plainest()[kind], first)), last)
    return made


def _applied(value: Any, told: Changes) -> Any:
    base = plainest()[type(value)]
    for path, new in told.items():
        try:
            steps = [*_steps(ast.parse(path, mode="eval").body)]
            value = _put(value, base, steps, new)
        except (SyntaxError, AttributeError, LookupError, TypeError, NotAnAttrsClassError) as error:
            raise ValueError(f"{path}: not a path into a {type(value).__name__}: {error}") from error
    return value


def _steps(node: ast.expr) -> Iterator[tuple[str, Any]]:
    match node:
        case ast.Name(name):
            yield "field", name
        case ast.Attribute(inner, name):
            yield from _steps(inner)
            yield "field", name
        case ast.Subscript(inner, key):
            yield from _steps(inner)
            yield "item", ast.literal_eval(key)
        case ast.Call(ast.Name("len"), [inner], []):
            yield from _steps(inner)
            yield "length", None
        case _:
            raise SyntaxError("expected names, [keys] and len()")


def _put(value: Any, base: Any, steps: list[tuple[str, Any]], new: Any) -> Any:
    """Return ``value`` with ``new`` at the end of ``steps``; ``base`` is what a new item on the way is a copy of."""
    if not steps:
        return new
    (how, at), *rest = steps
    if how == "field":
        return evolve(value, **{at: _put(getattr(value, at), getattr(base, at), rest, new)})
    if how == "length":
        return type(value)([*value, *[base[-1]] * (new - len(value))][:new])
    if isinstance(value, Mapping):
        if new is ABSENT and not rest:
            return {key: item for key, item in value.items() if key != at}
        below = base[at] if at in base else next(reversed([*base.values()]), None)
        return {**value, at: _put(value.get(at, below), below, rest, new)}
    below = base[min(at, len(base) - 1)] if base else None
    return type(value)(_put(item, below, rest, new) if index == at else item for index, item in enumerate(value))


def _sealed(request: Any) -> Any:
    """Return the request with the hashes that its calls' tokens and parents give, in calls and manifest."""
    if not isinstance(request, Linearize):
        return request
    done: dict[Any, tuple[StagedCall, tuple[int, ...]]] = {}
    calls = []
    for call in request.calls:
        parent, before = done.get(call.parent_call_id, (None, ()))
        sealed = call
        with suppress(Exception):
            # A broken call has no hashes of its own: it keeps the plain one's.
            ids = (*before, *call.token_ids_delta)
            chain = chain_digest(None if parent is None else parent.chain_hash, call.token_ids_delta)
            alone = Call(evolve(call, chain_hash=chain, cumulative_hash=prefix_digest(ids)))
            sealed = redigest(alone).staged
            done[call.model_call_id] = sealed, ids
        calls.append(sealed)
    by_id = {call.model_call_id: call for call in calls if isinstance(call.model_call_id, str)}
    manifest = tuple(
        evolve(record, **{name: getattr(by_id[record.model_call_id], name) for name in SEALED})
        if record.model_call_id in by_id
        else record
        for record in request.receipt.manifest
    )
    return evolve(request, receipt=evolve(request.receipt, manifest=manifest), calls=tuple(calls))


# ── plainer ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def plainer(request: Request, still: Callable[[Request], bool]) -> Request:
    """Return a request with fewer items and fewer changes for which ``still`` holds: each goes that can.

    ``still`` may raise; a request for which it does is not taken.
    """
    request = _with_fewer_items(request, still, 1)
    told = changes(request)
    for path in [*told][::-1]:
        fewer = {name: value for name, value in told.items() if name != path}
        with suppress(Exception):
            candidate = changed(type(request), fewer)
            if still(candidate):
                request, told = candidate, fewer
    # A fork that is as good as another cannot lose an end alone.
    return _with_fewer_items(request, still, 2)


def _with_fewer_items(request: Request, still: Callable[[Request], bool], at_once: int) -> Request:
    """Return the request without items that can go: first from calls and manifest alike, then from one of them."""
    lengths = {path[len("len(") : -1]: length for path, length in changes(request).items() if path.startswith("len(")}
    for paths in dict.fromkeys([(*lengths,), *((path,) for path in lengths)]):
        shortest = min((lengths[path] for path in paths), default=0)
        for indices in islice(combinations(reversed(range(shortest)), at_once), MOST_TRIED):
            with suppress(Exception):
                candidate = _without_items(request, paths, indices)
                if still(candidate):
                    request = candidate
    return request


def _without_items(request: Request, paths: Iterable[str], indices: Iterable[int]) -> Request:
    """Return the request without items of each sequence, the last first. Raises ``IndexError`` where there is none."""
    for path in paths:
        steps = [*_steps(ast.parse(path, mode="eval").body)]
        whole: Any = request
        for how, at in steps:
            whole = getattr(whole, at) if how == "field" else whole[at]
        kept = [*whole]
        for index in indices:
            del kept[index]
        request = _put(request, request, steps, type(whole)(kept))
    return request
