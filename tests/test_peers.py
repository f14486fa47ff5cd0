"""``make peer``: an environment with what is listed, the project's packages after it, and a mark once it is whole."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from rollproof.properties.errors import InputError
from rollproof.properties.peers.manifest import Manifest, PeerFolder
from tools.peers import interpreter, is_package, main, newest_of, set_up

MANIFEST = Manifest("fake", ("fake",), "Apache-2.0", "https://example.org", {"digest": "fake.digest"})
METADATA = "Metadata-Version: 2.1\nName: fake\nVersion: 1.2\nRequires-Dist: absent>=9\nRequires-Python: >=9\n"


@pytest.fixture
def folder(tmp_path: Path) -> PeerFolder:
    wheel = tmp_path / "fake-1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("fake.py", "import attrs, serving\n")
        archive.writestr("fake-1.2.dist-info/METADATA", METADATA)
        archive.writestr("fake-1.2.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("fake-1.2.dist-info/RECORD", "")
    path = tmp_path / "peers" / "fake"
    (path.parent / "lib").mkdir(parents=True)
    (path.parent / "lib" / "serving.py").touch()
    path.mkdir()
    (path / "requirements.txt").write_text(f"# the peer\nfake @ {wheel.as_uri()}\n", encoding="utf-8")
    return PeerFolder(path, MANIFEST)


def test_environment_has_the_peer_its_helper_and_the_packages_of_the_project(folder: PeerFolder) -> None:
    assert not folder.is_set_up
    with pytest.raises(InputError, match="package fake is not installed"):
        _ = folder.version
    set_up(folder)
    assert folder.is_set_up
    assert folder.version == "1.2"
    subprocess.run([str(folder.python), "-c", "import fake"], check=True)


def test_environment_that_could_not_be_made_is_not_marked(folder: PeerFolder) -> None:
    (folder.path / "requirements.txt").write_text(
        "fake @ file:///nowhere/fake-1.2-py3-none-any.whl\n", encoding="utf-8"
    )
    with pytest.raises(subprocess.CalledProcessError):
        set_up(folder)
    assert not folder.is_set_up


def test_newest_releases_are_those_of_the_peer_alone() -> None:
    assert newest_of("tinker_cookbook==0.6.1", ("tinker-cookbook",)) == "tinker_cookbook"
    assert newest_of("torch==2.0", ("tinker-cookbook",)) == "torch==2.0"
    assert [is_package(line) for line in ("", "# why", "verl==0.9.1")] == [False, False, True]


def test_interpreter_is_the_one_of_the_project_or_an_installed_one() -> None:
    assert interpreter(None) == sys.executable
    with pytest.raises(InputError, match=r"needs python3\.99, which is not installed"):
        interpreter("3.99")


def test_setting_up_an_unknown_peer_names_the_known_ones() -> None:
    result = CliRunner().invoke(main, ["setup", "nobody"])
    assert result.exit_code == 2
    assert "peer:nobody: no such peer; known are " in result.output
    assert CliRunner().invoke(main, ["setup"]).exit_code == 2
