"""Work spread over a running Ray cluster, by the processes that a command without Ray would start on its own machine.

A worker is a Ray actor that keeps one such process. So the work finds the same conditions as without Ray, Ray is not
affected by limits and tracers that the work sets on its process, and an actor can pass on the signal to stop.
"""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import socket
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from pickle import dumps, loads
from typing import Any, Final, TypeVar

from attrs import define, field, frozen

from rollproof.properties.errors import InputError
from rollproof.properties.processes import Begin, Processes, processes

Result = TypeVar("Result")

RAY_HELP: Final = "Run on this Ray cluster: auto or HOST:PORT; does not affect results."
"""Help of the option --ray."""

REACH_SECONDS: Final = 5.0
FRAME_HEADER: Final = 9
SETTINGS: Final = b"\x04"
"""The type of the frame that a gRPC server, which speaks HTTP/2, sends first."""
HTTP_2: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + SETTINGS + bytes(5)
"""How a client begins: the preface, and no settings of its own."""

START_SECONDS: Final = 120.0
LISTEN_SECONDS: Final = 0.5
"""How often a command that waits for a result asks whether to stop."""

AHEAD: Final = 2
"""Tasks at each worker: one that is worked on, and the next."""

TRIES: Final = 3
"""How many workers may be lost over one task. A task has no effects, so another one may do it again."""

SAME: Final = ("rollproof", "hypothesis", "torch")
"""Packages that must have the same version on every machine, like Python, or the results would differ."""


@frozen
class Cluster:
    """A cluster that this process is connected to, and how many workers to have on it."""

    address: str
    size: int

    @contextmanager
    def workers(self, begin: Begin, stop: Callable[[], bool], most: int | None = None) -> Iterator[Workers]:
        """Have ``size`` workers, ``most`` at most, while the context is open.

        Raises ``InputError`` where they do not start, or have other versions than this process.
        """
        import ray

        actor: Any = ray.remote(_Worker)
        placed = actor.options(num_cpus=1, max_restarts=0, max_task_retries=0)
        count = self.size if most is None else min(self.size, most)
        actors = [placed.remote(f"{Path.cwd()}", sys.path, dumps(begin)) for _ in range(count)]
        try:
            self._check(actors)
            yield Workers(self.address, list(actors), stop)
        finally:
            for one in actors:
                ray.kill(one)

    def _check(self, actors: Sequence[Any]) -> None:
        import ray

        try:
            answers = ray.get([actor.run.remote(dumps((versions, ()))) for actor in actors], timeout=START_SECONDS)
        except ray.exceptions.GetTimeoutError as error:
            raise InputError(
                f"{self.address}: {len(actors)} workers did not start in {START_SECONDS:.0f} s; "
                f"expected {len(actors)} free processors"
            ) from error
        except Exception as error:
            cause = getattr(error, "cause", None) or error
            last = f"{cause}".strip().splitlines()[-1:] or [type(cause).__name__]
            raise InputError(f"{self.address}: a worker did not start: {last[0]}") from error
        here = versions()
        for name, there in (item for answer in answers for item in loads(answer).items()):
            if there != here[name]:
                raise InputError(f"{self.address}: a worker has {name} {there}, expected {here[name]}, as here")


def placed(address: str | None, size: int | None, alone: int) -> AbstractContextManager[int | Cluster]:
    """Return where a command works: on a cluster, or in several processes of this machine, ``alone`` by default."""
    return nullcontext(size or alone) if address is None else joined(address, size)


def workers(
    place: int | Cluster, begin: Begin, stop: Callable[[], bool], most: int, preload: Sequence[str]
) -> AbstractContextManager[Workers | Processes]:
    """Return a context with workers at a place, ``most`` at most."""
    if isinstance(place, Cluster):
        return place.workers(begin, stop, most)
    return processes(min(place, most), begin, stop, preload=preload)


@contextmanager
def joined(address: str, size: int | None) -> Iterator[Cluster]:
    """Connect to a running cluster while the context is open; a process that has a connection already keeps it.

    ``address`` is what ``ray.init`` takes. Without ``size`` there are as many workers as processors are free.
    Raises ``InputError`` where Ray is not installed, the cluster does not answer, or it is too small.
    """
    try:
        import ray
    except ImportError as error:
        raise InputError("--ray needs Ray, expected: pip install 'rollproof[ray]'") from error
    own = not ray.is_initialized()
    if own:
        _connect(address)
    try:
        if not own and address not in ("auto", ray.get_runtime_context().gcs_address):
            raise InputError(f"--ray {address}: this process is connected to another cluster")
        resources: Any = ray
        offered = int(resources.cluster_resources().get("CPU", 0))
        free = int(resources.available_resources().get("CPU", 0))
        if size is not None and size > offered:
            raise InputError(f"--ray {address}: {size} workers requested, expected at most its {offered} processors")
        if size is None and not free:
            raise InputError(f"--ray {address}: none of its {offered} processors is free")
        yield Cluster(address, free if size is None else size)
    finally:
        if own:
            ray.shutdown()


def _connect(address: str) -> None:
    """Connect, or report at once what is wrong: otherwise Ray tries for minutes."""
    import ray

    host, colon, port = address.removeprefix("ray://").rpartition(":")
    expected = "expected the address of a running Ray cluster, as ray.init takes it: auto, or HOST:PORT"
    if os.environ.get("RAY_AUTH_MODE") != "token":
        expected += " (set RAY_AUTH_MODE=token if it wants a token)"
    try:
        if colon:
            _reach(host.strip("[]"), int(port))
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, OSError, RuntimeError, ValueError, OverflowError) as error:
        why = getattr(error, "strerror", None) or f"{error}".strip().partition("\n")[0]
        raise InputError(f"--ray {address}: {why}; {expected}") from error


def _reach(host: str, port: int) -> None:
    """Raise ``OSError`` where nothing answers, or something that is not a gRPC server, such as Ray's dashboard."""
    with socket.create_connection((host, port), REACH_SECONDS) as connection:
        if os.environ.get("RAY_USE_TLS", "0") == "0":
            connection.sendall(HTTP_2)
            if connection.recv(FRAME_HEADER)[3:4] != SETTINGS:
                raise OSError(f"the server at port {port} is not Ray")


# ── here ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@define(eq=False)
class _Task:
    pickled: bytes
    tries: int = 0
    answer: Callable[[], Any] | None = None
    """Gives the result or raises the error; None until one of them is known."""


@define(eq=False)
class Workers:
    """Gives tasks to whichever worker has room. ``stop`` says when the workers are to be told to stop."""

    address: str
    _actors: list[Any]
    _stop: Callable[[], bool]
    _waiting: deque[_Task] = field(factory=deque, init=False)
    """Tasks that no worker has yet."""
    _under_way: dict[Any, tuple[Any, _Task]] = field(factory=dict, init=False)
    """By the reference of the result: who works on what."""

    def __len__(self) -> int:
        return len(self._actors)

    def submit(self, work: Callable[..., Result], *arguments: Any) -> Callable[[], Result]:
        """Have ``work`` called in a worker; the function returned waits for its result, and raises its error.

        A task whose worker is lost is given to another one. It raises ``InputError`` where none is left.
        """
        task = _Task(dumps((work, arguments)))
        self._waiting.append(task)
        self._feed()
        return lambda: self._result(task)

    def _feed(self) -> None:
        while self._waiting and len(self._under_way) < AHEAD * len(self._actors):
            task = self._waiting.popleft()
            busy = [actor for actor, _ in self._under_way.values()]
            actor = min(self._actors, key=busy.count)
            self._under_way[actor.run.remote(task.pickled)] = actor, task

    def _result(self, task: _Task) -> Any:
        import ray

        while task.answer is None:
            if not self._actors:
                raise InputError(f"{self.address}: all workers were lost")
            done, _ = ray.wait(list(self._under_way), timeout=LISTEN_SECONDS)
            for reference in done:
                self._take(reference)
            self._feed()
            if self._stop():
                for actor in self._actors:
                    actor.ring.remote()
        return task.answer()

    def _take(self, reference: Any) -> None:
        """Record the outcome of a task."""
        import ray

        actor, task = self._under_way.pop(reference)
        try:
            task.answer = partial(loads, ray.get(reference))
        except ray.exceptions.RayTaskError as error:
            task.answer = partial(_raise, error.cause)
        except ray.exceptions.RayError as error:
            if actor in self._actors:
                self._actors.remove(actor)
                ray.kill(actor)
            task.tries += 1
            if task.tries == TRIES:
                task.answer = partial(_raise, InputError(f"{self.address}: workers were lost: {type(error).__name__}"))
            else:
                self._waiting.appendleft(task)


def _raise(error: Exception) -> None:
    raise error


# ── there ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Worker:
    """The actor. Its process works in the folder of the command, where the machine has it, and imports what it can.

    Tasks and results are pickled: the actor imports nothing of what they are made of, and stays small.
    """

    def __init__(self, folder: str, places: Sequence[str], begin: bytes) -> None:
        with suppress(OSError):
            os.chdir(folder)
        sys.path += [place for place in places if place not in sys.path]
        self._open = ExitStack()
        spawning = get_context("spawn")
        self._process = self._open.enter_context(processes(1, partial(_begin, begin), context=spawning))

    async def run(self, task: bytes) -> bytes:
        """Do a task in the process."""
        return await asyncio.wrap_future(self._process.start(_do, task))

    async def ring(self) -> None:
        """Tell the process to stop."""
        self._process.ring()


def _begin(begin: bytes, bell: Any) -> None:
    loads(begin)(bell)


def _do(task: bytes) -> bytes:
    work, arguments = loads(task)
    return dumps(work(*arguments))


def versions() -> dict[str, str]:
    """Return the versions that this process runs on."""
    return {"Python": platform.python_version()} | {name: version(name).partition("+")[0] for name in SAME}
