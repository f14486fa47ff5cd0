"""``python -m mutation spec|impl``: try a sample of mutants; ``report`` and ``confirm``."""

from __future__ import annotations

import sys
import time

import click

from mutation import ROOTS
from mutation.mutants import sample
from mutation.records import complaints, records
from mutation.report import PAGE, page
from mutation.session import reach, remember, results, session_path, try_all
from mutation.trial import preload


@click.group()
def main() -> None:
    """Machine-made faults in the spec and in the implementation."""


def _run(root: str, count: int, seed: int, jobs: int, again: bool) -> None:
    preload()
    reached = reach()
    drawn, total = sample(root, count, seed)
    known = results(root)
    reasons = records().reasons
    unclear = {name for name, result in known.items() if not result.killed and name not in reasons} if again else ()
    left = [mutant for mutant in drawn if mutant.id not in known or mutant.id in unclear]
    click.echo(f"{root}: {len(drawn)} of {total} mutants, {len(left)} to try; results in {session_path(root)}")
    started = time.monotonic()
    for index, result in enumerate(try_all(left, reached.units, reached.seconds, jobs), 1):
        remember(root, result)
        word = f"killed by {result.by}" if result.killed else "SURVIVED"
        click.echo(f"{index}/{len(left)} {result.seconds:6.1f} s  {result.id}\n    {word}")
        sys.stdout.flush()
    click.echo(f"{time.monotonic() - started:.0f} s")


def _command(root: str) -> click.Command:
    @click.option("--sample", "count", default=400, show_default=True, help="How many mutants.")
    @click.option("--seed", default=0, show_default=True, help="Which ones.")
    @click.option("--jobs", default=1, show_default=True, help="How many at a time.")
    @click.option("--again", is_flag=True, help="Try unexplained survivors of an earlier run again.")
    def command(count: int, seed: int, jobs: int, again: bool) -> None:
        _run(root, count, seed, jobs, again)

    return click.command(root, help=f"Try mutants of {root}.")(command)


@main.command()
def report() -> None:
    """Write docs/evidence/mutation.md from the results that are there."""
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(page(), encoding="utf-8")
    click.echo(f"wrote {PAGE}")


@main.command()
def confirm() -> None:
    """Check that survivors.toml still holds, and that the mutants it names as killed still are."""
    preload()
    found = list(complaints())
    for complaint in found:
        click.echo(complaint)
    sys.exit(1 if found else 0)


for _root in ROOTS:
    main.add_command(_command(_root))


if __name__ == "__main__":
    main()
