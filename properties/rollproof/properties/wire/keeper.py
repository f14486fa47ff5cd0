"""Run a program, and end it with everything that it started, whatever happens to the process that requested it.

A script of its own, run as ``python keeper.py LIFELINE PROGRAM [ARGUMENT]...``. LIFELINE is a file descriptor, the
read end of a pipe whose other end only the asking process holds. It is closed when that process ends the program, and
by the kernel when it dies, by any signal. On Linux this process adopts what the program leaves behind
(``PR_SET_CHILD_SUBREAPER``), so that a descendant in a session of its own is found as well; elsewhere only the
program's process group is. It ends with the program's exit code, or with 128 and the number of the signal.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from threading import Thread

PR_SET_CHILD_SUBREAPER = 36
CANNOT_START = 127
LOOKING = 0.002
"""Seconds between two looks at what is left."""


def children() -> list[int]:
    """Return the processes whose parent is this one; none where there is no ``/proc``."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, IndexError, ValueError):
            # The name, in parentheses, may hold spaces and parentheses itself: state and parent follow the last one.
            if int(status.read_bytes().rpartition(b")")[2].split()[1]) == os.getpid():
                found.append(int(status.parent.name))
    return found


def end_everything(group: int) -> None:
    """Kill the program's group and every child, and what those leave behind, until nothing is left."""
    while True:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
        for child in children():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(child, signal.SIGKILL)
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(LOOKING)
        except ChildProcessError:
            return


def keep(lifeline: int, arguments: list[str]) -> int:
    """Run the program; return the exit code to end with."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        program = subprocess.Popen(arguments, start_new_session=True)
    except OSError as error:
        print(f"{arguments[0]}: {error.strerror}", file=sys.stderr)
        return CANNOT_START
    for inherited in (0, 1):  # the program's output ends with the program
        os.close(inherited)

    def follow() -> None:
        os.read(lifeline, 1)
        end_everything(program.pid)
        os._exit(128 + signal.SIGKILL)

    Thread(target=follow, daemon=True).start()
    code = program.wait()
    end_everything(program.pid)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    os._exit(keep(int(sys.argv[1]), sys.argv[2:]))
