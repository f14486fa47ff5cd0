"""The smallest inputs that once took an implementation more time or memory than their size allows."""

from __future__ import annotations

import pytest
import torch

from rollproof.impl.bundles import read_bundle
from rollproof.impl.patches import unpack
from rollproof.properties.fuzz.limits import MEMORY_FLOOR, traced_peak

MANY = 2**20
PIXELS = torch.zeros((1, 1, 3), dtype=torch.float32)


@pytest.mark.parametrize("shape", [(MANY, 0), (0, MANY), (MANY, 0, 2)])
@pytest.mark.parametrize("name", ["imgs_sizes", "num_frames"])
def test_no_elements_and_many_rows(name, shape):
    bundle = {"imgs": PIXELS, "imgs_sizes": torch.ones((1, 2), dtype=torch.int64)}
    bundle[name] = torch.empty(shape, dtype=torch.int64)

    def read():
        with pytest.raises(ValueError, match=name):
            read_bundle(bundle)

    assert traced_peak(read)[1] < MEMORY_FLOOR


def test_no_elements_and_many_rows_to_unpack():
    sizes = torch.empty((MANY, 0), dtype=torch.int64)

    def read():
        with pytest.raises(ValueError, match="imgs_sizes"):
            unpack(PIXELS, sizes, 1)

    assert traced_peak(read)[1] < MEMORY_FLOOR
