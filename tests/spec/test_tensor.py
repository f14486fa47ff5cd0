"""A tensor has a shape of sizes, and nothing that compares equal to them."""

from __future__ import annotations

import pytest

from rollproof.spec.tensor import Tensor


@pytest.mark.parametrize("shape", [(1.0, 1), (True, 1), (-1, -1), [1, 1], ("1", 1), 1, None], ids=repr)
def test_tensor_shape_is_a_tuple_of_sizes(shape):
    with pytest.raises(ValueError, match="shape: got"):
        Tensor("int8", shape, b"\0")
