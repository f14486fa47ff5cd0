"""What an installation of rollproof takes, how soon it gives a verdict, and whether its commands work.

Run by the Python of an environment that has rollproof and nothing else; the sessions of ``noxfile.py`` make such
environments:  python tools/footprint.py [EXTRA] [--install-seconds SECONDS]

It tries the commands that EXTRA adds, or those that need none, and prints a row of the table in docs/install.md. It
exits with 1 where a command does not end as it should.
"""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

ON_RAY = """
import ray
from rollproof.properties.cli import main

ray.init(address="local", num_cpus=8, include_dashboard=False, log_to_driver=False)
main(["fuzz", "impl", "--area", "terminal", "--examples", "20", "--ray", "auto"])
"""

BARE = {
    "check spec --area terminal --profile quick": 0,
    "check spec --profile quick --report report": 0,
    'check "subprocess:rollproof oracle" --area terminal --profile quick': 0,
    "check mutant:unstamped-roots-first --area terminal --profile quick": 1,
    "replay .rollproof/replays/mutant-unstamped-roots-first-TERMINAL-1.json": 1,
    "init receipt": 0,
    "check my_adapter:Mine --profile quick": 1,
    "oracle --schema": 0,
    "vectors export exported --area terminal": 0,
    f"vectors verify {shlex.quote(str(ROOT / 'vectors'))} spec": 0,
    "rules": 0,
    "rules --evidence": 0,
    f"audit {shlex.quote(str(ROOT / 'tools' / 'recorded.jsonl'))}": 0,
    "audit-sessions sessions.jsonl": 0,
    "mutants clears-listed-keys": 0,
    "fuzz spec --area terminal --examples 20": 0,
    "doctor": 0,
}
"""What works without an extra: the arguments of ``rollproof``, and its exit code. The first is the first verdict."""

LACKING = {"check impl": "torch", "check-plane memory": "torch", "mutants --right": "torch", "prove values": "prove"}
"""What does not, and the extra that the one line of an answer must name."""

WITH_TORCH = {
    "check impl --area terminal --profile quick": 0,
    "check impl --profile quick": 0,
    "check-plane memory": 0,
}
OF_EXTRA = {
    "torch": WITH_TORCH,
    "fast": WITH_TORCH,
    "cuda": WITH_TORCH,
    "prove": {"prove terminal": 0},
    "ray": WITH_TORCH,
    "tq": WITH_TORCH | {"check-plane transfer-queue": 0},
    "all": WITH_TORCH | {"prove terminal": 0, "check-plane transfer-queue": 0},
}
"""The same for each extra."""

SESSION = (
    '{"calls": [{"prompt_ids": [3], "generated_ids": [4], "log_probs": [-0.5]}],'
    ' "rows": [{"ids": [3, 4], "mask": [0, 1], "log_probs": [0, -0.5]}]}\n'
)


def main() -> None:
    """Try the commands, and print the row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("extra", nargs="?", default="", choices=["", *OF_EXTRA])
    parser.add_argument("--install-seconds", type=float, default=0.0, help="what the installation took")
    given = parser.parse_args()
    load = os.getloadavg()[0]
    wanted = OF_EXTRA.get(given.extra, BARE)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "sessions.jsonl").write_text(SESSION, encoding="utf-8")
        seconds = [tried([program(), *shlex.split(command)], code, folder) for command, code in wanted.items()]
        if not given.extra:
            for command, extra in LACKING.items():
                tried([program(), *shlex.split(command)], 2, folder, f"pip install 'rollproof[{extra}]'")
        if given.extra in ("ray", "all"):
            tried([sys.executable, "-c", ON_RAY], 0, folder)
    name = f"rollproof[{given.extra}]" if given.extra else "rollproof"
    print(
        f"| `{name}` | {platform.python_version()} | {size() / 2**20:,.0f} MiB | {given.install_seconds:.0f} s |"
        f" {seconds[0]:.1f} s: `{next(iter(wanted))}` | {load:.1f} |"
    )


def program() -> str:
    """Return the command line program of this environment."""
    return str(Path(sysconfig.get_path("scripts")) / "rollproof")


def tried(words: list[str], code: int, folder: str, said: str = "") -> float:
    """Run a command; return its seconds. Exits where it does not end with ``code`` or its last line lacks ``said``."""
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")])
    environment = {**os.environ, "PATH": path}
    started = time.monotonic()
    ended = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    seconds = time.monotonic() - started
    last = (ended.stdout + ended.stderr).strip().rpartition("\n")[2]
    print(f"{seconds:6.1f} s  {shlex.join(words[1:])[:80]}: {ended.returncode}", file=sys.stderr, flush=True)
    if ended.returncode != code or said not in last:
        sys.exit(
            f"{shlex.join(words)}: exit code {ended.returncode}, expected {code} {said}\n{ended.stdout}{ended.stderr}"
        )
    return seconds


def size() -> int:
    """Return the bytes of what is installed here, without what a new environment has already."""
    site = Path(sysconfig.get_path("purelib"))
    known = ("pip", "setuptools", "pkg_resources", "_distutils_hack", "distutils-precedence.pth")
    kept = [entry for entry in site.iterdir() if not entry.name.startswith(known)]
    files = (file for entry in kept for file in ([entry] if entry.is_file() else entry.rglob("*")))
    return sum(file.stat().st_size for file in files if file.is_file())


if __name__ == "__main__":
    main()
