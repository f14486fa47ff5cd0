"""Routes and pixels of a group's rollouts, written where they will be published, back to back.

Otherwise each rollout has memory of its own, of which the published column is one more copy: tens of megabytes, in
pages that the system must clear first. Pixels of which the data plane gave the memory away are published from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import torch
from attrs import define, frozen

from rollproof.impl.columns import Column, HeldRows, Jagged
from rollproof.impl.host_memory import concatenated, copied, empty
from rollproof.impl.outcomes import Dims, RolloutOutcome
from rollproof.spec.constants import PIXEL_VALUES, TOKEN_COLUMNS

_SPARE: Final = 1.25
"""How many times as much memory as it needs a published column may hold on to."""


@define(eq=False)
class InPlace:
    """Memory in which the rows of one column are back to back; it is taken when the first is written."""

    limit: int
    """Elements of the column that there can be, each of any shape."""
    _memory: torch.Tensor | None = None

    def part(self, start: int, count: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor | None:
        """Return the memory of elements ``[count, *shape]``; None where they do not fit in behind the others.

        None, too, where the system refuses memory for all that was staged: what is published may be far less.
        """
        if self._memory is None:
            with suppress(MemoryError):
                self._memory = empty((self.limit, *shape), dtype)
        memory = self._memory
        if (
            memory is None
            or (memory.dtype, memory.shape[1:]) != (dtype, torch.Size(shape))
            or start + count > self.limit
        ):
            return None
        return memory[start : start + count]

    def column(self, count: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor | None:
        """Return the first ``count`` elements, as they were written; None where none of them was."""
        return None if self._memory is None else self.part(0, count, shape, dtype)


@frozen(eq=False)
class Place:
    """Where one rollout writes: behind the rows of those before it."""

    routes: InPlace
    pixels: InPlace
    tokens: int
    patches: int

    def for_routes(self, tokens: int, dims: Dims) -> torch.Tensor | None:
        """Return memory for the routes of a row, int16 ``[tokens, L, K]``."""
        return self.routes.part(self.tokens, tokens, dims, torch.int16)

    def for_pixels(self, patches: int, features: int, dtype: torch.dtype) -> torch.Tensor | None:
        """Return memory for the pixels of a row, ``[patches, features]``."""
        return self.pixels.part(self.patches, patches, (features,), dtype)


@frozen(eq=False)
class GroupMemory:
    """The memory of what a group publishes, as far as it can be said before it is verified."""

    routes: InPlace
    pixels: InPlace

    @classmethod
    def of(cls, rows: HeldRows, count: int) -> GroupMemory:
        """Return memory for ``count`` rollouts, of which these rows are all that is staged."""
        tokens, pixels = (rows.columns.get(name) for name in (next(iter(TOKEN_COLUMNS)), "media_imgs"))
        # The row of a rejected rollout is one token.
        return cls(InPlace(_elements(tokens) + count), InPlace(_elements(pixels)))

    def after(self, earlier: Sequence[RolloutOutcome]) -> Place:
        """Return where the rollout behind these ones writes."""
        rows = [one.rollout for one in earlier]
        tokens = sum(len(row.columns) if row.valid else 1 for row in rows)
        patches = sum(len(row.media[PIXEL_VALUES].as_tensor()) for row in rows if row.media)
        return Place(self.routes, self.pixels, tokens, patches)


def _elements(column: Column | None) -> int:
    """Return how many elements a staged column has, over all of its rows."""
    if column is None:
        return 0
    if isinstance(column, Jagged):
        return int(column.offsets[-1] - column.offsets[0])
    return sum(len(row) if row.dim() else 1 for row in column)


def is_at(part: torch.Tensor, place: torch.Tensor) -> bool:
    """Return whether a tensor is the memory of another one of its shape."""
    return part.device == place.device and part.data_ptr() == place.data_ptr()


def owned(values: torch.Tensor) -> torch.Tensor:
    """Return values in memory that is not much larger: whatever stores or sends them may take all of it."""
    return values if values.untyped_storage().nbytes() <= _SPARE * values.nbytes else copied(values)


def joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return flat tensors one after the other: a view where that is how they are in memory, else a copy."""
    whole = back_to_back(parts)
    return concatenated(parts) if whole is None else owned(whole)


def back_to_back(parts: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """Return the memory of tensors as a flat one, where each begins in it where the one before it ends; else None."""
    first, end = parts[0], parts[0].data_ptr()
    for part in parts:
        same = part.dtype is first.dtype and part.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        if not same or not part.is_contiguous() or part.data_ptr() != end:
            return None
        end += part.nbytes
    return first.as_strided((sum(part.numel() for part in parts),), (1,))
