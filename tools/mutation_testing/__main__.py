"""``python -m tools.mutation_testing spec|impl``: try a sample of mutants; ``report`` and ``confirm``."""

from __future__ import annotations

import sys
import time

import click

from tools.mutation_testing import ROOTS
from tools.mutation_testing.mutants import sample
from tools.mutation_testing.records import complaints, find, records
from tools.mutation_testing.report import PAGE, page
from tools.mutation_testing.session import reach, remember, results, session_path, try_all
from tools.mutation_testing.trial import preload
from tools.mutation_testing.whole import verdicts


@click.group()
def main() -> None:
    """Make and try faults in the spec and in the implementation."""


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
    """Write docs/evidence/mutation.md from the results of earlier runs."""
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(page(), encoding="utf-8")
    click.echo(f"wrote {PAGE}")


@main.command()
@click.option("--whole", is_flag=True, help="Run the whole suite of its root on every survivor instead.")
@click.option("--only", default="", metavar="TEXT", help="With --whole: only survivors whose id contains this.")
def confirm(whole: bool, only: str) -> None:
    """Check that survivors.toml still holds, and that the mutants it names as killed still are."""
    if whole:
        sys.exit(_confirm_whole(only))
    preload()
    found = list(complaints())
    for complaint in found:
        click.echo(complaint)
    sys.exit(1 if found else 0)


def _confirm_whole(only: str) -> int:
    """Show what each survivor's whole suite says of it; 1 if one is killed or gone."""
    chosen = [identity for identity in records().reasons if only in identity]
    found = {identity: find(identity) for identity in chosen}
    for identity in (identity for identity, mutant in found.items() if mutant is None):
        click.echo(f"no such mutant: {identity}")
    mutants = [mutant for mutant in found.values() if mutant is not None]
    killed = 0
    for index, (mutant, by) in enumerate(verdicts(mutants), 1):
        killed += bool(by)
        click.echo(f"{index}/{len(mutants)} {f'KILLED by {by}' if by else 'survived'}\n    {mutant.id}")
        sys.stdout.flush()
    click.echo(f"{len(mutants)} checked, {killed} killed, {len(chosen) - len(mutants)} gone")
    return int(killed > 0 or len(mutants) < len(chosen))


for _root in ROOTS:
    main.add_command(_command(_root))


if __name__ == "__main__":
    main()
