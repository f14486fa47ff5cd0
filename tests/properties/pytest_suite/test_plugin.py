"""The pytest plugin: what it collects, how its tests end, and that workers of pytest-xdist agree."""

from __future__ import annotations

import json
import re
import sys

import pytest
from attrs import evolve
from click.testing import CliRunner

from rollproof.properties.cli import main
from rollproof.properties.gate.results import CodeTally
from rollproof.properties.pytest_suite import suite
from rollproof.spec.judge.requests import Area

pytest_plugins = ["pytester"]

ADAPTERS = """
from pathlib import Path
from attrs import evolve
from rollproof.properties.adapters.reference import Reference
from rollproof.properties.adapters.protocol import Adapter, Deviation
from rollproof.properties.nemo_gym.examples import call
from rollproof.spec.judge.oracle import answer
from rollproof.spec.judge.requests import Area, CallDigest, Refused


class Right(Reference):
    name = "right"
    areas = frozenset({Area.DIGEST, Area.TERMINAL})

    def prefix_digest(self, token_ids):
        with Path("asked.log").open("a") as log:
            log.write("prefix\\\\n")
        return super().prefix_digest(token_ids)


class Wrong(Right):
    name = "wrong"

    def prefix_digest(self, token_ids):
        super().prefix_digest(token_ids)
        return "0" * 64


EXAMPLE = CallDigest(call(token_mask_delta=(-0.0, 1.0)))


def plus_zero_masks(call):
    return evolve(call, token_mask_delta=tuple(0.0 if repr(mask) == "-0.0" else mask for mask in call.token_mask_delta))


def minus_zero_mask(asked, expected):
    refused = isinstance(asked, CallDigest) and isinstance(expected, Refused)
    if refused and "-0.0" in map(repr, asked.call.token_mask_delta):
        yield answer(CallDigest(plus_zero_masks(asked.call)))


class Lenient(Reference):
    name = "lenient"
    areas = frozenset({Area.DIGEST})
    deviations = (
        Deviation("D2", Area.DIGEST, "1", "takes -0.0 as a mask", minus_zero_mask, (EXAMPLE,)),
        Deviation("D0", Area.DIGEST, "1", "never shows", lambda *_: (), (EXAMPLE,)),
    )

    def call_digest(self, call):
        return super().call_digest(plus_zero_masks(call))


class Prefixes(Adapter):
    name = "prefixes"
    areas = frozenset({Area.DIGEST})
    deviations = ()
    prefix_digest = Reference.prefix_digest
    ask = Reference.ask
"""


@pytest.fixture(autouse=True)
def adapters(pytester, monkeypatch):
    """Return a folder with some implementations, for one run of pytest after the other."""
    pytester.makepyfile(adapters=ADAPTERS.replace("\\\\n", "\\n"))
    monkeypatch.setattr(sys, "path", [*sys.path])


@pytest.fixture
def run(pytester):
    """Run pytest in this process, without what others have installed."""
    return lambda *arguments: pytester.runpytest_inprocess("-p", "no:cacheprovider", "-rA", *arguments)


def outcomes(result):
    """Return the verdict of every test of the suite."""
    lines = [re.match(r"(PASSED|FAILED|XFAIL|XPASS|ERROR) (rollproof::\S+)", line) for line in result.outlines]
    return {line[2].partition("@")[0]: line[1] for line in lines if line}


# ── what is collected ───────────────────────────────────────────────────────────────────────────────────────────────


def test_without_the_option_nothing_is_imported(pytester):
    pytester.makepyfile("""
        import sys

        def test_modules():
            assert "rollproof.properties.pytest_suite.plugin" in sys.modules
            heavy = {"torch", "hypothesis", "numpy", "attrs", "rich", "jinja2", "filelock"}
            assert not heavy & set(sys.modules)
            ours = {name for name in sys.modules if name.startswith("rollproof.")}
            package = "rollproof.properties.pytest_suite"
            assert ours == {"rollproof.properties", package, f"{package}.plugin"}
    """)
    result = pytester.runpytest_subprocess()
    result.assert_outcomes(passed=1)


def test_the_plugin_can_be_left_out(pytester):
    pytester.makepyfile("def test_nothing(): pass")
    pytester.runpytest_subprocess("-p", "no:rollproof").assert_outcomes(passed=1)
    result = pytester.runpytest_subprocess("-p", "no:rollproof", "--rollproof", "spec")
    assert result.ret == pytest.ExitCode.USAGE_ERROR


def test_ids_name_implementation_area_and_rule(run):
    arguments = ("--collect-only", "-q", "--rollproof", "adapters:Lenient", "--rollproof", "spec")
    lines = run(*arguments, "--rollproof-area", "digest").outlines
    assert "rollproof::adapters:Lenient::digest::DIGEST-1" in lines
    assert "rollproof::adapters:Lenient::digest::deviation[D0]" in lines
    assert "rollproof::spec::digest::DIGEST-1" in lines
    lines = run("--collect-only", "-q", "--rollproof", "spec", "-k", "rollout and code").outlines
    assert "rollproof::spec::rollout::code[missing_receipt]" in lines
    assert not [line for line in lines if "ROLLOUT-" in line]


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--rollproof", "nonsense"], 2, "no such implementation"),
        (["--rollproof", "json:dumps"], 2, "not an implementation"),
        (["--rollproof", "adapters:Right", "--rollproof-area", "group"], 2, "does not offer area group"),
        (["--rollproof", "spec", "--rollproof-area", "nonsense"], 4, "expected one of digest"),
        (["--rollproof", "spec", "--rollproof-profile", "nonsense"], 4, "expected one of quick"),
        (["--rollproof", "spec", "--rollproof-seed", "-1"], 4, "at least 0"),
        (["--rollproof", "spec", "--rollproof-max-examples", "0"], 4, "at least 1"),
    ],
)
def test_what_a_user_gets_wrong_is_one_line(pytester, run, arguments, code, says):
    result = run(*arguments)
    assert result.ret == code
    text = result.stdout.str() + result.stderr.str()
    assert says in text
    assert "Traceback" not in text


def test_own_tests_run_for_every_implementation(pytester, run):
    pytester.makepyfile(
        test_own="def test_it(rollproof_implementation): assert 'digest' in rollproof_implementation.areas"
    )
    result = run("--rollproof", "adapters:Right", "--rollproof", "adapters:Lenient", "-k", "test_own")
    result.assert_outcomes(passed=2, deselected=result.parseoutcomes()["deselected"])
    result.stdout.fnmatch_lines(["PASSED test_own.py::test_it?adapters:Right?"])
    result = run()
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*no implementation: give --rollproof"])


# ── how tests end ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_failure_shows_its_input_both_answers_and_how_to_repeat_it(run):
    result = run("--rollproof", "adapters:Wrong", "--rollproof-area", "digest", "--rollproof-profile", "quick")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    ended = outcomes(result)
    assert ended["rollproof::adapters:Wrong::digest::DIGEST-2"] == "FAILED"
    assert ended["rollproof::adapters:Wrong::digest::DIGEST-3"] == "PASSED"
    text = result.stdout.str()
    assert "input: the plainest PrefixDigest" in text
    assert "17088fc6" in text, "the contract's answer"
    assert "Traceback" not in text
    assert "suite.py" not in text, "a verdict needs no place in our source"
    assert re.search(r"^FAILED \S+DIGEST-2 - value: expected '17088fc", text, re.MULTILINE), (
        "the summary says what is wrong"
    )
    (command,) = {line for line in result.outlines if line.startswith("rollproof replay")}
    again = CliRunner().invoke(main, command.split()[1:])
    assert again.exit_code == 1
    assert "falsified: DIGEST-2" in again.output


def test_a_declared_deviation_is_expected_to_fail(run):
    arguments = ("--rollproof", "adapters:Lenient", "--rollproof-profile", "ci", "--rollproof-seed", "0")
    result = run(*arguments)
    ended = outcomes(result)
    assert ended.pop("rollproof::adapters:Lenient::digest::deviation[D2]") == "XFAIL"
    assert ended.pop("rollproof::adapters:Lenient::digest::deviation[D0]") == "XPASS"
    assert set(ended.values()) == {"PASSED"}
    result.stdout.fnmatch_lines(
        ["adapters:Lenient: held, except for declared deviations: D2 *", "XFAIL *deviation?D2? - takes -0.0 as a mask"]
    )
    strict = run(*arguments, "--runxfail", "-k", "deviation")
    strict.assert_outcomes(failed=1, passed=1, deselected=strict.parseoutcomes()["deselected"])
    strict.stdout.fnmatch_lines(["*deviation D2: DIGEST-*"])


def test_what_an_implementation_does_not_offer_is_skipped_by_name(run):
    result = run("--rollproof", "adapters:Prefixes", "--rollproof-profile", "quick")
    assert outcomes(result)["rollproof::adapters:Prefixes::digest::DIGEST-2"] == "PASSED"
    result.stdout.fnmatch_lines(["SKIPPED * adapters:Prefixes answers no ExtrasDigest or CallDigest"])
    assert result.parseoutcomes().keys() == {"passed", "skipped"}


CODE = ("rollproof::spec::lineage::code[corrupt_digest]", (Area.LINEAGE, "corrupt_digest"))


@pytest.mark.parametrize(
    ("tally", "limit", "verdict", "says"),
    [
        (CodeTally(3, 3), None, "PASSED", None),
        (CodeTally(3, 1), None, "FAILED", "answered wrongly 2 of 3 times"),
        (CodeTally(3, 1, excused=1), None, "FAILED", "answered wrongly 1 of 3 times"),
        (CodeTally(3, 1, excused=2), None, "XFAIL", "answered otherwise 2 of 3 times, as declared"),
        (CodeTally(), None, "FAILED", "not exercised by any of 9 requests"),
        (CodeTally(), 4, None, "not exercised by 4 examples per stream"),
        (CodeTally(left_out=2), None, None, "spec could not be asked any request that is refused with this code"),
        (CodeTally(offered=False), None, None, "spec answers no request that can be refused with this code"),
    ],
)
def test_a_code_must_be_reached_and_answered_correctly(run, monkeypatch, tally, limit, verdict, says):
    def checked(task, _advance):
        report = task.check().report
        report.requests = 9
        report.codes[CODE[1]] = tally
        report.max_examples = limit
        return report

    monkeypatch.setattr(suite, "run_task", checked)
    result = run("--rollproof", "spec", "--rollproof-area", "lineage", "-k", "corrupt_digest")
    assert outcomes(result).get(CODE[0]) == verdict
    assert result.parseoutcomes().keys() - {"deselected"} == {
        {"PASSED": "passed", "FAILED": "failed", "XFAIL": "xfailed", None: "skipped"}[verdict]
    }
    assert says is None or says in result.stdout.str()


def test_an_invariant_without_an_example_is_no_success(run, monkeypatch):
    monkeypatch.setattr(suite, "run_task", lambda task, _: task.check().report)
    result = run("--rollproof", "spec", "--rollproof-area", "digest", "-k", "DIGEST-1")
    result.assert_outcomes(failed=1, deselected=result.parseoutcomes()["deselected"])
    result.stdout.fnmatch_lines(["*no example ran*"])


def test_reports_are_written(pytester, run):
    arguments = ("--rollproof", "adapters:Wrong", "--rollproof", "adapters:Right", "--rollproof-profile", "quick")
    run(*arguments, "--rollproof-report", "out").stdout.fnmatch_lines(["reports written to out"])
    reports = json.loads((pytester.path / "out" / "report.json").read_text(encoding="utf-8"))
    assert [report["implementation"] for report in reports] == ["adapters:Wrong", "adapters:Right"]
    assert [report["areas"] for report in reports] == [["digest", "terminal"]] * 2
    assert (pytester.path / "out" / "replays" / "adapters-Wrong-DIGEST-2.json").is_file()


# ── workers ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.deep
def test_workers_find_the_same_and_check_every_area_once(pytester, run):
    def found(result):
        log, replays = pytester.path / "asked.log", pytester.path / ".rollproof" / "replays"
        asked = log.read_text().count("\n")
        log.unlink()
        return outcomes(result), asked, (replays / "adapters-Wrong-DIGEST-2.json").read_text()

    arguments = ("-rA", "--rollproof", "adapters:Wrong", "--rollproof-max-examples", "2")
    alone = found(run(*arguments))
    assert alone[0]["rollproof::adapters:Wrong::digest::DIGEST-2"] == "FAILED"
    assert alone[0]["rollproof::adapters:Wrong::terminal::TERMINAL-2"] == "PASSED"
    assert alone[1] > 0
    assert found(pytester.runpytest_subprocess(*arguments, "-n", "2")) == alone


def test_an_area_is_one_group_for_workers(pytester, run):
    pytester.makeconftest("""
        def pytest_collection_modifyitems(items):
            for item in items:
                print(item.nodeid, "in", *item.get_closest_marker("xdist_group").args)
    """)
    result = run("--collect-only", "--strict-markers", "--rollproof", "adapters:Right")
    result.stdout.fnmatch_lines(
        [
            "rollproof::adapters:Right::digest::DIGEST-1 in rollproof::adapters:Right::digest",
            "rollproof::adapters:Right::terminal::TERMINAL-1 in rollproof::adapters:Right::terminal",
        ]
    )
    result = run("--collect-only", "-q", "--strict-markers", "--rollproof", "adapters:Right", "-p", "no:xdist")
    assert result.ret != pytest.ExitCode.OK, "conftest.py asks for a mark that is not there"


def test_a_worker_that_waits_helps(tmp_path, monkeypatch):
    results = suite.Results(tmp_path, ("spec",), (), "quick", 0, None, None, owned=False)
    wanted, other = [evolve(results.tasks("spec")[0], area=area) for area in (Area.DIGEST, Area.TERMINAL)]
    results._selected = [wanted, other]
    ran = []

    def checked(task, _advance):
        ran.append(task.area)
        if task is other:
            lock.release()
        return task.check().report

    monkeypatch.setattr(suite, "run_task", checked)
    lock = suite.FileLock(tmp_path / "0-digest.lock")
    lock.acquire()
    assert results.checked(wanted).report.areas == (Area.DIGEST,)
    assert ran == [Area.TERMINAL, Area.DIGEST]
