"""What an input must not make an implementation do: raise, take long, take much memory.

Limits grow with the input and have a floor, because the interpreter itself takes time and memory for the smallest.
"""

from __future__ import annotations

import resource
import signal
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar

from attrs import evolve, frozen

from rollproof.properties.adapters.asking import ask
from rollproof.properties.adapters.protocol import deviation_of
from rollproof.properties.fuzz.size import input_size
from rollproof.properties.strategies.rollouts.recipes import realize_request
from rollproof.properties.wire.program import Program
from rollproof.spec.judge.oracle import answer
from rollproof.spec.judge.requests import Answer, Crashed, FinalizeRollout, LinearizeGrowth, Request

T = TypeVar("T")

UNIT: Final = 1_000
"""Bytes of input that time is counted by; a smaller input counts as one unit."""
TURNS_PER_UNIT: Final = 370_000
"""The limit for one unit: the processor time of so many turns of an empty loop, some 4 ms on a machine of today."""
ROLLOUT_BYTES: Final = 4_000
"""What a rollout counts in addition to its bytes: a data plane and packed columns take time and memory of their own."""
MEMORY_RATIO: Final = 30
"""Bytes of memory per byte of input: not quite twice what the greediest inputs take once everything is loaded."""
MEMORY_FLOOR: Final = 64 * 1024
"""Bytes of memory that any input may take."""
RESIDENT_FLOOR: Final = 32 * 1024 * 1024
"""Bytes by which the process may grow over any input: arenas are allocated and kept whole."""
TRIES: Final = 5
"""How often an input beyond a limit is measured again. The best counts: machines are noisy."""
GIVE_UP: Final = 60.0
"""Seconds of processor time after which the measurement gives up."""
HEADROOM: Final = 4 * 1024**3
"""Bytes of address space that one answer may ask for beyond what the process has."""

_RSS_UNIT: Final = 1 if sys.platform == "darwin" else 1024


class Limit(StrEnum):
    """A limit that an input can break."""

    CRASH = "crash"
    TIME = "time"
    MEMORY = "memory"


class GaveUp(BaseException):
    """An answer takes too long to wait for; no ``except Exception`` on the way catches it."""


@frozen
class Measured:
    """One input's answer, and its cost."""

    answer: Answer
    size: int
    seconds: float
    peak: int = 0
    """Bytes that Python objects, numpy included, took at most beyond the input itself."""
    growth: int = 0
    """Bytes by which the process's peak grew; this sees what torch allocates, once it exceeds all before."""

    fixed: int = 0
    """Bytes that the input counts for beside its own."""

    @property
    def per_unit(self) -> float:
        """Return seconds per unit of input."""
        return self.seconds * UNIT / max(self.size + self.fixed, UNIT)

    @property
    def memory_ratio(self) -> float:
        """Bytes of memory per byte of input; inputs below ``MEMORY_FLOOR`` over ``MEMORY_RATIO`` count as that."""
        return self.peak / max(self.size + self.fixed, MEMORY_FLOOR // MEMORY_RATIO)

    @property
    def gave_up(self) -> bool:
        """Whether no answer came."""
        return isinstance(self.answer, Crashed) and self.answer.error == GaveUp.__name__

    @property
    def broken(self) -> Limit | None:
        """The limit that is broken, or None."""
        if isinstance(self.answer, Crashed) and not self.gave_up:
            return Limit.CRASH
        if self.per_unit > seconds_per_unit() or self.gave_up:
            return Limit.TIME
        allowed = MEMORY_RATIO * (self.size + self.fixed)
        too_much = self.peak > max(MEMORY_FLOOR, allowed) or self.growth > max(RESIDENT_FLOOR, allowed)
        return Limit.MEMORY if too_much else None


@frozen
class LimitFinding:
    """An input that breaks a limit."""

    limit: Limit
    request: Request
    measured: Measured
    source: str
    """The kind of input or the stream that it comes from."""
    deviation: str | None = None
    """The declared deviation that a crash is an instance of."""

    @property
    def key(self) -> tuple[str, ...]:
        """What distinguishes it from other findings: of each, one is kept."""
        found = self.measured.answer
        error = (found.error,) if isinstance(found, Crashed) else ()
        return (self.deviation or "", self.limit, type(self.request).__name__, *error)

    @property
    def figure(self) -> str:
        """The measured figure."""
        measured = self.measured
        if isinstance(measured.answer, Crashed) and self.limit is Limit.CRASH:
            return f"{measured.answer.error} escaped: {measured.answer.message}"
        if self.limit is Limit.TIME:
            ending = ", and no answer" if measured.gave_up else ""
            return f"{1000 * measured.seconds:.0f} ms for {measured.size:,} bytes{ending}"
        return f"{max(measured.peak, measured.growth):,} bytes of memory for {measured.size:,} bytes"


# ── measuring ───────────────────────────────────────────────────────────────────────────────────────────────────────


def clock_of(implementation: Any) -> Callable[[], float]:
    """Return the clock: this process's processor time, which a busy machine does not change.

    An implementation that runs elsewhere is measured by wall time.
    """
    return time.perf_counter if isinstance(implementation, Program) else processor_time


def processor_time() -> float:
    """Return the seconds of processor time that this process has taken.

    ``time.process_time`` may stand still between a kernel's ticks, 4 ms apart, while an ``alarm`` is set.
    """
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def measure(implementation: Any, request: Request, *, memory: bool = True) -> Measured:
    """Send a request once.

    ``request`` is realized; ``memory`` also measures ``peak`` and ``growth``, which takes time.
    """
    size, clock = input_size(request), clock_of(implementation)
    fixed = ROLLOUT_BYTES if isinstance(request, FinalizeRollout) else 0

    def timed() -> tuple[Answer, float]:
        started = clock()
        try:
            found = ask(implementation, request)
        except GaveUp:
            found = Crashed(GaveUp.__name__, "no answer")
        return found, clock() - started

    with alarm():
        if not memory:
            found, seconds = timed()
            return Measured(found, size, seconds, fixed=fixed)
        before = resident_peak()
        (found, seconds), peak = traced_peak(timed)
        return Measured(found, size, seconds, peak, resident_peak() - before, fixed)


@cache
def seconds_per_unit() -> float:
    """Return the processor time that a unit of input may take on this machine: the best of several loops."""

    def turns() -> float:
        started = processor_time()
        for _ in range(TURNS_PER_UNIT):
            pass
        return processor_time() - started

    return min(turns() for _ in range(7))


def traced_peak(call: Callable[[], T]) -> tuple[T, int]:
    """Return what ``call`` returns, and the bytes that its Python objects took at most."""
    tracemalloc.start()
    try:
        result = call()
        return result, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def resident_peak() -> int:
    """Return the most bytes that this process has ever had in memory."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RSS_UNIT


@contextmanager
def guarded() -> Iterator[None]:
    """Give up answers that take longer than ``GIVE_UP``, and let allocations fail before the machine does.

    Works in a process's main thread; in others nothing is guarded. A call into C is only given up when it returns.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def give_up(*_: object) -> None:
        raise GaveUp

    handler = signal.signal(signal.SIGPROF, give_up)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_AS, (address_space() + HEADROOM, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
        signal.signal(signal.SIGPROF, handler)


def address_space() -> int:
    """Return the bytes of this process's address space; raises ``OSError`` where the platform does not say."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


@contextmanager
def alarm() -> Iterator[None]:
    """Limit the time of one answer, within ``guarded``."""
    guards = signal.getsignal(signal.SIGPROF) not in (signal.SIG_DFL, signal.SIG_IGN, None)
    if guards:
        signal.setitimer(signal.ITIMER_PROF, GIVE_UP)
    try:
        yield
    finally:
        if guards:
            signal.setitimer(signal.ITIMER_PROF, 0)


def confirm(implementation: Any, request: Request, first: Measured) -> Measured:
    """Return the best of several measurements, where the first breaks a limit on time or memory."""
    best = first
    for _ in range(TRIES):
        if best.broken in (None, Limit.CRASH) or best.gave_up:
            break
        memory = best.broken is Limit.MEMORY
        again = measure(implementation, realize_request(request), memory=memory)
        best = evolve(best, seconds=min(best.seconds, again.seconds))
        if memory:
            # The process has grown already, so it cannot grow again: the first figure counts.
            best = evolve(best, peak=min(best.peak, again.peak))
    return best


def judged(implementation: Any, request: Request, measured: Measured, source: str) -> LimitFinding | None:
    """Return what is wrong with a measurement of ``request``, if anything. A crash may be a declared deviation."""
    if measured.broken is None or isinstance(request, LinearizeGrowth):
        return None
    measured = confirm(implementation, request, measured)
    if measured.broken is None:
        return None
    deviation = declared(implementation, request, measured.answer) if measured.broken is Limit.CRASH else None
    return LimitFinding(measured.broken, request, measured, source, deviation)


def declared(implementation: Any, request: Request, crash: Answer) -> str | None:
    """Return the declared deviation that a crash is an instance of. Only then is the contract's answer computed."""
    if not implementation.deviations:
        return None
    expected = answer(realize_request(request))
    return deviation_of(implementation, request, expected, crash)
