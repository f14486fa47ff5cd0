"""A peer as an implementation: found by its folder, asked behind a pipe, refused where it is not whole."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from rollproof.properties.adapters.asking import ask
from rollproof.properties.cli import main
from rollproof.properties.errors import InputError
from rollproof.properties.gate.load import load_implementation
from rollproof.properties.peers.manifest import canonical, peer_folder, peer_names
from rollproof.properties.peers.peer import Peer, load_peer
from rollproof.spec.judge.requests import Accepted, Area, Crashed, PrefixDigest, Refused

LIB = Path(__file__).parents[3] / "peers" / "lib"
MANIFEST = """
name = "{name}"
packages = ["fake"]
licence = "Apache-2.0"
source = "https://example.org/fake"
stand_ins = ["a server that answers with the recorded calls"]
policies = ["drift"]

[areas]
digest = "fake.digest"
"""
ADAPTER = f"""
import sys
sys.path.insert(0, {str(LIB)!r})
from serving import Refusal, serve

def prefix_digest(token_ids):
    print("the framework talks")
    if not token_ids:
        raise Refusal("empty: nothing to digest")
    if token_ids[0] == 2**60:
        raise KeyError("lost")
    return f"{{token_ids[0]:064x}}"

serve("fake", {{"digest": {{"prefix_digest": prefix_digest}}}})
"""

MakePeer = Callable[..., Path]


@pytest.fixture
def make_peer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakePeer:
    monkeypatch.chdir(tmp_path)

    def make(name: str = "fake", *, manifest: str = MANIFEST, adapter: str = ADAPTER, ready: bool = True) -> Path:
        folder = tmp_path / "peers" / name
        site = folder / ".venv" / "lib" / "python3.11" / "site-packages" / "fake-1.2.dist-info"
        site.mkdir(parents=True)
        (site / "METADATA").write_text("Metadata-Version: 2.1\nName: fake\nVersion: 1.2\n", encoding="utf-8")
        python = folder / ".venv" / "bin" / "python"
        python.parent.mkdir()
        python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n', encoding="utf-8")
        python.chmod(0o755)
        (folder / "peer.toml").write_text(manifest.format(name=name), encoding="utf-8")
        (folder / "adapter.py").write_text(adapter, encoding="utf-8")
        if ready:
            (folder / ".venv" / ".ready").touch()
        return folder

    return make


DEVIATIONS = """
from rollproof.properties.adapters.protocol import Deviation
from rollproof.spec.judge.requests import Accepted, Area, PrefixDigest

DEVIATIONS = (
    Deviation(
        "first-only",
        Area.DIGEST,
        "2",
        "digests the first id alone",
        lambda request, expected: [Accepted(f"{request.token_ids[0]:064x}")] if request == PrefixDigest((7, 8)) else [],
        (PrefixDigest((7, 8)),),
    ),
)
"""


@pytest.fixture(autouse=True)
def _forget_peers() -> None:
    load_peer.cache_clear()


def test_peer_answers_by_its_adapter_and_carries_its_manifest(make_peer: MakePeer) -> None:
    make_peer()
    peer = load_implementation("peer:fake")
    assert (peer.name, peer.version, peer.areas) == ("peer:fake", "1.2", {Area.DIGEST})
    assert peer.policies == {"drift"}
    accepted, refused, crashed = (ask(peer, PrefixDigest(ids)) for ids in ((31,), (), (2**60,)))
    assert accepted == Accepted(f"{31:064x}")
    assert refused == Refused("empty: nothing to digest")
    assert isinstance(crashed, Crashed)
    assert "KeyError" in crashed.message


def test_check_of_a_peer_shows_what_it_falsifies_and_excuses_its_declared_deviations(make_peer: MakePeer) -> None:
    folder = make_peer()
    (folder / "deviations.py").write_text(DEVIATIONS, encoding="utf-8")
    assert [one.id for one in load_implementation("peer:fake").deviations] == ["first-only"]
    arguments = ["check", "peer:fake", "--area", "digest", "--max-examples", "3", "--jobs", "1"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 1
    assert "deviation first-only" in result.output
    assert "peer:fake: falsified: DIGEST-" in result.output


def test_peer_that_is_not_set_up_names_the_command(make_peer: MakePeer) -> None:
    make_peer(ready=False)
    result = CliRunner().invoke(main, ["check", "peer:fake"])
    assert result.exit_code == 2
    assert result.output == "rollproof: peer:fake: not set up; run make peer NAME=fake\n"


@pytest.mark.parametrize("name", ["other", "../fake", "", "fake/."])
def test_unknown_peer_names_the_known_ones(make_peer: MakePeer, name: str) -> None:
    make_peer()
    with pytest.raises(InputError, match="no such peer; known are fake"):
        load_implementation(f"peer:{name}")


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        (MANIFEST.replace("drift", "drifting"), "policies"),
        (MANIFEST.replace("digest =", "digests ="), "areas"),
        (MANIFEST.replace('packages = ["fake"]', "packages = []"), "packages"),
        (MANIFEST.replace("licence =", "license ="), "license"),
        (MANIFEST.replace("{name}", "another"), "expected that of its folder"),
        ("name = ", "not a manifest"),
    ],
)
def test_manifest_that_is_not_valid_is_refused(make_peer: MakePeer, changed: str, says: str) -> None:
    folder = make_peer(manifest=changed)
    with pytest.raises(InputError, match=says) as raised:
        peer_folder("fake")
    assert str(folder / "peer.toml") in str(raised.value)


def test_peer_whose_package_is_gone_or_whose_adapter_offers_something_else_is_refused(make_peer: MakePeer) -> None:
    make_peer(manifest=MANIFEST.replace('["fake"]', '["fake", "lost"]'))
    with pytest.raises(InputError, match="package lost is not installed"):
        Peer(peer_folder("fake"))
    make_peer("other", adapter=ADAPTER.replace('"digest"', '"routes"'))
    with pytest.raises(InputError, match="its adapter does not offer digest, which its manifest names"):
        Peer(peer_folder("other"))


def test_every_peer_of_the_repository_has_a_valid_manifest_and_pins_what_it_installs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root = Path(__file__).parents[3]
    monkeypatch.chdir(root)
    assert peer_names()
    for name in peer_names():
        folder = peer_folder(name)
        if folder.manifest.in_process is not None:
            continue
        lines = (folder.path / "requirements.txt").read_text(encoding="utf-8").splitlines()
        pins = [line for line in lines if line and not line.startswith("#")] + list(folder.manifest.unpack)
        assert all("==" in pin for pin in pins), name
        pinned = {canonical(pin.partition("==")[0]) for pin in pins}
        assert set(map(canonical, folder.manifest.packages)) <= pinned, name
        assert (folder.path / "adapter.py").is_file(), name
