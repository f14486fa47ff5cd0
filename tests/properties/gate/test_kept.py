"""Requests that are kept on disk between runs are those that would be drawn."""

from __future__ import annotations

import pickle

import pytest
from attrs import evolve

from rollproof.properties.adapters.reference import Reference
from rollproof.properties.gate import kept, run
from rollproof.properties.gate.kept import KeptRequests, sources
from rollproof.properties.gate.profiles import PROFILES
from rollproof.properties.gate.run import Check, drawn
from rollproof.properties.gate.streams import request_streams
from rollproof.properties.mutants import load_mutant
from rollproof.spec.judge.requests import Area

STREAM = request_streams(Area.ROLLOUT)[0]


@pytest.fixture
def folder(tmp_path) -> KeptRequests:
    return KeptRequests(tmp_path / "requests")


def check(implementation, folder, area=Area.TERMINAL):
    return Check(implementation, (area,), PROFILES["quick"], 0, 6, shrink=False, kept=folder).run()


def test_a_second_run_draws_nothing_and_finds_the_same(folder, monkeypatch):
    mutant = load_mutant("mask-order-unchecked")
    without, first = check(mutant, None, Area.LINEAGE), check(mutant, folder, Area.LINEAGE)
    monkeypatch.setattr(run, "_kept", None)
    second = check(mutant, folder, Area.LINEAGE)
    for report in (first, second):
        assert not report.held
        assert report.requests == without.requests
        assert report.invariants == without.invariants


@pytest.mark.parametrize("key", [(3, 0, None), (4, 1, None), (4, 0, "required")], ids=["count", "seed", "boundary"])
def test_requests_are_kept_by_all_that_they_depend_on(folder, key):
    folder.write(drawn(STREAM, 4, 0), STREAM, 4, 0, None)
    assert folder.read(STREAM, 4, 0, None) == tuple(drawn(STREAM, 4, 0))
    assert folder.read(STREAM, *key) is None
    assert folder.read(evolve(STREAM, name="another"), 4, 0, None) is None


@pytest.mark.parametrize("content", [b"", b"not a pickle", pickle.dumps(["a list"])])
def test_what_cannot_be_read_is_drawn_again(folder, content):
    check(Reference(), folder)
    files = list(folder.folder.glob("requests-*/*.pickle"))
    for file in files:
        file.write_bytes(content)
    assert check(Reference(), folder).held
    assert all(file.read_bytes() != content for file in files)


def test_requests_of_other_sources_are_removed_and_nothing_else(folder, monkeypatch):
    folder.write([], STREAM, 1, 0, None)
    (folder.folder / "requests-of-mine").mkdir()
    monkeypatch.setattr(kept, "sources", lambda: "0" * 16)
    assert folder.read(STREAM, 1, 0, None) is None
    folder.write([], STREAM, 1, 0, None)
    assert sorted(path.name for path in folder.folder.iterdir()) == [f"requests-{'0' * 16}", "requests-of-mine"]


def test_sources_differ_where_a_file_does(tmp_path, monkeypatch):
    class Package:
        __name__ = "package"
        __path__ = (str(tmp_path),)

    monkeypatch.setattr(kept, "PACKAGES", (Package,))
    found = set()
    for content in ("1", "2"):
        (tmp_path / "module.py").write_text(content, encoding="utf-8")
        found.add(sources.__wrapped__())
    (tmp_path / "module.py").rename(tmp_path / "renamed.py")
    assert len({*found, sources.__wrapped__()}) == 3
