"""The verdict on a recorded group: the spec's own outcome, compared by the catalogue.

The verdict rests on the spec alone. It finalizes the recorded request over the recorded staging, and every invariant
of the areas in use is checked on the two outcomes. Where one is falsified, rows, tags and cleared keys are compared
one by one, so that the verdict names what is wrong and not only that something is.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final

from attrs import evolve, field, frozen

from rollproof.properties.audit import GROUP
from rollproof.properties.audit.reading import PENDING, Recorded
from rollproof.properties.audit.reading_cuts import CutRecord, name_of
from rollproof.properties.audit.stored import LineError
from rollproof.spec.advisories import Advisory, find_advisories
from rollproof.spec.constants import TOPK_COLUMNS
from rollproof.spec.group import finalize_all
from rollproof.spec.judge.area import PORTABLE
from rollproof.spec.judge.catalogue import CATALOGUE, of_area
from rollproof.spec.judge.cuts import PlayCuts
from rollproof.spec.judge.invariant import Invariant, difference
from rollproof.spec.judge.latitude import comparable
from rollproof.spec.judge.oracle import answer
from rollproof.spec.judge.requests import Accepted, Answer, Area, FinalizeGroups, Request
from rollproof.spec.outcomes import GroupOutcome, RolloutOutcome
from rollproof.spec.plane import Clear, PublishedRow, Put
from rollproof.spec.records import ReassemblerConfig
from rollproof.spec.tensor import Tensor

OF_WHOLE_GROUPS: Final = ("GROUP-17", "MEDIA-11")
"""They compare metrics too, which only GROUP-13 checks here: an implementation that counts otherwise, or nothing at
all, would otherwise hide every other difference that only these two see."""

CATCH_ALLS: Final = {of_area(area)[-1] for area in Area if area not in PORTABLE}
NARROW_FIRST: Final = (
    *(item for item in CATALOGUE if item not in CATCH_ALLS),
    *(item for item in CATALOGUE if item in CATCH_ALLS),
)
"""The catalogue with "agrees in every field" of all areas last: a verdict begins with the most specific."""

ADVISORY: Final = "advisory/"

MOST_DIFFERENCES: Final = 20
"""Of one group; a column that is wrong in all rows is wrong in all rows."""


@frozen
class Difference:
    """One place where what was published is not what the contract requires. ``row`` is None for a clear."""

    what: str
    expected: str
    found: str
    row: int | None = None
    sample_id: str | None = None
    position: int | None = None
    """The first differing element of a column."""


@frozen
class Verdict:
    """The audit's result for one line."""

    group_id: str
    partition: str
    broken: tuple[tuple[str, str], ...] = ()
    """The falsified invariants: id and complaint, the narrow ones first."""
    differences: tuple[Difference, ...] = ()
    rows: int = 0
    placeholders: int = 0
    advisories: tuple[Advisory, ...] = ()
    """What looks odd about the group's valid rows, by the spec, whether the implementation reported it or not."""
    uncommitted: Mapping[str, int] = field(factory=dict)
    """Published columns that no digest covers, and in how many valid rows they are: nobody can say who wrote them."""
    prompt: tuple[str, str] | None = None
    """The first valid rollout, and a digest of its prompt, which all rows publish for baselines."""
    end: str = PENDING
    """What became of the group: published, dropped or pending."""
    final: bool = False
    """Whether rows were published that nothing may publish again."""
    kind: str = GROUP
    cut: CutRecord | None = None
    """What later lines about cuts must agree with."""

    @property
    def is_group(self) -> bool:
        """Whether the line is a call of ``finalize_group``."""
        return self.kind == GROUP

    @property
    def held(self) -> bool:
        """Whether no invariant was falsified."""
        return not self.broken


def judge(recorded: Recorded, skip: frozenset[str] = frozenset()) -> Verdict:
    """Judge one line; ``skip`` holds ids of invariants that are not checked.

    Raises ``LineError`` if the spec has no answer to something in the record.
    """
    try:
        return _judge(recorded, skip)
    except Exception as error:
        raise LineError(f"it cannot be judged ({type(error).__name__}: {error})") from error


def _judge(recorded: Recorded, skip: frozenset[str]) -> Verdict:
    broken: list[tuple[str, str]] = []
    for single, found in recorded.rollouts:
        broken += complaints(single, answer(single), found, areas(single.config, Area.ROLLOUT), skip)
    if recorded.cut is not None:
        broken += wrong_in_cuts(recorded.cut, skip)
        kept = evolve(recorded.cut, pairs=())
        return Verdict(recorded.group_id, recorded.partition, tuple(broken), kind=recorded.kind, cut=kept)
    if recorded.groups is None or recorded.outcome is None:
        return Verdict(recorded.group_id, recorded.partition, tuple(broken), kind=recorded.kind)
    request = recorded.groups
    wanted, found = answer(request), without_own_names(recorded.outcome)
    assert isinstance(wanted, Accepted)
    outcome: GroupOutcome = comparable(wanted.value[0])
    broken += complaints(request, wanted, found, areas(request.config, Area.GROUP), skip)
    differences: tuple[Difference, ...] = ()
    if broken and isinstance(found, Accepted):
        differences = tuple(islice(differing(request, outcome, found.value[0]), MOST_DIFFERENCES))
    return Verdict(
        recorded.group_id,
        recorded.partition,
        tuple(broken),
        differences,
        rows=len(outcome.rows or ()),
        placeholders=sum(not rollout.valid for rollout in outcome.rollouts) if outcome.rows else 0,
        advisories=oddities(request, outcome),
        uncommitted=uncommitted(outcome),
        prompt=baseline_prompt(outcome),
        end=recorded.end,
        final=recorded.final,
    )


def wrong_in_cuts(record: CutRecord, skip: frozenset[str]) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with cuts, a restore or the end of a call."""
    yield from ((name, complaint) for name, complaint in record.broken if name not in skip)
    for request, found, skipped in record.pairs:
        for name, complaint in complaints(request, answer(request), found, (Area.CUTS,), skip | skipped):
            several = f"{name_of(request.call)}: " if len(record.calls) > 1 and isinstance(request, PlayCuts) else ""
            yield name, several + complaint


def uncommitted(outcome: GroupOutcome) -> dict[str, int]:
    """Return the sampler columns of a group's valid rows, and how many rows have them (section 12)."""
    pairs = zip(outcome.rollouts, outcome.rows or (), strict=False)
    return dict(
        Counter(name for rollout, row in pairs if rollout.valid for name in TOPK_COLUMNS if name in row.columns)
    )


def baseline_prompt(outcome: GroupOutcome) -> tuple[str, str] | None:
    """Return the first valid rollout of a published group, and a digest of its prompt."""
    valid = next((rollout.rollout_id for rollout in outcome.rollouts if rollout.valid), None)
    if valid is None or not outcome.rows:
        return None
    return valid, hashlib.sha256(outcome.rows[0].columns["prompt_ids_for_adv"].data).hexdigest()


def oddities(request: FinalizeGroups, outcome: GroupOutcome) -> tuple[Advisory, ...]:
    """Return where the advisories of a group are; its rollouts are examined only if its metrics count some."""
    counted = {} if outcome.group is None else outcome.group.metrics
    if not any(counted[name] for name in counted if name.startswith(ADVISORY)):
        return ()
    outcomes: list[RolloutOutcome] = []
    finalize_all(request.config, request.steps[0].request, request.staging.plane(), None, outcomes)
    return tuple(find_advisories(request.config, outcomes, request.steps[0].request.current_weight_version))


def areas(config: ReassemblerConfig, area: Area) -> tuple[Area, ...]:
    """Return ``area``, and those that the run had switched on."""
    routes = (Area.ROUTES,) if config.router_replay_enabled else ()
    boundaries = (Area.BOUNDARY,) if config.router_replay_enabled and config.route_boundary else ()
    sampled = (Area.SAMPLER,) if config.top_logprobs else ()
    return (area, *routes, *((Area.MEDIA,) if config.capture_media else ()), *boundaries, *sampled)


def complaints(
    request: Request, wanted: Answer, found: Answer, asked: tuple[Area, ...], skip: frozenset[str]
) -> Iterator[tuple[str, str]]:
    """Yield the invariants that are falsified, with what is wrong."""
    for item in NARROW_FIRST:
        if item.area in asked and item.covers(request) and item.id not in skip:
            complaint = complain(item, request, wanted, found)
            if complaint is not None:
                yield item.id, complaint


def complain(item: Invariant, request: Request, wanted: Answer, found: Answer) -> str | None:
    """Return an invariant's complaint. A check that raises on an outcome of strange types has found something."""
    try:
        if item.id in OF_WHOLE_GROUPS and isinstance(request, FinalizeGroups):
            found = with_metrics_of(wanted, found)
        return item.check(request, wanted, found)
    except Exception as error:
        return f"the outcome has a type that the contract does not allow ({type(error).__name__}: {error})"


def without_own_names(outcome: Answer) -> Answer:
    """Return an outcome without what the contract leaves open: own metrics and tags, and the order of cleanup."""
    return Accepted(tuple(map(comparable, outcome.value))) if isinstance(outcome, Accepted) else outcome


def with_metrics_of(wanted: Answer, found: Answer) -> Answer:
    """Return what was found, with the contract's metrics."""
    if not isinstance(wanted, Accepted) or not isinstance(found, Accepted):
        return found
    left, right = wanted.value[0], found.value[0]
    if left.group is None or right.group is None:
        return found
    return Accepted((evolve(right, group=evolve(right.group, metrics=left.group.metrics)),))


# ── where they differ ───────────────────────────────────────────────────────────────────────────────────────────────


def differing(request: FinalizeGroups, wanted: GroupOutcome, found: GroupOutcome) -> Iterator[Difference]:
    """Yield rows, columns, tags and cleared keys that differ, in this order."""
    ids = next((effect.sample_ids for effect in wanted.effects if isinstance(effect, Put)), ())
    puts = [effect for effect in found.effects if isinstance(effect, Put)]
    published = [dict(zip(put.sample_ids, put.rows, strict=False)) for put in puts]
    if len(puts) > 1:
        yield Difference("puts", "1", str(len(puts)))
    for put in puts[:1]:
        if put.partition != request.config.partition_id:
            yield Difference("partition", request.config.partition_id, put.partition)
    rows = published[0] if published else {}
    for index, (sample_id, left) in enumerate(zip(ids, wanted.rows or (), strict=True)):
        if sample_id not in rows:
            yield Difference("row", "published", "missing", index, sample_id)
            continue
        yield from in_row(left, rows[sample_id], index, sample_id)
    for sample_id in sorted(rows.keys() - set(ids)):
        yield Difference("row", "none", "published", None, sample_id)
    cleared = [sorted(cleared_keys(outcome)) for outcome in (wanted, found)]
    if cleared[0] != cleared[1]:
        lacking = [key for key in cleared[0] if key not in cleared[1]]
        foreign = [key for key in cleared[1] if key not in cleared[0]]
        yield Difference("cleared keys", shown(lacking or cleared[0]), shown(foreign or cleared[1]))


def cleared_keys(outcome: GroupOutcome) -> list[str]:
    """Return every key of every clear."""
    return [key for effect in outcome.effects if isinstance(effect, Clear) for key in effect.keys]


def in_row(wanted: PublishedRow, found: PublishedRow, index: int, sample_id: str) -> Iterator[Difference]:
    """Yield columns and tags of one row that differ."""
    for name in sorted(wanted.columns.keys() | found.columns.keys()):
        left, right = wanted.columns.get(name), found.columns.get(name)
        if left != right:
            expected, actual, position = first_element(left, right)
            yield Difference(name, expected, actual, index, sample_id, position)
    for name in sorted(wanted.tags.keys() | found.tags.keys()):
        left_tag, right_tag = wanted.tags.get(name, ABSENT), found.tags.get(name, ABSENT)
        if difference(left_tag, right_tag) is not None:
            yield Difference(f"tag {name}", shown(left_tag), shown(right_tag), index, sample_id)


class _Absent:
    def __repr__(self) -> str:
        return "absent"


ABSENT: Final = _Absent()


def first_element(wanted: Tensor | None, found: Tensor | None) -> tuple[str, str, int | None]:
    """Return two unequal columns at their first differing element, or by their types."""
    if wanted is None or found is None:
        return type_of(wanted), type_of(found), None
    if (wanted.dtype, wanted.shape) != (found.dtype, found.shape):
        return type_of(wanted), type_of(found), None
    size = len(wanted.data) // wanted.count
    starts = range(0, len(wanted.data), size)
    start = next(at for at in starts if wanted.data[at : at + size] != found.data[at : at + size])
    pair = [one_element(value, start, size) for value in (wanted, found)]
    return pair[0], pair[1], start // size if wanted.shape else None


def one_element(value: Tensor, start: int, size: int) -> str:
    """Return one element of a tensor, as a number where the spec reads the dtype."""
    try:
        return repr(Tensor(value.dtype, (), value.data[start : start + size]).values()[0])
    except KeyError:
        return value.data[start : start + size].hex()


def type_of(value: Tensor | None) -> str:
    """Return a column in a word."""
    return "absent" if value is None else f"{value.dtype}{list(value.shape)}"


def shown(value: Any) -> str:
    """Return a value, truncated where it is long."""
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}…"
