"""A peer as an implementation: its adapter in its own environment, behind a pipe, with what its manifest declares."""

from __future__ import annotations

import shlex
from functools import cache
from typing import Final

from rollproof.properties.errors import InputError
from rollproof.properties.peers.manifest import PREFIX, PeerFolder, peer_folder
from rollproof.properties.wire.program import Program
from rollproof.spec.judge.requests import Area

PATIENCE: Final = 180.0
"""Seconds for one answer: the first one waits for the imports of a whole framework."""


class Peer(Program):
    """The adapter of one peer. It offers what the adapter says; policies and deviations are those of its folder.

    Raises ``InputError`` where it is not set up, or does not offer the areas of its manifest.
    """

    def __init__(self, folder: PeerFolder) -> None:
        name = f"{PREFIX}{folder.manifest.name}"
        if not folder.is_set_up:
            raise InputError(f"{name}: not set up; run make peer NAME={folder.manifest.name}")
        self.version = folder.version
        super().__init__(shlex.join([str(folder.python), str(folder.path / "adapter.py")]), PATIENCE)
        missing = sorted(set(folder.manifest.areas) - set(self.areas))
        if missing:
            raise InputError(f"{name}: its adapter does not offer {', '.join(missing)}, which its manifest names")
        self.areas = frozenset(Area(area) for area in folder.manifest.areas)  # type: ignore[misc]
        self.name = name  # type: ignore[misc]
        self.deviations = folder.deviations()  # type: ignore[misc]
        self.policies = frozenset(folder.manifest.policies)  # type: ignore[misc]


@cache
def load_peer(name: str) -> Peer:
    """Return the implementation of a peer; one for all that request it. Raises ``InputError``."""
    return Peer(peer_folder(name))
