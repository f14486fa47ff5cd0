"""A check of a data plane against the protocol of docs/data-planes.md: how it reports absent rows and columns.

Each check stages rows of its own in a partition of its own and returns what is wrong, or None. A plane is given tensors
of the dtypes that staged and published rows have, and must give back the same bits.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias

import torch
from attrs import frozen
from tensordict import TensorDict

from rollproof.impl.columns import column_rows
from rollproof.impl.dataplane import MissingRows, has_new_answers
from rollproof.properties.errors import message_of

Check: TypeAlias = Callable[["Desk"], str | None]

KEYS: Final = ("r/a", "r/b", "r/c")

ROWS: Final[tuple[dict[str, torch.Tensor], ...]] = tuple(
    {
        "ids": torch.arange(index + 1) + 2**40,
        "logprobs": torch.tensor([-0.0, -0.25, 1e-45][: index + 1]),
        "text": torch.arange(index + 2, dtype=torch.uint8),
        "routes": torch.arange(4 * index + 4, dtype=torch.int16).reshape(index + 1, 2, 2) - 1,
        "length": torch.tensor(index + 1),
        "flag": torch.tensor(index % 2 == 0),
    }
    for index in range(3)
)
"""Three rows whose vectors differ in length; ``routes`` are three-dimensional, ``length`` and ``flag`` scalars."""


@frozen(eq=False)
class Desk:
    """A plane, and a partition that only this check uses."""

    plane: Any
    partition: str

    def put(self, key: str, row: dict[str, torch.Tensor], partition: str | None = None) -> None:
        """Write one row, as a worker stages it."""
        fields = TensorDict({name: value[None] for name, value in row.items()}, batch_size=[1])
        self.plane.put_samples(
            sample_ids=[key], partition_id=partition or self.partition, fields=fields, tags=[{"key": key}]
        )

    def fill(self) -> None:
        """Write the three rows."""
        for key, row in zip(KEYS, ROWS, strict=True):
            self.put(key, row)

    def get(self, keys: list[str], columns: list[str], partition: str | None = None) -> list[dict[str, Any]]:
        """Read rows: per row its columns, as (dtype, shape, bytes)."""
        answer = self.plane.get_samples(
            sample_ids=keys, partition_id=partition or self.partition, select_fields=columns
        )
        rows: list[dict[str, Any]] = [{} for _ in range(answer.batch_size[0])]
        for name in columns:
            column = answer.get(name, None)
            for row, value in zip(rows, [] if column is None else column_rows(column), strict=False):
                row[name] = bits(value)
        return rows

    def clear(self, keys: list[str]) -> None:
        """Remove rows."""
        self.plane.clear_samples(sample_ids=keys, partition_id=self.partition)

    def there(self, keys: list[str]) -> int:
        """Return how many of the rows are there; ``ProtocolError`` if the plane breaks the protocol in saying so."""
        found = 0
        for key in keys:
            try:
                found += len(self.get([key], ["length"]))
            except MissingRows:
                continue
            except Exception as error:
                raise ProtocolError(f"{said(error)} for a row that is not there") from error
        return found


class ProtocolError(Exception):
    """A plane reported something in a way that the protocol does not have."""


def said(error: Exception) -> str:
    """Name an exception that should have been ``MissingRows``."""
    return f"it raised {type(error).__name__}({message_of(error)!r:.60}), expected MissingRows or fewer rows,"


def bits(value: torch.Tensor) -> tuple[str, tuple[int, ...], bytes]:
    """Return what a tensor is: a scalar may come as ``[1]`` or ``[1, 1]``."""
    shape = () if value.numel() == 1 and set(value.shape) <= {1} else tuple(value.shape)
    raw = value.detach().cpu().contiguous().reshape(-1)
    return str(value.dtype), shape, raw.view(torch.uint8).numpy().tobytes() if raw.numel() else b""


def expected(index: int, columns: list[str]) -> dict[str, Any]:
    """Return a row as it was put."""
    return {name: bits(ROWS[index][name]) for name in columns}


# ── checks ──────────────────────────────────────────────────────────────────────────────────────────────────────────

EVERY: Final = list(ROWS[0])


def rows_in_order(desk: Desk) -> str | None:
    """Check that rows come back with the bits that were put, in the order in which they are requested."""
    desk.fill()
    for order in ([0, 1, 2], [2, 0, 1], [1], [2, 1]):
        found = desk.get([KEYS[index] for index in order], EVERY)
        if found != [expected(index, EVERY) for index in order]:
            return f"rows {[KEYS[index] for index in order]} came back changed"
    return None


def rows_of_one_length(desk: Desk) -> str | None:
    """Check that rows whose vectors have one length come back as such, too."""
    for key in KEYS:
        desk.put(key, ROWS[1])
    found = desk.get(list(KEYS), EVERY)
    return None if found == [expected(1, EVERY)] * 3 else "rows of one length came back changed"


def partial_miss(desk: Desk) -> str | None:
    """Check that if some rows are absent, the answer holds the others, or the plane raises ``MissingRows``."""
    desk.fill()
    try:
        found = desk.get([KEYS[2], "r/absent", KEYS[0]], ["ids", "length"])
    except MissingRows:
        return None
    except Exception as error:
        return f"{said(error)} for one absent row of three"
    if found != [expected(2, ["ids", "length"]), expected(0, ["ids", "length"])]:
        return f"{len(found)} rows that are not the two that are there"
    return None


def total_miss(desk: Desk) -> str | None:
    """Check that if all rows are absent, the answer is empty, or the plane raises ``MissingRows``."""
    for keys in (["r/absent"], ["r/absent", "r/b"]):
        try:
            found = desk.get(keys, ["ids"])
        except MissingRows:
            continue
        except Exception as error:
            return f"{said(error)} where no row is there"
        if found:
            return f"{len(found)} rows where none is there"
    return None


def absent_column(desk: Desk) -> str | None:
    """Check that a column that no row has, or that some row lacks, is left out of the answer, and no other."""
    desk.fill()
    desk.put("r/d", {name: value for name, value in ROWS[0].items() if name != "routes"})
    for keys, absent in ((list(KEYS), "unknown"), ([KEYS[0], "r/d"], "routes"), (["r/d"], "routes")):
        try:
            found = desk.get(keys, ["ids", absent])
        except Exception as error:
            raised = f"{type(error).__name__}({message_of(error)!r:.60})"
            return f"it raised {raised} for an absent column, expected no such column"
        if len(found) != len(keys):
            return f"{len(found)} rows of {len(keys)} where a column is absent"
        if any(absent in row for row in found):
            return f"it made up the column {absent!r}"
        if any("ids" not in row for row in found):
            return "it left out a column that all rows have"
    return None


def put_is_durable(desk: Desk) -> str | None:
    """Check that once a put returns, all of its rows can be read, and share no memory with what was passed in."""
    columns = {
        "ids": torch.nested.nested_tensor([row["ids"] for row in ROWS], layout=torch.jagged),
        "length": torch.stack([row["length"] for row in ROWS]),
    }
    fields = TensorDict(columns, batch_size=[3])
    desk.plane.put_samples(sample_ids=list(KEYS), partition_id=desk.partition, fields=fields, tags=[{}] * 3)
    try:
        found = desk.get(list(KEYS), ["ids", "length"])
    except Exception as error:
        return f"rows that were put cannot be read: {type(error).__name__}"
    fields["length"].fill_(9)
    fields["ids"].values().fill_(9)
    wanted = [expected(index, ["ids", "length"]) for index in range(3)]
    if found != wanted:
        return "rows that were put came back changed"
    return None if desk.get(list(KEYS), ["ids", "length"]) == wanted else "stored rows share memory with the caller's"


def put_again(desk: Desk) -> str | None:
    """Check that a row that is put again has the new columns."""
    desk.fill()
    desk.put(KEYS[0], ROWS[2])
    if desk.get([KEYS[0]], EVERY) != [expected(2, EVERY)]:
        return "a row that was put again still has its old columns"
    return None if desk.get([KEYS[1]], EVERY) == [expected(1, EVERY)] else "another row changed with it"


def clear_removes(desk: Desk) -> str | None:
    """Check that a clear removes its rows and no others, and that ids that are not there are ignored."""
    desk.fill()
    try:
        desk.clear([KEYS[0], "r/absent", KEYS[2]])
        desk.clear([KEYS[0]])
    except Exception as error:
        return f"clearing ids that are not there raised {type(error).__name__}"
    if desk.there([KEYS[0], KEYS[2]]):
        return "cleared rows can still be read"
    return None if desk.get([KEYS[1]], EVERY) == [expected(1, EVERY)] else "a row that was not cleared is gone"


def partitions_apart(desk: Desk) -> str | None:
    """Check that the same id in two partitions is two rows."""
    desk.fill()
    other = f"{desk.partition}/other"
    desk.put(KEYS[0], ROWS[2], other)
    try:
        if desk.get([KEYS[0]], EVERY) != [expected(0, EVERY)]:
            return "a put into another partition changed the row"
        desk.clear([KEYS[0]])
        found = desk.get([KEYS[0]], EVERY, other)
        return None if found == [expected(2, EVERY)] else "a clear took the row of another partition"
    finally:
        desk.plane.clear_samples(sample_ids=[KEYS[0]], partition_id=other)


def answers_are_new(desk: Desk) -> str | None:
    """Check that an answer that is said to be new stays what it was, and that what is stored is not written through it.

    Says nothing about a plane whose ``get_samples`` is not marked ``new_answers``.
    """
    if not has_new_answers(desk.plane):
        return None
    desk.fill()
    answer = desk.plane.get_samples(sample_ids=list(KEYS), partition_id=desk.partition, select_fields=EVERY)
    columns = [column_rows(answer.get(name)) for name in EVERY]
    before = [list(map(bits, rows)) for rows in columns]
    desk.get(list(reversed(KEYS)), EVERY)
    desk.put(KEYS[0], ROWS[2])
    desk.clear(list(KEYS))
    if [list(map(bits, rows)) for rows in columns] != before:
        return "an answer that is said to be new changed with what the plane did next"
    desk.fill()
    again = desk.plane.get_samples(sample_ids=list(KEYS), partition_id=desk.partition, select_fields=EVERY)
    for name in EVERY:
        for row in column_rows(again.get(name)):
            row.fill_(1)
    kept = desk.get(list(KEYS), EVERY) == [expected(index, EVERY) for index in range(3)]
    return None if kept else "an answer that is said to be new shares memory with stored rows"


CHECKS: Final[tuple[Check, ...]] = (
    rows_in_order,
    rows_of_one_length,
    partial_miss,
    total_miss,
    absent_column,
    put_is_durable,
    put_again,
    clear_removes,
    partitions_apart,
    answers_are_new,
)


def check_plane(plane: Any) -> Iterator[tuple[str, str | None]]:
    """Yield the name of each check, and what the plane does wrong in it, or None; clear a check's rows after it."""
    for check in CHECKS:
        desk = Desk(plane, f"check-plane/{uuid.uuid4().hex}/{check.__name__}")
        try:
            complaint = check(desk)
        except ProtocolError as error:
            complaint = str(error)
        except Exception as error:
            complaint = f"an operation that must work raised {type(error).__name__}: {message_of(error)}"
        yield check.__name__, complaint
        try:
            desk.clear([*KEYS, "r/d"])
        except Exception as error:
            yield f"{check.__name__}: clearing up", f"raised {type(error).__name__}: {message_of(error)}"
