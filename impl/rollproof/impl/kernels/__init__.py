"""Triton kernels: what is done to tensors in an accelerator's memory without bringing them to the host.

Triton is optional, and is imported only when a kernel is. Without an accelerator the kernels run in Triton's
interpreter, where ``TRITON_INTERPRET=1`` is set before they are imported: slow, and good for checking them.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec


@cache
def available() -> bool:
    """Return whether Triton is installed. It is looked up once: rows need this for each of their layouts."""
    return find_spec("triton") is not None
