"""The data planes over which the gate can run a reassembler, by name: the memory's, and a TransferQueue on a local Ray.

Nothing of either is loaded until it is chosen.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

MEMORY: Final = "memory"
TRANSFER_QUEUE: Final = "transfer-queue"
DATA_PLANES: Final = (MEMORY, TRANSFER_QUEUE)


def running(name: str) -> AbstractContextManager[None]:
    """Return a context in which the data plane can be used in this process."""
    if name != TRANSFER_QUEUE:
        return nullcontext()
    from rollproof.impl.dataplane.transfer_queue import local_queue

    return local_queue()


def over(implementation: Any, name: str) -> Any:
    """Return the implementation over a data plane. ``InputError`` where it has no data plane to choose."""
    if name == MEMORY:
        return implementation
    from rollproof.properties.adapters.queue_planes import on_queue

    return on_queue(implementation)
