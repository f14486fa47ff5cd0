"""``rollproof check-plane``: hold a data plane to the protocol that finalizers rely on."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import click

from rollproof.properties.adapters.data_planes import MEMORY, TRANSFER_QUEUE, running
from rollproof.properties.errors import InputError


def load_plane(name: str) -> Any:
    """Return the data plane called ``memory``, ``transfer-queue`` or ``module:object``; a class is called.

    Raises ``InputError`` where it cannot be loaded, or is not a data plane.
    """
    from rollproof.impl.arguments import as_plane

    if name == MEMORY:
        from rollproof.impl.dataplane.memory import MemoryDataPlane

        return MemoryDataPlane()
    if name == TRANSFER_QUEUE:
        from rollproof.impl.dataplane.transfer_queue import TransferQueueDataPlane
        from rollproof.properties.adapters.queue_planes import TIMEOUT_S

        return TransferQueueDataPlane(TIMEOUT_S)
    module, colon, attribute = name.partition(":")
    if not colon or not attribute:
        raise InputError(f"{name}: no such data plane; name {MEMORY}, {TRANSFER_QUEUE} or module:object")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
        return as_plane(name, found() if isinstance(found, type) else found)
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{name}: cannot be loaded ({type(error).__name__}: {error})") from error


@click.command("check-plane")
@click.argument("plane")
def command(plane: str) -> None:
    """Hold the data plane PLANE to the protocol of docs/data-planes.md; exit code 1 if it breaks it.

    PLANE is memory, transfer-queue (on a Ray of its own), or module:object. A class is called without arguments.
    """
    from rollproof.properties.adapters.plane_suite import check_plane

    broken = 0
    with running(plane):
        for name, complaint in check_plane(load_plane(plane)):
            broken += complaint is not None
            click.echo(f"{'ok   ' if complaint is None else 'wrong'}  {name.replace('_', ' ')}")
            if complaint is not None:
                click.echo(f"       {complaint}")
    click.echo(f"{plane}: {'keeps the protocol' if not broken else f'breaks the protocol in {broken} places'}")
    sys.exit(1 if broken else 0)
