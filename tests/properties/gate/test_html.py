"""The HTML page and the SARIF log of a check: complete, readable by everybody, and valid."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
from attrs import evolve
from click.testing import CliRunner
from pydantic_sarif.model import StaticAnalysisResultsFormatSarifVersion210JsonSchema as SarifLog

from rollproof.properties.cli import main
from rollproof.properties.gate.codes import reaches
from rollproof.properties.gate.files import write_reports
from rollproof.properties.gate.html import TEMPLATE, html_page
from rollproof.properties.gate.load import load_implementation
from rollproof.properties.gate.profiles import PROFILES
from rollproof.properties.gate.run import Check
from rollproof.properties.gate.sarif import adapter_location, sarif_log
from rollproof.spec.judge.catalogue import BY_ID
from rollproof.spec.judge.requests import Area

ROOT = Path(__file__).parents[3]
REPLAYS = Path("out") / "replays"
HOSTILE = "</td><script>alert(1)</script> \ud800 \x00 & \"quoted\" 'too' {{ 7 * 7 }}"


def checked(name, areas=None):
    implementation = load_implementation(name)
    areas = areas or tuple(implementation.areas)
    report = Check(implementation, areas, PROFILES["quick"], seed=0, max_examples=5, shrink=False).run()
    report.implementation = name
    return report


@pytest.fixture(scope="module")
def reports():
    """Return one report that deviates as declared, and one that is wrong (with a complaint full of markup)."""
    pytest.importorskip("nemo_gym.token_id_capture.staging")
    declared = checked("nemo-gym", (Area.DIGEST, Area.RECEIPT, Area.ROUTES))
    wrong = checked("mutant:placeholder-trains")
    tally = wrong.invariants["GROUP-3"]
    tally.finding = evolve(tally.finding, complaint=HOSTILE)
    assert declared.deviations.keys() == declared.declared.keys()
    assert {"GROUP-3", "GROUP-16"} <= {found.invariant_id for found in wrong.falsified}
    return [declared, wrong]


@pytest.fixture(scope="module")
def page(reports):
    return html_page(reports, REPLAYS)


# ── the page ────────────────────────────────────────────────────────────────────────────────────────────────────────

VOID = {"meta", "br", "wbr", "hr", "img", "input", "link"}


class Outline(HTMLParser):
    """Elements, their order and their text; fails on what is not closed."""

    def __init__(self, page):
        super().__init__()
        self.elements, self.open, self.texts = [], [], []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        self.texts.append("" if tag == "wbr" else " ")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.texts.append(data)

    @property
    def text(self):
        return " ".join("".join(self.texts).split())


def test_the_page_needs_nothing_else(page):
    outline = Outline(page)
    assert not {"script", "link", "img", "iframe", "object", "embed"} & {tag for tag, _ in outline.elements}
    for tag, attributes in outline.elements:
        assert not [name for name in attributes if name.startswith("on") or name in {"src", "srcset", "action"}], tag
        assert attributes.get("href", "#").startswith("#")
    (style,) = re.findall("<style>(.*?)</style>", page, re.DOTALL)
    assert not re.search(r"url\(|@import|https?:|//", style)


def test_hostile_text_is_shown_as_text(page):
    page.encode("utf-8")
    text = Outline(page).text
    assert "</td><script>alert(1)</script> \\ud800 \\x00 & \"quoted\" 'too' {{ 7 * 7 }}" in text


def test_everything_that_was_found_is_on_the_page(page, reports):
    text = Outline(page).text
    for report in reports:
        assert report.implementation in text
        for name in report.invariants:
            assert f"{name} {BY_ID[name].sentence}" in text
        for finding in [*report.falsified, *report.deviations.values()]:
            assert f"rollproof replay {REPLAYS}" in text
            assert finding.complaint in text or finding.complaint == HOSTILE
            assert f"stream {finding.stream} · seen after {finding.after} examples" in text
        for reach in (reach for area in report.areas for reach in reaches(area)):
            tally = report.codes[reach.area, reach.name]
            assert f"{reach.area}: {reach.place}" in text
            found = f"reached {tally.driven} times" if tally.driven else f"{'✗' if tally.missed else '–'} not"
            assert f"{reach.code} {found}" in text, reach
        for name, sentence in report.declared.items():
            assert f"{name}: {sentence}" in text
        for area in report.areas:
            assert area.value in text
    assert "✗ falsified GROUP-3" in text


def test_the_page_has_an_outline_and_says_what_tables_are(page):
    elements = Outline(page).elements
    levels = [int(tag[1]) for tag, _ in elements if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    tags = [tag for tag, _ in elements]
    assert tags.count("table") == tags.count("caption") > 0
    assert all("scope" in attributes for tag, attributes in elements if tag == "th")
    assert tags.count("main") == 1
    assert dict(elements)["html"] == {"lang": "en"}
    names = [attributes["id"] for _, attributes in elements if "id" in attributes]
    assert len(set(names)) == len(names)
    pointed = [attributes.get("aria-labelledby") for _, attributes in elements]
    pointed += [attributes.get("href", "").removeprefix("#") for tag, attributes in elements if tag == "a"]
    assert {name for name in pointed if name} <= set(names)
    scrolled = [attributes for _, attributes in elements if attributes.get("class") == "scroll"]
    assert all(attributes["tabindex"] == "0" and attributes["aria-label"] for attributes in scrolled)


def luminance(colour):
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_text_stands_out_in_light_and_in_dark():
    template = (ROOT / "properties" / "rollproof" / "properties" / "gate" / TEMPLATE).read_text(encoding="utf-8")
    css = re.search("<style>(.*?)</style>", template, re.DOTALL)[1]
    schemes = [dict(re.findall(r"--([\w-]+): (#\w{6});", block)) for block in re.findall(r":root \{(.*?)\}", css, re.S)]
    assert len(schemes) == 2
    assert schemes[0].keys() == schemes[1].keys()
    rules = re.findall(r"([^{}]+)\{([^{}]*)\}", css.partition("* { box-sizing")[2])
    colours = [dict(re.findall(r"(?<![\w-])(background|color): var\(--([\w-]+)\)", body)) for _, body in rules]
    pairs = {(rule["color"], rule.get("background", "page")) for rule in colours if "color" in rule}
    assert len(pairs) > 10
    assert all(
        "color" in rule
        for (name, _), rule in zip(rules, colours, strict=True)
        if "background" in rule and "bar" not in name
    )
    low = {pair: contrast(*(scheme[name] for name in pair)) for scheme in schemes for pair in pairs}
    assert {pair: ratio for pair, ratio in low.items() if ratio < 4.5} == {}
    for scheme in schemes:
        assert contrast(scheme["bar"], scheme["page"]) >= 3


def test_colours_never_speak_alone(page):
    for kind, sign in {"held": "✓", "falsified": "✗", "declared": "≈", "undriven": "–"}.items():
        badges = re.findall(rf'class="badge {kind}"><span class="sign" aria-hidden="true">(.)</span> (\w+)', page)
        assert badges
        assert {found for found, _ in badges} == {sign}
        assert all(word for _, word in badges)


BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.mark.skipif(BROWSER is None, reason="no Chromium here; what the page holds is checked without one above")
def test_a_browser_shows_the_page_without_sideways_scrolling(page, tmp_path):
    widths = (390, 1280)
    frames = "".join(f'<iframe srcdoc="{html.escape(page)}" style="width: {width}px"></iframe>' for width in widths)
    measure = (
        "<script>onload = () => { document.title = Array.from(frames).flatMap((frame) =>"
        " [frame.innerWidth, frame.document.documentElement.scrollWidth]) }</script>"
    )
    file = tmp_path / "page.html"
    file.write_text(f'<meta charset="utf-8"><style>iframe {{ border: 0 }}</style>{measure}{frames}', encoding="utf-8")
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    shown = subprocess.run(
        [*command, "--dump-dom", file.as_uri()], capture_output=True, text=True, check=True, timeout=120
    )
    measured = re.search(r"<title>(\d+),(\d+),(\d+),(\d+)</title>", shown.stdout)
    first, first_scrolled, second, second_scrolled = map(int, measured.groups())
    assert (first, second) == widths
    assert first_scrolled <= first
    assert second_scrolled <= second


# ── the log ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_log_is_valid_and_complete(reports, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    log = sarif_log(reports, REPLAYS)
    SarifLog.model_validate(log)
    json.dumps(log).encode("ascii")
    (run,) = log["runs"]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert rules == [name for report in reports for name in report.invariants]
    results = run["results"]
    assert len(results) == sum(len(report.falsified) + len(report.deviations) for report in reports)
    assert all(rules[result["ruleIndex"]] == result["ruleId"] for result in results)
    assert len({result["partialFingerprints"]["rollproof/v1"] for result in results}) == len(results)
    excused = [result for result in results if "suppressions" in result]
    assert len(excused) == len(reports[0].deviations) == 12
    assert {result["level"] for result in excused} == {"note"}
    assert {result["level"] for result in results if result not in excused} == {"error"}
    place = results[-1]["locations"][0]["physicalLocation"]["artifactLocation"]
    assert place["uri"].startswith("out/replays/mutant-placeholder-trains-GROUP-")


def test_a_wrong_log_is_seen(reports):
    log = sarif_log(reports, REPLAYS)
    log["runs"][0]["results"][0]["mesage"] = {"text": "misspelt"}
    with pytest.raises(ValueError, match="mesage"):
        SarifLog.model_validate(log)


def test_a_result_points_at_the_adapter_where_it_is_the_users_own(reports, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    source = "from rollproof.properties.adapters.sketch import Sketch\n\n\nclass Mine(Sketch):\n    pass\n"
    Path("mine_adapter.py").write_text(source, encoding="utf-8")
    report = evolve(reports[0], implementation="mine_adapter:Mine")
    result = sarif_log([report], REPLAYS)["runs"][0]["results"][0]
    place = result["locations"][0]["physicalLocation"]
    assert place["artifactLocation"] == {"uri": "mine_adapter.py", "uriBaseId": "%SRCROOT%"}
    assert place["region"] == {"startLine": 4}
    related = result["relatedLocations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert related.startswith("out/replays/mine_adapter-Mine-")
    assert adapter_location("sketch") is None, "its source is not below this folder"
    assert adapter_location("not_there:Thing") is None


def test_fingerprints_stay_while_inputs_change(reports):
    def prints(report):
        results = sarif_log([report], REPLAYS)["runs"][0]["results"]
        return {result["ruleId"]: result["partialFingerprints"] for result in results}

    other = evolve(reports[1], invariants=dict(reports[1].invariants))
    tally = other.invariants["GROUP-16"]
    other.invariants["GROUP-16"] = evolve(tally, finding=evolve(tally.finding, complaint="another", after=99))
    assert prints(other) == prints(reports[1])


# ── the command ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_check_writes_every_format(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = ["check", "mutant:placeholder-trains", "--max-examples", "2", "--profile", "quick", "--report", "out"]
    assert CliRunner().invoke(main, arguments).exit_code == 1
    assert {path.name for path in Path("out").iterdir()} == {
        "report.json",
        "report.html",
        "report.sarif",
        "junit.xml",
        "replays",
    }
    text = Outline(Path("out/report.html").read_text(encoding="utf-8")).text
    (command,) = set(re.findall(r"rollproof check mutant:placeholder-trains [^<]*?--max-examples 2", text))
    assert command == "rollproof check mutant:placeholder-trains --area group --profile quick --seed 0 --max-examples 2"
    replays = set(re.findall(r"rollproof replay (out/replays/\S+\.json)", text))
    programs = set(re.findall(r"python (out/replays/\S+\.py)", text))
    assert replays | programs == {str(path) for path in Path("out/replays").iterdir()}
    assert len(replays) == len(programs)
    streams = json.loads(Path("out/report.json").read_text(encoding="utf-8"))[0]["streams"]
    assert sum(stream["requests"] for stream in streams) > 0
    assert all(stream["seconds"] >= 0 for stream in streams)


def test_reports_of_nothing_found_are_written_too(tmp_path):
    write_reports([checked("spec", (Area.DIGEST, Area.TERMINAL))], tmp_path)
    assert json.loads((tmp_path / "report.sarif").read_text())["runs"][0]["results"] == []
    assert "✓ all invariants held" in Outline((tmp_path / "report.html").read_text(encoding="utf-8")).text
