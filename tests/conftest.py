"""What tests of all three roots share."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from rollproof.impl.dataplane.transfer_queue import TransferQueueDataPlane, local_queue

# A run in the background may have been started with these ignored, and the processes that tests interrupt inherit it.
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def queue() -> Iterator[TransferQueueDataPlane]:
    """Yield a client of a queue on a local Ray. Its tests are in the xdist group "ray": one worker starts it, once."""
    with local_queue():
        plane = TransferQueueDataPlane(timeout_s=60.0)
        yield plane
        plane.close()


@pytest.fixture
def hashing_otherwise() -> dict[str, str]:
    """Return this process's environment, for another one that hashes strings in another way."""
    return {**os.environ, "PYTHONHASHSEED": "1" if os.environ.get("PYTHONHASHSEED") == "2" else "2"}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Run what is marked ``untraced`` without coverage.

    pytest-cov 7.1 measures twice in a worker of xdist, and its ``no_cover`` stops only the one on top.
    """
    if item.get_closest_marker("untraced") is None:
        return (yield)
    here, elsewhere = sys.gettrace(), threading.gettrace()
    sys.settrace(None)
    threading.settrace(None)  # type: ignore[arg-type]
    try:
        return (yield)
    finally:
        threading.settrace(elsewhere)  # type: ignore[arg-type]
        sys.settrace(here)


DOCS_PAGE = re.compile(r"tests/test_docs\.py::test_\w+\[((?:\w+/)*[\w-]+\.md)[:\]]")
"""The blocks of a page run in one folder and one process, so all of them belong to one worker."""


@cache
def group_of_file(path: str) -> str | None:
    """Return the xdist group that a file's ``pytestmark`` names."""
    found = re.search(r'^pytestmark = pytest\.mark\.xdist_group\("(\w+)"\)', Path(path).read_text(), re.MULTILINE)
    return None if found is None else found[1]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """``--dist loadgroup``, by the groups of files: xdist 3.8 marks items in a way that pytest 9.2 no longer reads."""
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            if page := DOCS_PAGE.match(nodeid):
                return page[1]
            if nodeid.rfind("@") > nodeid.rfind("]"):
                return nodeid.rpartition("@")[2]
            return group_of_file(str(config.rootpath / nodeid.partition("::")[0])) or nodeid

    return ByGroup(config, log)
