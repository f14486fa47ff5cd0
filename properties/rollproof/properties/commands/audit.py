"""``rollproof audit``: judge recorded groups by the contract."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from rollproof.properties.audit.run import RERUN, Audit
from rollproof.properties.audit.show import show_audit, write_report
from rollproof.properties.audit.state import State
from rollproof.properties.cluster import RAY_HELP, placed
from rollproof.properties.errors import InputError
from rollproof.spec.invariants import BY_ID


@click.command("audit")
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--report", type=click.Path(dir_okay=False, path_type=Path), help="Write everything found as JSON here.")
@click.option("--skip", multiple=True, metavar="ID", help="Leave this invariant out, e.g. GROUP-13. May be repeated.")
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    help="Processes; verdicts do not depend on it.  [default: one per processor; with --ray, per free one there]",
)
@click.option("--ray", "address", metavar="ADDRESS", help=RAY_HELP)
@click.option("--resume", is_flag=True, help="Go on where an interrupted audit stopped, or a growing file ended.")
@click.option(
    "--state", "state_file", type=click.Path(dir_okay=False, path_type=Path),
    help="Where to keep what was found so far, and keep it. Default: beside the first FILE, until the audit is done.",
)  # fmt: skip
def command(
    files: tuple[Path, ...],
    report: Path | None,
    skip: tuple[str, ...],
    jobs: int | None,
    address: str | None,
    resume: bool,
    state_file: Path | None,
) -> None:
    """Judge recorded groups: whether each FILE's published rows are what the contract requires.

    A FILE is written by rollproof.properties.audit.recorder.Recorder, and may be gzipped. Exit code 0: all are as
    required; 1: some are not; 2: some lines cannot be read.
    """
    console = Console()
    unknown = sorted(set(skip) - {*BY_ID, RERUN})
    if unknown:
        raise InputError(f"{', '.join(unknown)}: no such invariant; see rollproof rules")
    sizes = {file: size_of(file) for file in files}
    path = state_file or files[0].with_name(f"{files[0].name}.audit-state")
    if resume and not path.exists():
        raise InputError(f"{path}: no audit to resume")
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with placed(address, jobs, os.cpu_count() or 1) as place:
        state = State(path, resume=resume)
        audit = Audit(files, state, place, frozenset(skip))
        try:
            with Progress(*columns, console=console, transient=True) as progress:
                bars = {file: progress.add_task(file.name, total=size) for file, size in sizes.items()}
                audit.progress = lambda file, read: progress.update(bars[file], completed=read)
                audit.run()
        except KeyboardInterrupt:
            state.close(remove=False)
            click.echo(f"rollproof: interrupted; the same command with --resume goes on (state in {path})", err=True)
            sys.exit(130)
    total = show_audit(console, audit)
    if report is not None:
        try:
            write_report(report, audit)
        except OSError as error:
            raise InputError(f"{report}: {error.strerror}") from error
        console.print(f"report written to {report}")
    state.close(remove=state_file is None)
    sys.exit(2 if total.unreadable else 1 if total.falsified else 0)


def size_of(file: Path) -> int:
    """Bytes of a file on disk. Raises ``InputError``."""
    try:
        return file.stat().st_size
    except OSError as error:
        raise InputError(f"{file}: {error.strerror}") from error
