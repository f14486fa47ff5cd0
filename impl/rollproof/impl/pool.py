"""Finalizers as Ray actors: groups in, results out, and no group run twice unless that is known to be safe.

Only metadata travels: a request holds receipts, which are free of tokens, and a result says where the rows are. An
actor that dies, or a call that fails around its put, leaves a group whose fate nobody knows. It is never retried as it
is; ``rollproof.impl.recovery`` decides by what the data plane holds, on a fresh actor, after the old one is dead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from attrs import define, field, frozen

from rollproof.impl.outcomes import FinalizedGroup
from rollproof.impl.reassembler import CleanupError, PublishError, RolloutReassembler
from rollproof.impl.recovery import Recovery, run
from rollproof.spec.records import GroupRequest


@frozen(eq=False)
class FinalizerSettings:
    """What a finalizer is made of. It is sent to the actors, so the data plane's client must be picklable."""

    dp_client: Any
    arguments: Mapping[str, Any]
    """The keyword arguments of ``RolloutReassembler``."""

    def __attrs_post_init__(self) -> None:
        direct = self.arguments.get("router_replay_enabled") and not self._deferred
        if direct and self.arguments.get("routed_dims") is None:
            raise ValueError(
                "finalizers that work side by side learn (layers, top-k) from different groups, and would publish "
                "different rows: with router replay, pass routed_dims"
            )

    @property
    def _deferred(self) -> bool:
        return bool(self.arguments.get("defer_routed_experts_to_policy"))

    def reassembler(self) -> RolloutReassembler:
        """A finalizer."""
        return RolloutReassembler(self.dp_client, **self.arguments)

    def recovery(self) -> Recovery:
        """Recovery for the groups of such a finalizer."""
        names = self.arguments["partition_id"], self.arguments["staging_partition"]
        return Recovery(self.dp_client, *names, deferred=self._deferred)


class Finalizer:
    """The actor."""

    def __init__(self, settings: FinalizerSettings) -> None:
        self._reassembler, self._recovery = settings.reassembler(), settings.recovery()

    def finalize(self, request: GroupRequest) -> FinalizedGroup:
        """Finalize a group for the first time."""
        return run(self._reassembler, request)

    def recover(self, request: GroupRequest) -> FinalizedGroup:
        """Finish or run a group whose fate is unknown."""
        return self._recovery.recover(request, self._reassembler)


@frozen(eq=False)
class Outcome:
    """What became of one request: a group, or the error after which the pool gave up on it."""

    request: GroupRequest
    group: FinalizedGroup | None
    error: Exception | None = None
    recoveries: int = 0
    """How often the group was recovered before that."""


@frozen(eq=False)
class _Call:
    request: GroupRequest
    actor: Any
    recoveries: int = 0


@define(eq=False)
class FinalizerPool:
    """``size`` finalizers, with at most ``in_flight`` groups between them.

    A finalizer that finishes nothing for ``timeout_s`` seconds is killed, and its groups are recovered; so is a group
    after ``PublishError`` or ``CleanupError``, ``max_recoveries`` times at most. Close the pool to stop its actors.
    """

    settings: FinalizerSettings
    size: int = 2
    in_flight: int = 4
    timeout_s: float = 300.0
    max_recoveries: int = 3
    num_cpus: float = 1.0
    """What each actor asks of the Ray cluster."""
    _actors: list[Any] = field(factory=list, init=False)
    _calls: dict[Any, _Call] = field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        if self.size < 1 or self.in_flight < self.size:
            raise ValueError("a pool has at least one finalizer, and at least one group in flight for each")
        self._actors = [self._start() for _ in range(self.size)]

    def finalize(self, requests: Iterable[GroupRequest]) -> Iterator[Outcome]:
        """Finalize groups, in the order in which they come to an end.

        Requests are taken as finalizers have room, so a source that is slow, or large, is never run ahead of.
        """
        import ray

        source = iter(requests)
        more = True
        while more or self._calls:
            while more and len(self._calls) < self.in_flight:
                request = next(source, None)
                more = request is not None
                if request is not None:
                    self._submit(request, 0)
            if not self._calls:
                return
            done, _ = ray.wait(list(self._calls), num_returns=1, timeout=self.timeout_s)
            if done:
                yield from self._finished(done[0])
            else:
                for actor in {call.actor for call in self._calls.values()}:
                    yield from self._replace(actor, TimeoutError(f"nothing finished in {self.timeout_s} s"))

    def close(self) -> None:
        """Kill the actors. Groups in flight are left to ``Recovery``."""
        import ray

        for actor in self._actors:
            ray.kill(actor)
        self._actors, self._calls = [], {}

    # ── calls ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _start(self) -> Any:
        import ray

        actor: Any = ray.remote(Finalizer)
        return actor.options(num_cpus=self.num_cpus, max_restarts=0, max_task_retries=0).remote(self.settings)

    def _submit(self, request: GroupRequest, recoveries: int) -> None:
        busy = [call.actor for call in self._calls.values()]
        actor = min(self._actors, key=busy.count)
        method = actor.recover if recoveries else actor.finalize
        self._calls[method.remote(request)] = _Call(request, actor, recoveries)

    def _finished(self, reference: Any) -> Iterator[Outcome]:
        """A call that has come to an end, well or not."""
        import ray

        call = self._calls[reference]
        try:
            group: FinalizedGroup = ray.get(reference)
        except ray.exceptions.RayActorError as error:
            yield from self._replace(call.actor, error)
        except Exception as error:
            del self._calls[reference]
            if isinstance(error, PublishError | CleanupError):
                yield from self._again(call, error)
            else:
                yield Outcome(call.request, None, error, call.recoveries)
        else:
            del self._calls[reference]
            yield Outcome(call.request, group, None, call.recoveries)

    def _replace(self, actor: Any, error: Exception) -> Iterator[Outcome]:
        """A dead actor, or one that is to die: another takes its place, and its groups are recovered."""
        import ray

        ray.kill(actor)
        self._actors = [self._start() if one is actor else one for one in self._actors]
        for reference in [one for one, call in self._calls.items() if call.actor is actor]:
            call = self._calls.pop(reference)
            try:
                # Waits until the call is over: an actor that still runs must not meet its own recovery.
                yield Outcome(call.request, ray.get(reference), None, call.recoveries)
            except Exception:
                yield from self._again(call, error)

    def _again(self, call: _Call, error: Exception) -> Iterator[Outcome]:
        """Recover a group, or give it up."""
        if call.recoveries < self.max_recoveries:
            self._submit(call.request, call.recoveries + 1)
        else:
            yield Outcome(call.request, None, error, call.recoveries)
