"""Reading columns of a data plane."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from rollproof.impl.columns import read_ragged


def test_read_ragged_refuses_more_than_one_value_per_token() -> None:
    values, offsets = torch.zeros((3, 2), dtype=torch.int64), torch.tensor([0, 1, 3])
    answer = TensorDict({"x": torch.nested.nested_tensor_from_jagged(values, offsets)}, batch_size=[2])
    with pytest.raises(ValueError, match=r"shape \[3, 2\], expected torch.int64, a vector per row"):
        read_ragged(answer, "x", torch.int64)
