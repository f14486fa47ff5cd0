"""What tests of all three roots share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rollproof.impl.dataplane.transfer_queue import TransferQueueDataPlane, local_queue


@pytest.fixture(scope="session")
def queue() -> Iterator[TransferQueueDataPlane]:
    """A client of a queue on a local Ray. Its tests are in the xdist group "ray": one worker starts it, once."""
    with local_queue():
        plane = TransferQueueDataPlane(timeout_s=60.0)
        yield plane
        plane.close()
