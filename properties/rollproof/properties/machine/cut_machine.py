"""Running calls over a data plane that fails: cut, die, restore, complete, in any order, also by who was replaced.

Every token has an id of its own, so that one that is lost, generated twice or trained in another order is seen. After a
cut, what it promised is there; after a restore, the worker holds what the promise was about; after a completion, the
row is what its worker's engine generated; and nobody ever clears what is not its call's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from attrs import define, field
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rollproof.impl.cuts import CutStore, Generation
from rollproof.impl.dataplane.memory import MemoryDataPlane
from rollproof.impl.staging import StagingSource
from rollproof.properties.machine.faults import FAULTS, Armed, Crash, FaultyPlane
from rollproof.properties.machine.running import run_machine
from rollproof.properties.machine.watch import Violation
from rollproof.spec.constants import RESERVED_ROLLOUT_ID
from rollproof.spec.cut_records import CutOrder, DurablePrefix, RunningCall
from rollproof.spec.rejections import Rejected

STAGING = "staging"
CALLS = ("a", "b")
PROMPT = (1, 2)
CHARACTERS = (b"x", b"y", "😀".encode(), "é".encode(), b"z", "é".encode()[:1])
MOST_WORKERS = 4


@define(eq=False)
class Worker:
    """A worker with a running call: what its engine truly generated, whatever the store makes of it."""

    call: str
    generation: Generation
    truth: list[int]
    final_id: str
    ended: bool = False
    """Whether its engine is done: it has tried to complete the call, and may do so again."""


@define(eq=False)
class CutPlane:
    """The memory's data plane, where a worker may only touch rows of the call that it runs."""

    inner: MemoryDataPlane = field(factory=MemoryDataPlane)
    acting: str = ""
    final_key: str | None = None
    """The key of the row that the acting worker completes, while it does."""
    violation: Violation | None = None
    """The first thing that must never happen: a store may swallow the error."""

    def get_samples(self, sample_ids: list[str], partition_id: str, select_fields: list[str]) -> Any:
        """Read rows."""
        return self.inner.get_samples(sample_ids, partition_id, select_fields)

    def put_samples(self, sample_ids: list[str], partition_id: str, fields: Any = None, tags: Any = None) -> None:
        """Write rows: chunks of the acting call, or its final row."""
        self._expect_own([key for key in sample_ids if key != self.final_key])
        self.inner.put_samples(sample_ids, partition_id, fields, tags)

    def clear_samples(self, sample_ids: list[str], partition_id: str) -> None:
        """Remove chunks of the acting call; while it is completed, only once its final row is there."""
        self._expect_own(sample_ids)
        if self.final_key is not None and self.final_key not in self.inner.sample_ids(STAGING):
            self._refuse(f"chunks of {self.acting} are cleared before {self.final_key} is there")
        self.inner.clear_samples(sample_ids, partition_id)

    def _expect_own(self, keys: Sequence[str]) -> None:
        foreign = [key for key in keys if f"/{self.acting}/" not in key or not key.startswith(RESERVED_ROLLOUT_ID)]
        if foreign:
            self._refuse(f"a worker of {self.acting} touches {foreign}")

    def _refuse(self, what: str) -> None:
        self.violation = self.violation or Violation(what)
        raise self.violation


@define
class CutParts:
    """The part under test; a broken one must be found."""

    store: Callable[..., CutStore] = CutStore
    counts: Counter[str] = field(factory=Counter)
    """How often each thing happened."""


def armed(*operations: str) -> st.SearchStrategy[list[Armed]]:
    """Draw no fault half of the time, and else one or two of these operations."""
    one = st.sampled_from([(operation, fault) for operation in operations for fault in FAULTS[operation]])  # type: ignore[index]
    fault = st.builds(
        lambda pair, skip, choice: Armed(pair[0], skip, pair[1], choice), one, st.just(0), st.integers(0, 99)
    )
    return st.just([]) | st.lists(fault, min_size=1, max_size=2)


def some_text() -> st.SearchStrategy[list[bytes]]:
    """Draw what some tokens read as, one piece for each."""
    return st.lists(st.sampled_from(CHARACTERS), max_size=3)


class CutMachine(RuleBasedStateMachine):
    """Two calls, their workers, and a controller that knows the latest promise of each."""

    parts = CutParts()

    def __init__(self) -> None:
        super().__init__()
        self.watch = CutPlane()
        self.plane = FaultyPlane(self.watch, self.watch.inner.clear_samples)
        self.store = type(self).parts.store(self.plane, STAGING)
        self.workers: list[Worker] = []
        self.promised: dict[str, tuple[DurablePrefix, list[int]]] = {}
        self.owners: dict[str, Worker] = {}
        """The first worker that cut each call."""
        self.contested: set[str] = set()
        """Calls of which somebody else may have broken a promise."""
        self.final: dict[str, list[int]] = {}
        self.next_id = 10
        self.version = 0
        for call in CALLS:
            self.begin(call, Generation(running(call)), [])

    def begin(self, call: str, generation: Generation, truth: list[int]) -> None:
        """Start a worker; the oldest one ends where there would be too many."""
        self.workers = self.workers[-(MOST_WORKERS - 1) :]
        self.workers.append(Worker(call, generation, truth, f"final-{self.next_id}"))
        self.next_id += 1

    def end(self, worker: Worker) -> None:
        """End a worker; where it was the last one, both calls begin anew."""
        self.workers.remove(worker)
        for call in () if self.workers else CALLS:
            self.begin(call, Generation(running(call)), [])

    def note(self, what: str) -> None:
        """Count that something happened."""
        type(self).parts.counts[what] += 1

    def drawn(self, data: Any) -> Worker:
        """Draw a worker, one that was replaced too."""
        place: int = data.draw(st.integers(0, len(self.workers) - 1))
        return self.workers[place]

    def act(self, call: str, faults: list[Armed], step: Callable[[], Any], final_key: str | None = None) -> Any:
        """Return what a step of a worker gives, or the error that it ends with; None where the worker died."""
        self.plane.arm(faults)
        self.watch.acting, self.watch.final_key = call, final_key
        try:
            return step()
        except Crash:
            return None
        except Violation:
            raise
        except Exception as error:
            if not (isinstance(error, Rejected) or self.plane.struck):
                raise Violation(f"an error of the store's own: {error!r}") from error
            return error
        finally:
            self.watch.final_key = None
            if self.watch.violation is not None:
                raise self.watch.violation
            for one in self.plane.struck:
                self.note(f"{one.operation}: {one.fault}")
            self.plane.arm([])

    # ── steps ───────────────────────────────────────────────────────────────────────────────────────────────────────

    @rule(data=st.data(), texts=some_text())
    def generate(self, data: Any, texts: list[bytes]) -> None:
        """Let an engine generate some tokens, now and then half a character."""
        self.go_on(self.drawn(data), texts)

    def go_on(self, worker: Worker, texts: list[bytes]) -> None:
        """Let a worker's engine generate, unless it is done."""
        if worker.ended:
            return
        ids = list(range(self.next_id, self.next_id + len(texts)))
        self.next_id += len(texts)
        worker.truth += ids
        worker.generation.append(ids, [-0.5] * len(ids), self.version, b"".join(texts))

    @rule()
    def new_weights(self) -> None:
        """Let all workers go on with newer weights."""
        self.version += 1

    @rule(data=st.data(), texts=some_text(), faults=armed("put", "clear"), lost=st.booleans(), before=st.integers(0, 3))
    def cut(self, data: Any, texts: list[bytes], faults: list[Armed], lost: bool, before: int) -> None:
        """Cut a call, perhaps some times; the put may fail, the worker die, and the acknowledgement get lost."""
        worker = self.drawn(data)
        for _ in range(before):
            self.go_on(worker, [b"x"])
            self.cut_once(worker, [], lost=False)
        self.go_on(worker, texts)
        self.cut_once(worker, faults, lost)

    def cut_once(self, worker: Worker, faults: list[Armed], lost: bool) -> None:
        """Cut a call, and check what was promised."""
        if self.owners.setdefault(worker.call, worker) is not worker:
            self.contested.add(worker.call)
        before, durable = set(self.watch.inner.sample_ids(STAGING)), len(worker.generation.keys)
        answer = self.act(worker.call, faults, lambda: self.store.cut(worker.generation, CutOrder("k", 999)))
        there = set(self.watch.inner.sample_ids(STAGING))
        if answer is None:
            self.end(worker)
            self.note("died in a cut")
        elif isinstance(answer, DurablePrefix):
            absent = set(answer.staging_keys[durable:]) - there
            assert not absent, f"acknowledged, and not there: {sorted(absent)}"
            assert answer.prefix_token_count == len(worker.truth), "acknowledged another number of tokens"
            self.note("acknowledged" if not lost else "acknowledgement lost")
            if not lost:
                self.promised[worker.call] = (answer, list(worker.truth))
        else:
            left = there - before if "clear" not in {one.operation for one in faults} else set()
            assert not left, f"a cut that failed leaves {sorted(left)}"
            self.note("not acknowledged")

    @rule(data=st.data(), spared=st.sampled_from([True, True, True, False]))
    def die(self, data: Any, spared: bool) -> None:
        """Let a worker die between two steps, now and then."""
        if not spared:
            self.end(self.drawn(data))
            self.note("died")

    @precondition(lambda self: self.promised)
    @rule(data=st.data(), faults=armed("get"))
    def restore(self, data: Any, faults: list[Armed]) -> None:
        """Let another worker take a call up, whether or not its worker is dead; or begin it anew."""
        self.take_up(data.draw(st.sampled_from(sorted(self.promised))), faults)

    def take_up(self, call: str, faults: list[Armed]) -> None:
        """Restore a call from its promise, and check what comes back."""
        promise, truth = self.promised[call]
        found = self.act(call, faults, lambda: self.store.restore(running(call), promise, weight_version=self.version))
        if isinstance(found, Rejected):
            if call not in self.contested and not faults:
                raise Violation(f"a promise that nobody touched is not kept: {found}")
            del self.promised[call]
            self.begin(call, Generation(running(call)), [])
            self.note(f"refused: {found.code.code}")
        elif faults:
            self.contested.add(call)
        if found is not None and not isinstance(found, Exception):
            assert found.token_ids.tolist() == [*PROMPT, *truth], "restored other tokens than were promised"
            self.begin(call, found.generation, list(truth))
            self.note("restored")

    @precondition(lambda self: self.promised)
    @rule(data=st.data(), how=st.sampled_from(["swapped", "lost", "repeated", "dropped"]), at_once=st.booleans())
    def tamper(self, data: Any, how: str, at_once: bool) -> None:
        """Lose, swap or repeat promised chunks in storage, or drop one of the keys on the way."""
        call = data.draw(st.sampled_from(sorted(self.promised)))
        promise, truth = self.promised[call]
        self.contested.add(call)
        keys = [key for key in promise.staging_keys if key in self.watch.inner.sample_ids(STAGING)]
        if len(keys) < 2:
            return
        first, second = data.draw(st.lists(st.sampled_from(keys), min_size=2, max_size=2, unique=True))
        rows = self.watch.inner._rows[STAGING]
        if how == "lost":
            del rows[first]
        elif how == "swapped":
            rows[first], rows[second] = rows[second], rows[first]
        elif how == "repeated":
            rows[first] = rows[second]
        else:
            some = tuple(key for key in promise.staging_keys if key != first)
            self.promised[call] = DurablePrefix(some, promise.prefix_token_count, promise.prefix_digest, 999), truth
        self.note(how)
        if at_once:
            self.take_up(call, [])

    @rule(data=st.data(), faults=armed("put", "clear", "get"))
    def complete(self, data: Any, faults: list[Armed]) -> None:
        """Complete a call, by the worker that has it or by one that was replaced."""
        worker = self.drawn(data)
        if not worker.truth:
            return
        self.contested.add(worker.call)
        key, worker.ended = f"{worker.call}-r/{worker.final_id}", True
        done = self.act(
            worker.call, faults, lambda: self.store.complete(worker.generation, worker.final_id), final_key=key
        )
        if done is None:
            self.end(worker)
            self.note("died while completing")
        elif not isinstance(done, Exception):
            self.final[key] = list(worker.truth)
            self.end(worker)
            if not done.failed_clears:
                left = set(worker.generation.keys) & set(self.watch.inner.sample_ids(STAGING))
                assert not left, f"chunks outlive their call: {sorted(left)}"
            self.note("completed")

    @rule(data=st.data(), faults=armed("clear"), spared=st.sampled_from([True, True, False]))
    def abandon(self, data: Any, faults: list[Armed], spared: bool) -> None:
        """Let a worker give its call up, and leave nothing."""
        if spared:
            return
        worker = self.drawn(data)
        self.contested.add(worker.call)
        failed = self.act(worker.call, faults, lambda: self.store.abandon(worker.generation))
        self.end(worker)
        left = set(worker.generation.keys) & set(self.watch.inner.sample_ids(STAGING))
        assert failed != 0 or not left, f"chunks of an abandoned call: {sorted(left)}"
        self.note("abandoned")

    @invariant()
    def final_rows_are_what_was_generated(self) -> None:
        """Check every final row against its engine, whatever other workers do afterwards."""
        if self.final:
            source = StagingSource(self.watch.inner, STAGING)
            rows = source.read(list(self.final), ["token_ids_delta"]).get("token_ids_delta").unbind()
            for (key, truth), row in zip(self.final.items(), rows, strict=True):
                assert row.reshape(-1).tolist() == [*PROMPT, *truth], f"{key} is not what was generated"


def running(call: str) -> RunningCall:
    """Return one of the machine's calls."""
    return RunningCall(f"{call}-r", call, None, None, (), PROMPT)


def check_cut_machine(parts: CutParts | None = None, *, runs: int, steps: int = 20, number: int = 0) -> None:
    """Run the machine on ``runs`` sequences of at most ``steps`` steps; raises what it finds."""
    machine = type("Machine", (CutMachine,), {"parts": parts or CutParts()})
    run_machine(machine, runs=runs, steps=steps, number=number)
