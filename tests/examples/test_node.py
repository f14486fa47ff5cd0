"""The example in Node.js: it passes the vectors and the gate, and with one line changed it fails both."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from rollproof.properties.cli import main
from rollproof.properties.gate.profiles import PROFILES
from rollproof.properties.gate.run import Check
from rollproof.properties.vectors.vector_files import read_file
from rollproof.properties.vectors.verify import verify
from rollproof.properties.wire.program import Program
from rollproof.spec.judge.requests import Area

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "node"
VECTORS = ROOT / "vectors"
EXTRAS = {
    "routed_experts": "nrlre1:int16:2x1x2:KAApAAAAAQA=",
    "routed_experts_boundary": "nrlre1:int16:1x1x2:HgAfAA==",
    "routed_experts_boundary_index": 2,
}
"""Of the example in section 10."""


@pytest.fixture(autouse=True)
def node():
    """Return what the example runs on. Without it nothing here can be checked, and the test must not pass."""
    assert shutil.which("node"), "node is not on PATH: install Node.js 20 or newer"


def load(folder):
    return Program(f"node {shlex.quote(str(folder / 'implementation.mjs'))}")


def failed_vectors(program, area):
    return verify(read_file(VECTORS / f"{area}.json"), program).failures


def test_the_example_passes_the_vectors():
    program = load(EXAMPLE)
    assert program.areas == {Area.DIGEST, Area.LINEAGE, Area.ROUTES, Area.BOUNDARY}
    results = {area: verify(read_file(VECTORS / f"{area}.json"), program) for area in program.areas}
    assert [(failure.vector.number, failure.complaint) for one in results.values() for failure in one.failures] == []
    assert [results[area].not_offered for area in (Area.DIGEST, Area.LINEAGE)] == [0, 0]
    assert results[Area.ROUTES].passed > 12
    assert results[Area.BOUNDARY].passed > 5


def test_extras_with_a_sidecar_have_the_contracts_digest():
    assert load(EXAMPLE).extras_digest(EXTRAS) == "0ec749bfdb221e8a14c61876f329655a9463dd7fdc7c5068309e606601f45514"


def test_the_example_passes_the_gate():
    program = load(EXAMPLE)
    report = Check(
        program, tuple(area for area in Area if area in program.areas), PROFILES["quick"], seed=2, max_examples=12
    ).run()
    assert report.falsified == []
    assert all(tally.right == tally.driven for tally in report.codes.values())
    assert report.not_exercised == []
    assert report.requests > 250


def test_the_commands_of_its_page_pass(monkeypatch):
    monkeypatch.chdir(ROOT)
    page = (EXAMPLE / "README.md").read_text(encoding="utf-8")
    commands = [shlex.split(line)[1:] for line in page.splitlines() if line.startswith("rollproof ")]
    assert [command[0] for command in commands] == ["vectors", "check"]
    for command in commands:
        quick = ["--max-examples", "2", "--jobs", "1"] if command[0] == "check" else []
        result = CliRunner().invoke(main, [*command, *quick])
        assert result.exit_code == 0, result.output


def deep(*case):
    return pytest.param(*case, marks=pytest.mark.deep)


@pytest.mark.parametrize(
    ("area", "file", "line", "instead"),
    [
        ("digest", "digest.mjs", "bytes.writeBigUInt64BE(value);", "bytes.writeBigUInt64LE(value);"),
        ("digest", "digest.mjs", "Object.is(value, 0) || value === 1", "value === 0 || value === 1"),
        deep("digest", "wire.mjs", "Number.isInteger(json) ? BigInt(json) : json;", "json;"),
        ("lineage", "lineage.mjs", 'require(!endless.has(id), "lineage_cycle", id);', ""),
        ("routes", "routes.mjs", "generation > 0n && generation <= staged", "generation > 0n && generation < staged"),
        deep("routes", "routes.mjs", "data.writeInt16LE(id, 2 * index)", "data.writeInt16BE(id, 2 * index)"),
        ("boundary", "plan.mjs", "index === position - 1n", "index === position"),
        deep("boundary", "plan.mjs", "previous?.generation_len > 0n && span.generation_len > 0n", "true"),
        deep("boundary", "plan.mjs", "plan.schema_version === (announced ? 3n : 2n)", "true"),
        deep("routes", "routes.mjs", 'if (Buffer.from(data, "base64").toString("base64") !== data) ', "if (false) "),
    ],
    ids=lambda value: value[:24],
)  # fmt: skip
def test_one_wrong_line_fails_both(tmp_path, area, file, line, instead):
    folder = tmp_path / "node"
    shutil.copytree(EXAMPLE, folder)
    source = (folder / file).read_text(encoding="utf-8")
    assert source.count(line) == 1
    (folder / file).write_text(source.replace(line, instead), encoding="utf-8")
    program = load(folder)
    assert failed_vectors(program, area)
    checks = (Check(program, (Area(area),), PROFILES["quick"], seed, shrink=False) for seed in range(12))
    assert not all(check.run().held for check in checks)
