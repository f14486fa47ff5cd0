"""``rollproof doctor``: say what is installed here, what can be used, and what a run would skip and why."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from importlib.util import find_spec

import click
from attrs import frozen

from rollproof.properties.errors import EXTRAS, InputError
from rollproof.properties.gate.load import known_names, load_implementation
from rollproof.properties.peers.manifest import peer_folder, peer_names

READY = "ready"
MISSING = "missing"
FAILED = "could not be loaded: ImportError: "
"""How the reason of an implementation that says itself what it needs begins."""


@frozen
class Finding:
    """One thing that a user may want: whether it can be used, and what there is or what to do."""

    name: str
    ready: bool
    detail: str


@click.command("doctor")
def command() -> None:
    """Print what is installed, which extras and implementations can be used, and what would be skipped and why."""
    click.echo(f"rollproof {version('rollproof')} · Python {platform.python_version()} · {platform.platform()}")
    sections = {
        "extras": extras(),
        "implementations": implementations(),
        "peers": peers(),
        "programs": programs(),
    }
    for title, findings in sections.items():
        click.echo(f"\n{title}")
        for found in findings:
            click.echo(f"  {found.name:<12} {READY if found.ready else MISSING:<8} {found.detail}")
    skipped = list(skips())
    click.echo("\nskipped" if skipped else "\nnothing is skipped")
    for line in skipped:
        click.echo(f"  {line}")


def is_there(module: str) -> bool:
    """Return whether a module can be found, without importing it."""
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def extras() -> Iterator[Finding]:
    """Yield the extras: their modules' versions, or how to install them."""
    known = packages_distributions()
    for extra, modules in EXTRAS.items():
        absent = [module for module in modules if not is_there(module)]
        if absent:
            yield Finding(extra, False, f"no {', '.join(absent)}: pip install 'rollproof[{extra}]'")
        else:
            names = sorted({name for module in modules for name in known.get(module, ())})
            yield Finding(extra, True, ", ".join(f"{name} {version_of(name)}" for name in names))


def version_of(distribution: str) -> str:
    """Return a distribution's version."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "of an unknown version"


def implementations() -> Iterator[Finding]:
    """Yield the implementations that can be checked by name: their areas, or why they cannot be loaded."""
    for name in known_names():
        try:
            found = load_implementation(name)
        except InputError as error:
            yield Finding(name, False, str(error).removeprefix(f"{name}: ").removeprefix(FAILED))
        else:
            yield Finding(name, True, ", ".join(sorted(found.areas)))


def peers() -> Iterator[Finding]:
    """Yield the peers of a clone: the version in their environment, or how to make one."""
    try:
        names = peer_names()
    except InputError as error:
        yield Finding("none", False, str(error))
        return
    for name in names:
        try:
            folder = peer_folder(name)
            ready = folder.is_set_up
            yield Finding(name, ready, folder.version if ready else f"make peer NAME={name}")
        except (InputError, PackageNotFoundError) as error:
            yield Finding(name, False, str(error))


def programs() -> Iterator[Finding]:
    """Yield programs beside Python that examples and tests use."""
    for name, use in (
        ("node", "examples/node, an implementation in JavaScript"),
        ("docker", "the image of Dockerfile"),
    ):
        path = shutil.which(name)
        yield Finding(name, path is not None, path or f"used by {use}")


def skips() -> Iterator[str]:
    """Yield what would be left out here, each with its reason."""
    for library in ("numpy", "torch"):
        if not is_there(library):
            yield f"rewards held by {library}, in areas rollout and group: {library} is not installed"
    for module, name in (("nemo_gym", "nemo-gym"), ("torch", "torch")):
        if not is_there(module):
            yield f"histories captured by nemo-gym, in areas lineage and rollout: {name} is not installed"
            break
    if not is_there("transfer_queue"):
        yield "check --data-plane transfer-queue, check-plane transfer-queue: TransferQueue is not installed"
    if not is_there("crosshair"):
        yield "prove: CrossHair is not installed"
    if not has_device():
        yield "kernels on a GPU: no CUDA device; tests run them in Triton's interpreter"


def has_device() -> bool:
    """Return whether torch sees a CUDA device."""
    if not is_there("torch"):
        return False
    import torch

    return bool(torch.cuda.is_available())
