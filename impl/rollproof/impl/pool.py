"""Finalizers as Ray actors: groups in, results out, and no group run twice unless that is known to be safe.

Only metadata travels: a request holds receipts, which are free of tokens, and a result says where the rows are. An
actor that dies, or a call that fails around its put, leaves a group whose fate is unknown. It is never retried as it
is; ``rollproof.impl.recovery`` decides by what the data plane holds, on a fresh actor, after the old one is dead.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import ray
from attrs import define, field, frozen

from rollproof.impl.actor import (
    Request,
    RolloutReassemblerActor,
    RolloutReassemblerActorConfig,
    as_client,
    client_of,
)
from rollproof.impl.arguments import as_amount, as_count, as_seconds
from rollproof.impl.outcomes import FinalizedGroup
from rollproof.impl.reassembler import CleanupError, PublishError, RolloutReassembler
from rollproof.impl.recovery import Recovery, Undecidable

START_S: Final = 300.0
"""How long an actor may take to start: Ray may have to wait for a processor, and its process to import torch."""


def _copied(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    return dict(arguments)


@frozen(eq=False)
class FinalizerSettings:
    """The arguments of a finalizer. It is sent to the actors, so the data plane's client must be picklable.

    Raises what ``RolloutReassembler`` raises for them.
    """

    dp_client: Any
    """A data plane, or what ``LocalReassembler`` makes one from."""
    arguments: Mapping[str, Any] = field(converter=_copied)
    """The keyword arguments of ``RolloutReassembler``."""

    def __attrs_post_init__(self) -> None:
        as_client("dp_client", self.dp_client)
        config = self.config
        direct = config.router_replay_enabled and not config.defer_routed_experts_to_policy
        if direct and config.routed_dims is None:
            raise ValueError(
                "finalizers that work side by side learn (layers, top-k) from different groups, and would publish "
                "different rows: with router replay, pass routed_dims"
            )

    @property
    def config(self) -> RolloutReassemblerActorConfig:
        """The arguments of an actor."""
        off = {"router_replay_enabled": False, "defer_routed_experts_to_policy": False}
        return RolloutReassemblerActorConfig(**(off | dict(self.arguments)))

    def reassembler(self) -> RolloutReassembler:
        """Return a finalizer."""
        return RolloutReassembler(client_of(self.dp_client), **self.arguments)

    def recovery(self) -> Recovery:
        """Return a recovery for the groups of such a finalizer."""
        config = self.config
        names, deferred = (config.partition_id, config.staging_partition), config.defer_routed_experts_to_policy
        return Recovery(client_of(self.dp_client), *names, deferred=deferred)


@frozen(eq=False)
class Outcome:
    """The outcome of one request: a group, or the error after which the pool gave up on it.

    An error after recoveries leaves a group whose fate is unknown, whatever error it is: only ``Recovery`` may
    continue.
    """

    request: Request
    group: FinalizedGroup | None
    error: Exception | None = None
    recoveries: int = 0
    """How often the group was recovered before that."""


@frozen(eq=False)
class _Call:
    request: Request
    recoveries: int = 0


@define(eq=False)
class _Running:
    """One finalizer: its actor, and what it was given."""

    actor: Any
    starting: Any
    """The reference that is there once the actor has started; then None."""
    calls: dict[Any, _Call] = field(factory=dict)
    since: float = field(factory=time.monotonic)
    """When it started, was given something to do, or finished a call, whichever was last."""

    def left(self, timeout_s: float) -> float:
        """Return the seconds until it counts as hanging."""
        return self.since + (timeout_s if self.starting is None else START_S) - time.monotonic()


@define(eq=False)
class FinalizerPool:
    """``size`` finalizers, with at most ``in_flight`` groups between them.

    A finalizer that has something to do and finishes nothing for ``timeout_s`` seconds is killed, and its groups are
    recovered. So is a group after ``PublishError`` or ``CleanupError``, and after any other error of a recovery but
    ``Undecidable``: ``max_recoveries`` times at most. Close the pool to stop its actors.
    """

    settings: FinalizerSettings
    size: int = 2
    in_flight: int = 4
    timeout_s: float = 300.0
    max_recoveries: int = 3
    num_cpus: float = 1.0
    """The resources that each actor needs from the Ray cluster."""
    _running: list[_Running] = field(factory=list, init=False)

    def __attrs_post_init__(self) -> None:
        self.size, self.in_flight = as_count("size", self.size, 0), as_count("in_flight", self.in_flight, 0)
        self.max_recoveries = as_count("max_recoveries", self.max_recoveries, 0)
        self.timeout_s = as_seconds("timeout_s", self.timeout_s)
        self.num_cpus = as_amount("num_cpus", self.num_cpus)
        if self.size < 1 or self.in_flight < self.size:
            got = f"got size={self.size}, in_flight={self.in_flight}"
            raise ValueError(f"size must be at least 1, and in_flight at least size: {got}")
        self._running = [self._start() for _ in range(self.size)]

    def finalize(self, requests: Iterable[Request]) -> Iterator[Outcome]:
        """Finalize groups, in the order in which they finish.

        Requests are taken as finalizers have room, so a source that is slow, or large, is never run ahead of.
        """
        source = iter(requests)
        more = True
        while True:
            while more and sum(len(one.calls) for one in self._running) < self.in_flight:
                request = next(source, None)
                more = request is not None
                if request is not None:
                    self._submit(request, 0)
            if not any(one.calls for one in self._running):
                return
            yield from self._wait()

    def close(self) -> None:
        """Kill the actors. Groups in flight are left to ``Recovery``."""
        for one in self._running:
            ray.kill(one.actor)
        self._running = []

    # ── calls ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _start(self) -> _Running:
        options = RolloutReassemblerActor.options(num_cpus=self.num_cpus)
        actor = options.remote(self.settings.dp_client, self.settings.config)
        return _Running(actor, actor.__ray_ready__.remote())

    def _submit(self, request: Request, recoveries: int) -> None:
        one = min(self._running, key=lambda running: len(running.calls))
        if not one.calls:
            one.since = time.monotonic()
        method = one.actor.recover if recoveries else one.actor.finalize
        one.calls[method.remote(request)] = _Call(request, recoveries)

    def _wait(self) -> list[Outcome]:
        """Wait until a call is over or a finalizer hangs; return the outcomes."""
        busy = [one for one in self._running if one.calls]
        waiting = {reference: one for one in busy for reference in one.calls}
        waiting |= {one.starting: one for one in busy if one.starting is not None}
        patience = max(0.0, min(one.left(self.timeout_s) for one in busy))
        done, _ = ray.wait(list(waiting), timeout=patience)
        outcomes = self._finished(waiting[done[0]], done[0]) if done else []
        for one in busy:
            # The consumer of outcomes may be slow: calls that are over by now do not hang.
            late = one.calls and one in self._running and one.left(self.timeout_s) <= 0
            if late and not ray.wait(list(one.calls), timeout=0)[0]:
                error = TimeoutError(f"the finalizer finished no group within {self.timeout_s:g} s")
                outcomes += self._replace(one, error)
        return outcomes

    def _finished(self, one: _Running, reference: Any) -> list[Outcome]:
        """Handle a call that has ended, well or not, or an actor that has started."""
        one.since = time.monotonic()
        if reference == one.starting:
            one.starting = None
            return []
        call = one.calls[reference]
        try:
            group: FinalizedGroup = ray.get(reference)
        except ray.exceptions.RayActorError as error:
            return self._replace(one, error)
        except Exception as error:
            del one.calls[reference]
            own: Exception = getattr(error, "cause", error)
            if own is not error:
                # Ray's error tells where in the actor it was raised, and from what.
                own.__cause__ = error
            return self._failed(call, own)
        del one.calls[reference]
        return [Outcome(call.request, group, None, call.recoveries)]

    def _replace(self, one: _Running, error: Exception) -> list[Outcome]:
        """Replace an actor that is dead or is to die, and recover its groups."""
        ray.kill(one.actor)
        self._running[self._running.index(one)] = self._start()
        outcomes = []
        for reference, call in one.calls.items():
            try:
                # Waits until the call is over: an actor that still runs must not meet its own recovery.
                group: FinalizedGroup = ray.get(reference)
            except Exception:
                outcomes += self._again(call, error)
            else:
                outcomes.append(Outcome(call.request, group, None, call.recoveries))
        return outcomes

    def _failed(self, call: _Call, error: Exception) -> list[Outcome]:
        """Handle a call that ended in an error of the finalizer or the data plane."""
        unknown = isinstance(error, PublishError | CleanupError) or call.recoveries > 0
        if unknown and not isinstance(error, Undecidable):
            return self._again(call, error)
        return [Outcome(call.request, None, error, call.recoveries)]

    def _again(self, call: _Call, error: Exception) -> list[Outcome]:
        """Recover a group, or give it up."""
        if call.recoveries == self.max_recoveries:
            return [Outcome(call.request, None, error, call.recoveries)]
        self._submit(call.request, call.recoveries + 1)
        return []
