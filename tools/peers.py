"""``python -m tools.peers setup NAME``: make the environment of one peer, or of all with ``--all``.

Two frameworks hardly ever agree on the versions that they need, so each has an environment of its own. Packages are
installed one by one without what they ask for, because a framework's requirements are those of a training server;
``requirements.txt`` lists what its row-building functions really import. Everything heavy that frameworks share (torch,
numpy, pydantic, ray, tensordict, omegaconf, hydra) comes from the project's own environment, through a ``.pth`` file
that is read last, so that whatever the peer pins comes first.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Final

import click

from rollproof.properties.errors import InputError
from rollproof.properties.peers.manifest import PeerFolder, canonical, peer_folder, peer_names

PIP: Final = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
ALONE: Final = ("--no-deps", "--ignore-requires-python")


@click.group()
def main() -> None:
    """Set peers up."""


@main.command()
@click.argument("names", nargs=-1)
@click.option("--all", "everyone", is_flag=True, help="Set up every peer.")
@click.option("--newest", is_flag=True, help="Install the newest releases of the packages that are checked.")
def setup(names: tuple[str, ...], everyone: bool, newest: bool) -> None:
    """Make the environments of some peers anew."""
    wanted = peer_names() if everyone else list(names)
    if not wanted:
        raise click.UsageError(f"name a peer: make peer NAME={'|'.join(peer_names())}")
    failed = False
    for name in wanted:
        try:
            set_up(peer_folder(name), newest=newest)
            click.echo(f"peer:{name}: {peer_folder(name).version}")
        except (InputError, subprocess.CalledProcessError) as error:
            click.echo(f"peer:{name}: {error}", err=True)
            failed = True
    sys.exit(2 if failed else 0)


def set_up(folder: PeerFolder, *, newest: bool = False) -> None:
    """Make a peer's environment anew. Raises ``InputError``, and ``CalledProcessError`` where a command fails."""
    manifest, venv = folder.manifest, folder.path / ".venv"
    if manifest.in_process is not None:
        return
    shutil.rmtree(venv, ignore_errors=True)
    subprocess.run([interpreter(manifest.python), "-m", "venv", "--without-pip", str(venv)], check=True)
    (site,) = (venv / "lib").glob("python*/site-packages")
    (site / "aa_serving.pth").write_text(f"{folder.path.parent / 'lib'}\n", encoding="utf-8")
    if manifest.shares_project:
        shared = [path for path in sys.path if path.endswith("site-packages")]
        (site / "zz_project.pth").write_text("\n".join(shared) + "\n", encoding="utf-8")
    requirements = (folder.path / "requirements.txt").read_text(encoding="utf-8").splitlines()
    wanted = [newest_of(line, manifest.packages) if newest else line for line in requirements if is_package(line)]
    install = [*PIP, "--python", str(folder.python), "install", *ALONE]
    subprocess.run([*install, *wanted], check=True)
    for line in manifest.unpack:
        unpack(newest_of(line, manifest.packages) if newest else line, site)
    (venv / ".ready").touch()


def interpreter(version: str | None) -> str:
    """Return the Python of that version. Raises ``InputError`` where there is none."""
    if version is None:
        return sys.executable
    found = shutil.which(f"python{version}")
    if found is None or subprocess.run([found, "--version"], capture_output=True, check=False).returncode:
        raise InputError(f"needs python{version}, which is not installed")
    return found


def is_package(line: str) -> bool:
    """Return whether a line of requirements names a package."""
    return bool(line.strip()) and not line.lstrip().startswith("#")


def newest_of(line: str, packages: tuple[str, ...]) -> str:
    """Return a requirement without its version where it is one of the packages that are checked."""
    name = re.split(r"[^\w.-]", line.strip())[0]
    return name if canonical(name) in map(canonical, packages) else line


def unpack(requirement: str, site: Path) -> None:
    """Unpack a wheel that is for a newer Python than this."""
    with tempfile.TemporaryDirectory() as folder:
        chosen = ["--python-version", "3.12", "--only-binary", ":all:", "--no-deps", "--dest", folder]
        subprocess.run([*PIP, "download", *chosen, requirement], check=True)
        for wheel in Path(folder).glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(site)


if __name__ == "__main__":
    main()
