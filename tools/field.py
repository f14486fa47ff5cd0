"""``python -m tools.field run``: put every peer through the gate, and write docs/field.json and docs/field.md.

``page`` writes docs/field.md from docs/field.json; ``compare OLD NEW`` prints what differs between two such files, and
exits with 1 where something does.
"""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click

from rollproof.properties.errors import InputError, reading
from rollproof.properties.evidence.rules_page import table
from rollproof.properties.gate.load import load_implementation, pick_areas
from rollproof.properties.gate.profiles import PROFILES
from rollproof.properties.gate.results import InvariantTally, Report
from rollproof.properties.gate.run import Check
from rollproof.properties.peers.manifest import PREFIX, PeerFolder, peer_folder, peer_names
from rollproof.spec.judge.catalogue import BY_ID
from rollproof.spec.judge.invariant import shortened, value_text
from rollproof.spec.judge.requests import Area, Request
from tools.peers import set_up

FORMAT: Final = "rollproof-field-1"
DATA: Final = Path("docs/field.json")
PAGE: Final = Path("docs/field.md")
HELD, DEVIATION, ADVISORY, FALSIFIED = "held", "deviation", "advisory", "falsified"
REFUSED, NOT_DRAWN = "refused", "not drawn"

INTRODUCTION: Final = """\
# The field

What the gate found when it put public frameworks through the [portable areas](contract/portable.md), by their own
functions, each in an environment of its own. Generated from [field.json](field.json) by `make field`; what each
falsified invariant means for a training run is in [Findings](findings.md#other-frameworks). In a clone,
`make peer NAME=verl` makes one environment, and `rollproof check peer:verl` repeats that peer's part.

| verdict | meaning |
| --- | --- |
| held | no request falsified it |
| deviation | falsified only where the peer declares a deviation, with its cause |
| advisory | an advisory invariant, which permits it, says that it costs something |
| falsified | at least one request falsified it, and the peer declares nothing about it |
| refused | the peer refused every request about it |
| not drawn | no request about it was asked, such as MERGE-6, which is measured in the process of the gate |

An area that a peer does not offer is left out of its table. A refusal is never a fault: it trains nothing.

"""


@click.group()
def main() -> None:
    """Put peers through the gate, and write down what it found."""


@main.command()
@click.argument("names", nargs=-1)
@click.option("--set-up", "setting_up", is_flag=True, help="Set up the peers that are not, where that is possible.")
@click.option("--profile", type=click.Choice(list(PROFILES)), default="ci", show_default=True)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--data", type=click.Path(dir_okay=False, path_type=Path), default=DATA, show_default=True)
def run(names: tuple[str, ...], setting_up: bool, profile: str, seed: int, data: Path) -> None:
    """Check peers (default: all), and write the results; those of peers that are not named stay as they are."""
    found = {entry["name"]: entry for entry in read(data)["peers"]} if names and data.is_file() else {}
    for name in names or peer_names():
        found[name] = entry_of(peer_folder(name), profile, seed, setting_up=setting_up)
        click.echo(f"{PREFIX}{name}: {summary(found[name])}")
    content = {"format": FORMAT, "profile": profile, "seed": seed, "peers": [found[name] for name in sorted(found)]}
    data.parent.mkdir(parents=True, exist_ok=True)
    data.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    if data == DATA:
        PAGE.write_text(page_text(content), encoding="utf-8")


@main.command()
def page() -> None:
    """Write docs/field.md from docs/field.json."""
    PAGE.write_text(page_text(read(DATA)), encoding="utf-8")


@main.command()
@click.argument("old", type=click.Path(dir_okay=False, path_type=Path))
@click.argument("new", type=click.Path(dir_okay=False, path_type=Path))
def compare(old: Path, new: Path) -> None:
    """Print what differs between two files of results."""
    differences = differing(read(old), read(new))
    for line in differences:
        click.echo(line)
    sys.exit(1 if differences else 0)


# ── running ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def entry_of(folder: PeerFolder, profile: str, seed: int, *, setting_up: bool) -> dict[str, Any]:
    """Return what a check of one peer found, or why it could not be checked."""
    manifest = folder.manifest
    entry: dict[str, Any] = {
        "name": manifest.name,
        "version": None,
        "licence": manifest.licence,
        "source": manifest.source,
        "date": datetime.now(UTC).date().isoformat(),
        "functions": manifest.areas,
        "stand_ins": list(manifest.stand_ins),
        "policies": sorted(manifest.policies),
        "not_run": None,
        "requests": 0,
        "invariants": {},
        "deviations": {},
    }
    try:
        if setting_up and not folder.is_set_up:
            set_up(folder)
        implementation = load_implementation(f"{PREFIX}{manifest.name}")
        entry["version"] = folder.version
    except InputError as error:
        return {**entry, "not_run": str(error).replace(f"{folder.path}/", "")}
    except subprocess.CalledProcessError as error:
        return {**entry, "not_run": f"its environment could not be made: exit code {error.returncode} of pip"}
    for area in pick_areas(implementation, tuple(area for area in Area if area.value in manifest.areas)):
        report = Check(implementation, (area,), PROFILES[profile], seed).run()
        entry["requests"] += report.requests
        entry["invariants"] |= {name: outcome(report, name, tally) for name, tally in report.invariants.items()}
        entry["deviations"] |= {name: report.declared[name] for name in report.deviations}
    return entry


def outcome(report: Report, name: str, tally: InvariantTally) -> dict[str, Any]:
    """Return the verdict on one invariant, with its numbers."""
    deviating = any(finding.invariant_id == name for finding in report.deviations.values())
    if tally.finding is not None:
        verdict = ADVISORY if BY_ID[name].advisory else FALSIFIED
    elif deviating:
        verdict = DEVIATION
    elif not tally.examples:
        verdict = NOT_DRAWN
    else:
        verdict = REFUSED if tally.refused == tally.examples else HELD
    entry: dict[str, Any] = {"verdict": verdict, "requests": tally.examples, "refused": tally.refused}
    if tally.finding is not None:
        entry |= {"input": input_text(tally.finding.request), "complaint": shortened(tally.finding.complaint, 300)}
    return entry


def input_text(request: Request) -> str:
    """Return a request in a few words: its calls as prompt → generation, anything else as Python shows it."""
    calls = getattr(request, "calls", None)
    if calls is None:
        return value_text(request, 400)
    sampled = "; ".join(f"{list(call.prompt_ids)} → {list(call.generated_ids)}" for call in calls)
    limits = ", ".join(
        f"{name} {getattr(request, name)}"
        for name in ("pad_id", "max_len", "num_experts")
        if getattr(request, name, None) is not None
    )
    return shortened(f"{sampled}; {limits}", 400)


def summary(entry: dict[str, Any]) -> str:
    """Return one line about one peer."""
    if entry["not_run"]:
        return f"not run: {entry['not_run']}"
    verdicts = [one["verdict"] for one in entry["invariants"].values()]
    words = [f"{verdicts.count(word)} {word}" for word in (HELD, DEVIATION, ADVISORY, FALSIFIED, REFUSED, NOT_DRAWN)]
    return f"{entry['version']}: {', '.join(word for word in words if not word.startswith('0 '))}"


# ── reading and writing ─────────────────────────────────────────────────────────────────────────────────────────────


def read(path: Path) -> dict[str, Any]:
    """Return a file of results. Raises ``InputError``."""
    with reading(path, "results of make field"):
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] != FORMAT:
            raise InputError(f"{path}: format {content['format']!r}, expected {FORMAT!r}")
        return content


def page_text(content: dict[str, Any]) -> str:
    """Return docs/field.md."""
    entries = content["peers"]
    overview = [
        (
            f"[{entry['name']}](#{entry['name']})",
            entry["version"] or "not run",
            entry["licence"],
            entry["date"],
            ", ".join(entry["functions"]),
            str(sum(one["verdict"] == FALSIFIED for one in entry["invariants"].values())),
        )
        for entry in entries
    ]
    parts = [
        INTRODUCTION,
        f"Profile {content['profile']}, seed {content['seed']}.\n\n",
        table(("peer", "version", "licence", "date", "areas", "falsified"), overview),
        "\n## Peer by invariant\n\n",
        *matrix(entries),
        *(section(entry) for entry in entries),
    ]
    return "".join(parts)


def matrix(entries: list[dict[str, Any]]) -> list[str]:
    """Return one table per area: invariants by peers that offer the area."""
    parts = []
    for area in Area:
        offering = [entry for entry in entries if area.value in entry["functions"] and not entry["not_run"]]
        names = [name for name in BY_ID if BY_ID[name].area is area]
        if offering and names:
            rows = [(name, *(verdict_of(entry, name) for entry in offering)) for name in names]
            parts += [f"### {area.value}\n\n", table(("", *(entry["name"] for entry in offering)), rows), "\n"]
    return parts


def verdict_of(entry: dict[str, Any], name: str) -> str:
    """Return the cell of one peer and one invariant."""
    verdict = entry["invariants"].get(name, {}).get("verdict", "not offered")
    return f"**{verdict}**" if verdict == FALSIFIED else str(verdict)


def section(entry: dict[str, Any]) -> str:
    """Return the section about one peer."""
    lines = [f"## {entry['name']}\n", f"{entry['licence']}, <{entry['source']}>.\n"]
    if entry["not_run"]:
        return "\n".join([*lines, f"Not run: {entry['not_run']}.\n\n"])
    lines[1] = f"Version {entry['version']}, {lines[1][:-1]} {entry['requests']:,} requests.\n"
    lines += [table(("area", "functions that answer"), entry["functions"].items())]
    if entry["stand_ins"]:
        lines += ["Stand-ins:\n", *(f"- {text}" for text in entry["stand_ins"]), ""]
    if entry["policies"]:
        lines += [f"Declared policies: {', '.join(f'`{policy}`' for policy in entry['policies'])}.\n"]
    if entry["deviations"]:
        lines += [table(("deviation", "what it does"), entry["deviations"].items())]
    wrong = [(name, one) for name, one in entry["invariants"].items() if one["verdict"] == FALSIFIED]
    if wrong:
        rows = [(name, BY_ID[name].sentence, f"`{one['input']}`", one["complaint"]) for name, one in wrong]
        lines += [table(("falsified", "must hold", "smallest input found", "what is wrong"), rows)]
    return "\n".join(lines) + "\n"


def differing(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Return one line of Markdown for each peer, version and verdict that differs; numbers of requests may vary."""
    lines: list[str] = []
    before = {entry["name"]: entry for entry in old["peers"]}
    after = {entry["name"]: entry for entry in new["peers"]}
    for name in sorted({*before, *after}):
        if name not in before or name not in after:
            lines.append(f"- {name}: {'new' if name in after else 'gone'}")
            continue
        left, right = before[name], after[name]
        for what in ("version", "not_run"):
            if left[what] != right[what]:
                lines.append(f"- {name}: {what.replace('_', ' ')}: {left[what] or 'none'} → {right[what] or 'none'}")
        for rule in sorted({*left["invariants"], *right["invariants"]}):
            words = [verdict_of(entry, rule).strip("*") for entry in (left, right)]
            if words[0] != words[1] and not right["not_run"]:
                lines.append(f"- {name}: {rule}: {words[0]} → {words[1]}")
    return lines


if __name__ == "__main__":
    main()
