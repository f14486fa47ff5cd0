"""The requests of the portable areas (section 14). All are relational: the answer is judged by the request alone."""

from __future__ import annotations

from attrs import frozen

from rollproof.spec.judge.area import Request
from rollproof.spec.portable import Call, Captured, MediaRollout, Merged, ScoredRow


@frozen
class OneSession(Request):
    """What merging takes.

    ``max_len`` is the longest row that the trainer takes, None for any. The pad id may be one that is in use.
    """

    calls: tuple[Call, ...]
    reward: float
    max_len: int | None
    pad_id: int
    eos_ids: tuple[int, ...]


@frozen
class MergeCalls(OneSession):
    """Turn the calls of a rollout, in order, into training rows: a ``Merged``."""


@frozen
class MergeTwice(OneSession):
    """Merge the same calls twice: a ``MergedTwice``."""


@frozen
class MergedTwice:
    """Both answers, and the name of the argument that merging changed, if it changed one."""

    first: Merged
    second: Merged
    changed: str | None = None


@frozen
class AlignRoutes(Request):
    """Turn calls into training rows with the routes that each call captured: a tuple of ``RoutedRow``.

    ``captures[i]`` belongs to ``calls[i]``, None where nothing was captured; every vector in a request is another one.
    ``incremental`` says that a call which extends another captured only what that one had not.
    """

    calls: tuple[Call, ...]
    captures: tuple[Captured | None, ...]
    num_experts: int
    incremental: bool


@frozen
class AdvantageRequest(Request):
    """One value per row of each of two batches, one after the other: an ``Advantages``.

    Two, because no formula is prescribed: what holds is how the values of related batches relate.
    """

    first: tuple[ScoredRow, ...]
    second: tuple[ScoredRow, ...]


@frozen
class Advantages:
    """The values of both batches, in the order of their rows."""

    first: tuple[float, ...]
    second: tuple[float, ...]


@frozen
class MediaRows(Request):
    """Turn rollouts, such as those of a group, into rows of at most ``max_len`` tokens: a tuple of ``MediaRow``.

    ``placeholder_id`` stands for ``merge_size`` ** 2 pixel rows wherever it was not sampled. ``max_len`` is None for
    no limit.
    """

    rollouts: tuple[MediaRollout, ...]
    placeholder_id: int
    merge_size: int
    max_len: int | None
