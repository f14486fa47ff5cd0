"""Columns as a data plane should not answer them: no elements to read, or more of them than memory."""

from __future__ import annotations

import warnings
from collections.abc import Callable, ItemsView, Mapping
from typing import Any, Final

import torch
from tensordict import NonTensorStack

from rollproof.impl.columns import column_rows
from rollproof.properties.strategies.rollouts.recipes import Form


class AsItIs:
    """A batch that checks nothing: TensorDict itself refuses some forms, other batches need not."""

    def __init__(self, columns: Mapping[str, Any], count: int) -> None:
        self.columns, self.batch_size = dict(columns), torch.Size([count])

    def get(self, name: str, default: Any = None) -> Any:
        """Return a column, or ``default`` where there is none."""
        return self.columns.get(name, default)

    def items(self) -> ItemsView[str, Any]:
        """Return the columns with their names."""
        return self.columns.items()


def with_forms(answer: Any, forms: Mapping[str, Form]) -> Any:
    """Return a batch with these of its columns in odd forms; ``answer`` itself where it has none of them."""
    columns = dict(answer.items())
    count = answer.batch_size[0]
    changed = {name: form for name, form in forms.items() if name in columns}
    if not changed or not count:
        return answer
    for name, form in changed.items():
        row = column_rows(columns[name])[0]
        columns[name] = FORMS[form](torch.zeros((count, *row.shape), dtype=row.dtype))
    return AsItIs(columns, count)


# Each takes the dense column ``[count, …]`` in whose place it goes.


def expanded(column: torch.Tensor) -> torch.Tensor:
    """One element that stands for 2**40 of every row."""
    return torch.zeros((1,) * max(2, column.dim()), dtype=column.dtype).expand(
        column.shape[0], *(1,) * (column.dim() - 2), 2**40
    )


def impossible(column: torch.Tensor) -> torch.Tensor:
    """No elements, in a shape of which the other dimensions exceed any memory."""
    return torch.empty((column.shape[0], 2**62 // column.shape[0], 0), dtype=column.dtype)


def sparse(column: torch.Tensor) -> torch.Tensor:
    """Zeros that are not written out."""
    return torch.zeros((column.shape[0], 3), dtype=column.dtype).to_sparse()


def meta(column: torch.Tensor) -> torch.Tensor:
    """Shape and dtype on a device that holds no data."""
    return column.to("meta")


def quantized(column: torch.Tensor) -> torch.Tensor:
    """Bytes that mean nothing without a scale."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(torch.zeros(column.shape[0], 3), 0.1, 0, torch.quint8)


def nested_rows(column: torch.Tensor) -> Any:
    """Every row a nested tensor itself."""
    inner = torch.nested.nested_tensor([torch.zeros(2, dtype=column.dtype)], layout=torch.jagged)
    return NonTensorStack(*[inner] * column.shape[0])


def text_rows(column: torch.Tensor) -> Any:
    """Every row a string."""
    return NonTensorStack(*["x"] * column.shape[0])


def scalar(_: torch.Tensor) -> torch.Tensor:
    """One number for the whole batch."""
    return torch.tensor(3)


FORMS: Final[Mapping[Form, Callable[[torch.Tensor], Any]]] = {
    Form.EXPANDED: expanded,
    Form.IMPOSSIBLE: impossible,
    Form.SPARSE: sparse,
    Form.META: meta,
    Form.QUANTIZED: quantized,
    Form.NESTED_ROWS: nested_rows,
    Form.TEXT_ROWS: text_rows,
    Form.SCALAR: scalar,
}
"""How each form is made."""
