"""Work that another thread may take over while the caller goes on.

Hashing releases the interpreter's lock, so that a second core can do half of it. There are as many threads as torch
uses within an operator: ``torch.set_num_threads(1)``, or ``OMP_NUM_THREADS=1``, keeps everything on the caller's.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import Generic, TypeVar

import torch

T = TypeVar("T")


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(torch.get_num_threads(), thread_name_prefix="rollproof")


os.register_at_fork(after_in_child=_pool.cache_clear)


class Task(Generic[T]):
    """A call that some thread makes: a free one of the pool, or else the one that asks for its result.

    Where it is not ``shared``, the asker makes it. Tasks may start tasks: nobody waits for one that nobody makes.
    """

    def __init__(self, call: Callable[[], T], *, shared: bool = True) -> None:
        self._call = call
        self._future: Future[T] | None = _pool().submit(call) if shared and torch.get_num_threads() > 1 else None

    def result(self) -> T:
        """What the call returns, or raises."""
        if self._future is None or self._future.cancel():
            return self._call()
        return self._future.result()
