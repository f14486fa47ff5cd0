"""What a user installs, tried in clean environments: the wheel, without an extra and with each of them.

    nox --session bare            # every Python that pyproject.toml names and that is here, and the newest dependencies
    nox --session lowest          # the lowest dependencies that pyproject.toml allows
    nox --session "extras-3.13(torch)"

Each session tries every command that its installation has, and ends with a row of the table in docs/install.md. What
follows `--` goes to pip: `-- --constraint constraints.txt` for the versions that `make setup` installs.
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import nox

PROJECT = nox.project.load_toml("pyproject.toml")
PYTHONS = nox.project.python_versions(PROJECT)
DEPENDENCIES = PROJECT["project"]["dependencies"]
EXTRAS = PROJECT["project"]["optional-dependencies"]

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "venv"
nox.options.sessions = ["bare"]


@nox.session(python=PYTHONS)
def bare(session: nox.Session) -> None:
    """Try the plain installation."""
    install_and_try(session, "")


@nox.session(python=PYTHONS)
@nox.parametrize("extra", [nox.param(name, id=name) for name in ("torch", "fast", "prove", "cuda", "ray", "tq", "all")])
def extras(session: nox.Session, extra: str) -> None:
    """Try an installation with one extra."""
    install_and_try(session, extra)


@nox.session(python=PYTHONS)
@nox.parametrize("extra", [nox.param("", id="plain"), nox.param("torch", id="torch")])
def lowest(session: nox.Session, extra: str) -> None:
    """Try the lowest dependencies. Those of torch have no wheels for the newer Pythons."""
    if extra and session.python != PYTHONS[0]:
        session.skip(f"[{extra}] has no wheels of its lowest versions for Python {session.python}")
    given = {re.split(r"[^\w.-]", word)[0] for word in session.posargs}
    found = (re.fullmatch(r"([\w.-]+)>=([\d.]+)", line) for line in DEPENDENCIES + EXTRAS.get(extra, []))
    install_and_try(session, extra, *(f"{match[1]}=={match[2]}" for match in found if match and match[1] not in given))


def install_and_try(session: nox.Session, extra: str, *pinned: str) -> None:
    """Build the wheel, install it into the session's environment, and try its commands."""
    with TemporaryDirectory() as folder:
        session.run("python", "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ".")
        (wheel,) = Path(folder).glob("*.whl")
        started = time.monotonic()
        session.install(f"{wheel}[{extra}]" if extra else str(wheel), *pinned, *session.posargs)
        seconds = time.monotonic() - started
    session.run("python", "tools/footprint.py", *filter(None, [extra]), "--install-seconds", f"{seconds:.1f}")
