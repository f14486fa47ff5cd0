"""The folder of one peer: its manifest ``peer.toml``, and the environment beside it.

``peers/NAME`` holds ``adapter.py``, which runs in the peer's own environment and answers requests by the peer's own
functions, ``requirements.txt``, ``peer.toml``, and ``deviations.py`` where the peer has declared deviations. The
folder ``peers`` is that of the working directory, or else that of the checkout that this package is in.
"""

from __future__ import annotations

import re
import runpy
import tomllib
from importlib.metadata import distributions, version
from pathlib import Path
from typing import Final

from attrs import field, frozen
from attrs.validators import deep_iterable, deep_mapping, in_, instance_of, min_len, optional
from cattrs import Converter

from rollproof.properties.adapters.protocol import Deviation
from rollproof.properties.errors import InputError, reading
from rollproof.properties.wire.messages import complaints
from rollproof.spec.judge.requests import Area
from rollproof.spec.portable import Policy

PREFIX: Final = "peer:"
MANIFEST: Final = "peer.toml"
NAME: Final = re.compile("[a-z0-9]+(-[a-z0-9]+)*")
_TEXT: Final = instance_of(str)
_TEXTS: Final = deep_iterable(_TEXT, instance_of(tuple))
_CONVERTER: Final = Converter(forbid_extra_keys=True)


@frozen
class Manifest:
    """What ``peer.toml`` says about one peer."""

    name: str = field(validator=_TEXT)
    packages: tuple[str, ...] = field(validator=[_TEXTS, min_len(1)])
    """The distributions that are checked, the first one first; their versions are those of ``requirements.txt``."""
    licence: str = field(validator=_TEXT)
    source: str = field(validator=_TEXT)
    """Where the source of the peer is published."""
    areas: dict[str, str] = field(validator=deep_mapping(in_([area.value for area in Area]), _TEXT))
    """Each area that the adapter offers, and the functions of the peer that answer it."""
    stand_ins: tuple[str, ...] = field(default=(), validator=_TEXTS)
    """What replaces a server, a tokenizer or a template, one sentence each."""
    notes: tuple[str, ...] = field(default=(), validator=_TEXTS)
    """How it is installed, and why in that way."""
    policies: tuple[str, ...] = field(
        default=(), validator=deep_iterable(in_([policy.value for policy in Policy]), instance_of(tuple))
    )
    """Choices of the peer in the portable areas."""
    python: str | None = field(default=None, validator=optional(_TEXT))
    """The Python of its environment, such as ``3.12``; that of the project where there is none."""
    shares_project: bool = field(default=True, validator=instance_of(bool))
    """Whether it finds torch, numpy, pydantic and so on in the project's environment, after its own packages."""
    unpack: tuple[str, ...] = field(default=(), validator=_TEXTS)
    """Requirements whose wheel is for another Python: they are downloaded and unpacked."""
    in_process: str | None = field(default=None, validator=optional(_TEXT))
    """The registered implementation that runs it in this process, for a peer without an adapter of its own."""


@frozen
class PeerFolder:
    """The folder of one peer and its manifest."""

    path: Path
    manifest: Manifest

    @property
    def python(self) -> Path:
        """The interpreter of the peer's environment."""
        return self.path / ".venv" / "bin" / "python"

    @property
    def is_set_up(self) -> bool:
        """Whether its environment is there, which is marked once everything is installed."""
        return self.manifest.in_process is not None or (self.path / ".venv" / ".ready").is_file()

    @property
    def version(self) -> str:
        """The installed versions of the packages that are checked, the first without its name.

        Raises ``InputError`` where one is not installed.
        """
        found = self._versions()
        missing = [name for name in self.manifest.packages if canonical(name) not in found]
        if missing:
            raise InputError(f"{self.path}: package {missing[0]} is not installed; run make peer NAME={self.path.name}")
        first, *others = self.manifest.packages
        return ", ".join([found[canonical(first)], *(f"{name} {found[canonical(name)]}" for name in others)])

    def _versions(self) -> dict[str, str]:
        if self.manifest.in_process is not None:
            return {canonical(name): version(name) for name in self.manifest.packages}
        sites = [str(site) for site in (self.path / ".venv" / "lib").glob("python*/site-packages")]
        return {canonical(one.metadata["Name"]): one.version for one in distributions(path=sites)}

    def deviations(self) -> tuple[Deviation, ...]:
        """Return the declared deviations: ``DEVIATIONS`` of ``deviations.py``, none without that file."""
        path = self.path / "deviations.py"
        if not path.is_file():
            return ()
        with reading(path, "declared deviations"):
            found: tuple[Deviation, ...] = runpy.run_path(str(path))["DEVIATIONS"]
            return found


def canonical(name: str) -> str:
    """Return the one spelling of a distribution's name."""
    return re.sub(r"[-_.]+", "-", name).lower()


def peers_folder() -> Path:
    """Return the folder that holds the peers. Raises ``InputError`` where there is none."""
    for root in (Path.cwd(), *Path(__file__).parents):
        if any((root / "peers").glob(f"*/{MANIFEST}")):
            return root / "peers"
    raise InputError("no folder peers: run this in a clone of the repository, the wheel has no peers")


def peer_names() -> list[str]:
    """Return the names of all peers, set up or not."""
    return sorted(path.parent.name for path in peers_folder().glob(f"*/{MANIFEST}"))


def peer_folder(name: str) -> PeerFolder:
    """Return the folder of a peer. Raises ``InputError`` where the peer is unknown or its manifest is not valid."""
    path = peers_folder() / name
    if not NAME.fullmatch(name) or not (path / MANIFEST).is_file():
        raise InputError(f"{PREFIX}{name}: no such peer; known are {', '.join(peer_names())}")
    with reading(path / MANIFEST, "a manifest"):
        content = tomllib.loads((path / MANIFEST).read_text(encoding="utf-8"))
        try:
            manifest = _CONVERTER.structure(content, Manifest)
        except Exception as error:
            raise InputError(f"{path / MANIFEST}: {'; '.join(complaints(error))}") from error
        if manifest.name != name:
            raise InputError(f"{path / MANIFEST}: name {manifest.name!r}, expected that of its folder, {name!r}")
        return PeerFolder(path, manifest)
