"""Groups in flight over a data plane that fails: stage, finalize, crash, recover, consume, in any order.

After every step: a group has N rows or none, unless its finalizer's fate is unknown; what is there is the contract's
row for what was truly staged, or a placeholder; and no group's staging outlives it. ``watch.WatchedPlane`` checks
what a single write must never do.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from enum import StrEnum
from functools import partial
from itertools import product
from typing import Any, Final

from attrs import define, field
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rollproof.impl.reassembler import CleanupError, GroupInFlight, PublishError, RolloutReassembler
from rollproof.impl.recovery import Contradiction, Recovery, Undecidable, run
from rollproof.properties.adapters.recording import published_rows
from rollproof.properties.adapters.tensors import stage_rows
from rollproof.properties.machine.faults import ABOUT_ROWS, FAULTS, Armed, Crash, Fault, FaultyPlane, Operation
from rollproof.properties.machine.model import CONFIG, STAGING, TRAIN, Group, RolloutPlan, group_of
from rollproof.properties.machine.running import run_machine
from rollproof.properties.machine.watch import Violation, WatchedPlane
from rollproof.spec.plane import PublishedRow
from rollproof.spec.staged import Row

MAX_IN_FLIGHT = 4
WRITES: Final[tuple[Operation, ...]] = ("put", "clear")
RECOVERY_FAULTS: Final = (*ABOUT_ROWS, Fault.ODD_ERROR)
"""What a recovery's reads are told most: lies about which rows there are, and errors that look like one."""


class State(StrEnum):
    """A group's progress, as its caller knows it."""

    STAGED = "staged"
    UNKNOWN = "unknown"
    """A finalizer died or reported an error after which its rows may be there."""
    DONE = "done"
    GONE = "gone"
    """Trained and cleared, or discarded."""


@define(eq=False)
class InFlight:
    """A group, its progress, and the rows that it had once they were known."""

    group: Group
    state: State = State.STAGED
    rows: tuple[PublishedRow, ...] | None = None


@define
class Parts:
    """The parts under test; a broken part must be found."""

    reassembler: Callable[..., RolloutReassembler] = RolloutReassembler
    recovery: Callable[..., Recovery] = Recovery
    counts: Counter[str] = field(factory=Counter)
    """How often groups came to each state, and each fault struck."""


def fault_lists() -> st.SearchStrategy[list[Armed]]:
    """Draw up to three faults, most of them early."""
    one = st.sampled_from(list(FAULTS)).flatmap(
        lambda operation: st.builds(
            Armed,
            st.just(operation),
            st.integers(0, 3 if operation == "get" else 0),
            st.sampled_from(FAULTS[operation]),
            st.integers(0, 2**12),
        )
    )
    return st.lists(one, max_size=3)


def recovery_faults() -> st.SearchStrategy[list[Armed]]:
    """Draw, half of the time, a lie or an odd error about what is there, and nothing else."""
    one = st.builds(
        Armed,
        st.just("get"),
        st.integers(0, 1),
        st.sampled_from(RECOVERY_FAULTS),
        st.integers(0, 2**12),
    )
    return one.map(lambda armed: [armed]) | fault_lists()


def group_plans() -> st.SearchStrategy[list[RolloutPlan]]:
    """Draw one to three rollouts of one to three calls; one in three has a flaw."""
    lengths = st.tuples(st.integers(0, 2), st.integers(1, 3))
    flaws = st.sampled_from(("",) * 8 + ("no receipt", "poisoned", "unstaged", "foreign"))
    plan = st.builds(RolloutPlan, st.lists(lengths, min_size=1, max_size=3).map(tuple), flaws)
    return st.lists(plan, min_size=1, max_size=3)


class FinalizerMachine(RuleBasedStateMachine):
    """The machine over one data plane. Subclasses with other ``parts`` test those."""

    parts = Parts()

    def __init__(self) -> None:
        super().__init__()
        self.watch = WatchedPlane()
        self.plane = FaultyPlane(self.watch, self.watch.inner.clear_samples)
        self.flights: list[InFlight] = []
        self.staged: dict[str, Row] = {}
        self.fresh_process()

    def fresh_process(self) -> None:
        """Start a new finalizer."""
        self.reassembler = type(self).parts.reassembler(
            self.plane,
            partition_id=TRAIN,
            staging_partition=STAGING,
            pad_token_id=CONFIG.pad_token_id,
            max_seq_len=CONFIG.max_seq_len,
        )
        self.recovery = type(self).parts.recovery(self.plane, TRAIN, STAGING)

    def ready(self, *states: State) -> list[InFlight]:
        """Return the groups in one of these states."""
        return [flight for flight in self.flights if flight.state in states]

    def drawn(self, data: Any, state: State) -> InFlight:
        """Draw one of the groups in a state."""
        names = {flight.group.request.group_id: flight for flight in self.ready(state)}
        return names[data.draw(st.sampled_from(sorted(names)))]

    # ── steps ───────────────────────────────────────────────────────────────────────────────────────────────────────

    @precondition(lambda self: len(self.ready(State.STAGED, State.UNKNOWN, State.DONE)) < MAX_IN_FLIGHT)
    @rule(plans=group_plans())
    def stage(self, plans: list[RolloutPlan]) -> None:
        """Let workers stage a group."""
        group = group_of(len(self.flights), plans, [flight.group for flight in self.flights])
        stage_rows(self.watch, STAGING, group.rows)
        self.staged |= group.rows
        self.flights.append(InFlight(group))

    @precondition(lambda self: self.ready(State.STAGED))
    @rule(data=st.data(), faults=fault_lists())
    def finalize(self, data: Any, faults: list[Armed]) -> None:
        """Let a finalizer take a group, for the first time or after a read that failed."""
        flight = self.drawn(data, State.STAGED)
        self.act(flight, faults, lambda: run(self.reassembler, flight.group.request))

    @precondition(lambda self: self.ready(State.UNKNOWN))
    @rule(data=st.data(), faults=recovery_faults())
    def recover(self, data: Any, faults: list[Armed]) -> None:
        """Let another finalizer recover a group whose fate is unknown."""
        flight = self.drawn(data, State.UNKNOWN)
        self.act(flight, faults, lambda: self.recovery.recover(flight.group.request, self.reassembler))

    @precondition(lambda self: self.ready(State.STAGED))
    @rule(data=st.data())
    def finalize_twice_at_once(self, data: Any) -> None:
        """Give another finalizer the same group while one clears it."""
        flight = self.drawn(data, State.STAGED)
        errors: list[BaseException] = []

        def intrude() -> None:
            try:
                run(self.reassembler, flight.group.request)
            except Exception as error:
                errors.append(error)

        def beside() -> None:
            other = threading.Thread(target=intrude)
            other.start()
            other.join()

        def both() -> None:
            self.plane.intruder = beside
            run(self.reassembler, flight.group.request)

        self.act(flight, [], both)
        for error in errors:
            if not isinstance(error, GroupInFlight):
                raise Violation(f"two finalizers had {flight.group.request.group_id} at once") from error

    @precondition(lambda self: self.ready(State.UNKNOWN))
    @rule(data=st.data())
    def lose_a_row(self, data: Any) -> None:
        """Lose a row of a group in storage, before anybody knows that it is there."""
        flight = self.drawn(data, State.UNKNOWN)
        self.watch.lose([data.draw(st.sampled_from(flight.group.sample_ids))])

    @precondition(lambda self: self.ready(State.DONE))
    @rule(data=st.data())
    def consume(self, data: Any) -> None:
        """Let the trainer take a group that is done, and clear its rows."""
        flight = self.drawn(data, State.DONE)
        self.watch.clear_samples(list(flight.group.sample_ids), TRAIN)
        flight.state = State.GONE

    def act(self, flight: InFlight, faults: list[Armed], step: Callable[[], Any]) -> None:
        """Make one call of a finalizer under faults, and draw the caller's conclusions from the outcome."""
        before = flight.state
        self.plane.arm(faults)
        self.watch.acting = flight.group
        try:
            step()
        except Crash:
            flight.state = State.UNKNOWN
            self.fresh_process()
        except Undecidable:
            self.discard(flight)
        except Contradiction:
            flight.state = before
        except (PublishError, CleanupError) as error:
            self.expect_injected(error.__cause__)
            if error.published and not self.watch.is_published(flight.group):
                raise Violation(f"{error}, but the rows are not there") from error
            flight.state = State.UNKNOWN
        except Exception as error:
            # A failed read propagates as it is, or, of more rows than keys, as an error of its own; nothing is written.
            if not isinstance(error, RuntimeError) or "the data plane answered" not in str(error):
                self.expect_injected(error)
            flight.state = before
        else:
            assert self.plane.raised is None, f"an error of the data plane was swallowed: {self.plane.raised!r}"
            self.done(flight)
        finally:
            counts = type(self).parts.counts
            counts.update(f"{armed.operation}: {armed.fault}" for armed in self.plane.struck)
            counts[f"{before} to {flight.state}"] += 1
            self.plane.arm([])
            self.watch.acting = None

    def expect_injected(self, error: BaseException | None) -> None:
        """Check that only errors that the plane raised on purpose reach the caller."""
        if isinstance(error, Violation):
            raise error
        assert error is self.plane.raised, f"an error of the finalizer's own: {error!r}"

    def discard(self, flight: InFlight) -> None:
        """Discard what is left of a group that nobody will train."""
        self.plane.arm([])
        self.watch.discarding = True
        self.recovery.discard(flight.group.request)
        self.watch.discarding = False
        flight.state = State.GONE

    def done(self, flight: InFlight) -> None:
        """Check that a group reported as published has the contract's rows."""
        group = flight.group
        missing = [key for key in group.sample_ids if key not in self.watch.rows]
        assert not missing, f"{group.request.group_id} was reported as published, without {missing}"
        rows = tuple(self.watch.rows[key] for key in group.sample_ids)
        valid = frozenset(index for index, row in enumerate(rows) if row.columns["sample_mask"].values()[0] > 0)
        surplus = valid - group.valid(self.staged)
        assert not surplus, f"{group.request.group_id} trains rollouts that the contract rejects: {sorted(surplus)}"
        assert rows == group.published(valid, self.staged), f"{group.request.group_id}: rows that were not staged"
        assert rows == self.stored(group), f"{group.request.group_id}: what is stored is not what was put"
        flight.state, flight.rows = State.DONE, rows

    def stored(self, group: Group) -> tuple[PublishedRow, ...]:
        """Return a group's rows as a trainer reads them."""
        ids = list(group.sample_ids)
        names = sorted(self.watch.rows[ids[0]].columns)
        tags = self.watch.tags(TRAIN)
        return published_rows(self.watch.get_samples(ids, TRAIN, names), [dict(tags[key]) for key in ids], 0)

    # ── after every step ────────────────────────────────────────────────────────────────────────────────────────────

    @invariant()
    def n_rows_or_none(self) -> None:
        """Check that groups have all rows or none, except those that are not staged, done or gone."""
        for flight in self.flights:
            there = sum(key in self.watch.rows for key in flight.group.sample_ids)
            if flight.state is State.DONE:
                assert there == len(flight.group.sample_ids), f"{flight.group.request.group_id}: {there} rows"
            elif flight.state is not State.UNKNOWN:
                assert there == 0, f"{flight.group.request.group_id} is {flight.state}, with {there} rows"

    @invariant()
    def rows_stay(self) -> None:
        """Check that what was published stays as it was."""
        for flight in self.ready(State.DONE):
            assert flight.rows == tuple(self.watch.rows[key] for key in flight.group.sample_ids)

    @invariant()
    def nothing_leaks(self) -> None:
        """Check that a group that is done or gone has nothing staged, and that any other has lost nothing."""
        there = set(self.watch.inner.sample_ids(STAGING))
        for flight in self.ready(State.DONE, State.GONE):
            leaked = there & flight.group.owned
            assert not leaked, f"{flight.group.request.group_id} is {flight.state}; still staged: {sorted(leaked)}"

    def teardown(self) -> None:
        """Finish everything that is in flight, without further faults."""
        for flight in self.ready(State.STAGED, State.UNKNOWN):
            if flight.state is State.STAGED:
                self.act(flight, [], partial(run, self.reassembler, flight.group.request))
            else:
                self.act(flight, [], partial(self.recovery.recover, flight.group.request, self.reassembler))
        assert not self.ready(State.STAGED, State.UNKNOWN), "a group that cannot be finished without any fault"
        self.n_rows_or_none()
        self.nothing_leaks()


def check_each_fault(parts: Parts | None = None) -> None:
    """Run every fault of a finalizer's operations once, and after it every lie to the reads of the recovery.

    What is drawn seldom comes to a group whose staging is half cleared while recovery is lied to. Raises what it finds.
    """
    kind = type("Machine", (FinalizerMachine,), {"parts": parts or Parts()})
    reads = each("get", FAULTS["get"], skips=4, errors=6)
    writes = [armed for name in WRITES for armed in each(name, FAULTS[name])]
    lies = each("get", RECOVERY_FAULTS, skips=2, errors=2)
    for first in reads:
        finish(kind(), [first], [])
    for first in writes:
        for second in lies:
            finish(kind(), [first], [second])


def each(operation: Operation, faults: Iterable[Fault], skips: int = 1, errors: int = 1) -> list[Armed]:
    """Return every fault of the first operations: the second row's, of writes one row's, and so many odd errors."""
    return [
        Armed(operation, skip, fault, choice)
        for skip, fault in product(range(skips), faults)
        for choice in (range(errors) if fault is Fault.ODD_ERROR else (1,))
    ]


def finish(machine: FinalizerMachine, first: list[Armed], second: list[Armed]) -> None:
    """Stage a group, and finalize it under the first faults; if it may be there then, recover it under the second."""
    machine.stage([RolloutPlan(((0, 1), (1, 1)))] * 2)
    (flight,) = machine.flights
    machine.act(flight, first, partial(run, machine.reassembler, flight.group.request))
    machine.n_rows_or_none()
    if flight.state is State.UNKNOWN:
        machine.act(flight, second, partial(machine.recovery.recover, flight.group.request, machine.reassembler))
    machine.rows_stay()
    machine.teardown()


def check_machine(
    parts: Parts | None = None, *, runs: int, steps: int = 15, number: int = 0, shrink: bool = False
) -> None:
    """Run the machine on ``runs`` sequences of at most ``steps`` steps, the same for the same number.

    Raises what it finds.
    """
    machine = type("Machine", (FinalizerMachine,), {"parts": parts or Parts()})
    run_machine(machine, runs=runs, steps=steps, number=number, shrink=shrink)
