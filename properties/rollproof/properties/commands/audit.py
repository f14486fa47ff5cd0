"""``rollproof audit``: judge recorded groups by the contract."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from rollproof.properties.audit.audit_html import write_html
from rollproof.properties.audit.audit_summary import failed, show_audit, write_report
from rollproof.properties.audit.ledger import read_ledger
from rollproof.properties.audit.run import OWN_RULES, Audit
from rollproof.properties.audit.state import State
from rollproof.properties.audit.thresholds import read_thresholds
from rollproof.properties.cluster import RAY_HELP, placed
from rollproof.properties.errors import InputError
from rollproof.spec.judge.catalogue import BY_ID


@click.command("audit")
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--report", type=click.Path(dir_okay=False, path_type=Path), help="Write all findings to this file, as JSON."
)
@click.option(
    "--html", type=click.Path(dir_okay=False, path_type=Path), help="Write all findings to this file, as a page."
)
@click.option(
    "--fail-on", "limits", multiple=True, metavar="advisory/NAME[=N]",
    help="Exit with 1 if this advisory counts N (default 1) or more. May be repeated.",
)  # fmt: skip
@click.option(
    "--ledger", type=click.Path(dir_okay=False, path_type=Path),
    help="Dispatched group ids, one a line: each must be published once, dropped, or pending.",
)  # fmt: skip
@click.option("--skip", multiple=True, metavar="ID", help="Skip this invariant, e.g. GROUP-13. May be repeated.")
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    help="Number of processes; does not affect verdicts.  [default: one per processor; with --ray, one per free one]",
)
@click.option("--ray", "address", metavar="ADDRESS", help=RAY_HELP)
@click.option("--resume", is_flag=True, help="Continue an interrupted audit, or one of a file that has grown since.")
@click.option(
    "--state", "state_file", type=click.Path(dir_okay=False, path_type=Path),
    help="State file; kept after the run. Default: next to the first FILE, deleted when the audit is complete.",
)  # fmt: skip
def command(
    files: tuple[Path, ...],
    report: Path | None,
    html: Path | None,
    limits: tuple[str, ...],
    ledger: Path | None,
    skip: tuple[str, ...],
    jobs: int | None,
    address: str | None,
    resume: bool,
    state_file: Path | None,
) -> None:
    """Judge recorded groups: check that the rows published in each FILE are what the contract requires.

    A FILE is written by rollproof.properties.audit.recorder.Recorder, and may be gzipped. Exit code 0: all are as
    required; 1: some are not, or an advisory or the ledger says so; 2: some lines cannot be read.
    """
    console = Console()
    unknown = sorted(set(skip) - {*BY_ID, *OWN_RULES})
    if unknown:
        raise InputError(f"{', '.join(unknown)}: no such invariant; see rollproof rules")
    thresholds = read_thresholds(limits)
    dispatched = None if ledger is None else read_ledger(ledger)
    sizes = {file: size_of(file) for file in files}
    path = state_file or files[0].with_name(f"{files[0].name}.audit-state")
    if resume and not path.exists():
        raise InputError(f"{path}: no audit to resume")
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with placed(address, jobs, os.cpu_count() or 1) as place:
        state = State(path, resume=resume)
        audit = Audit(files, state, place, frozenset(skip), limits=thresholds, dispatched=dispatched)
        try:
            with Progress(*columns, console=console, transient=True) as progress:
                bars = {file: progress.add_task(file.name, total=size) for file, size in sizes.items()}
                audit.progress = lambda file, read: progress.update(bars[file], completed=read)
                audit.run()
        except KeyboardInterrupt:
            state.close(remove=False)
            click.echo(f"rollproof: interrupted; the same command with --resume continues (state in {path})", err=True)
            sys.exit(130)
    total = show_audit(console, audit)
    for target, write in ((report, write_report), (html, write_html)):
        if target is not None:
            try:
                write(target, audit)
            except OSError as error:
                raise InputError(f"{target}: {error.strerror}") from error
            console.print(f"report written to {target}")
    wrong = failed(audit, total)
    state.close(remove=state_file is None)
    sys.exit(2 if total.unreadable else 1 if wrong else 0)


def size_of(file: Path) -> int:
    """Return the size of a file in bytes. Raises ``InputError``."""
    try:
        return file.stat().st_size
    except OSError as error:
        raise InputError(f"{file}: {error.strerror}") from error
