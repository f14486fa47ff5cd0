"""The result as a page: docs/evidence/mutation.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from statistics import mean
from typing import Final

from tools.mutation_testing import ROOT, ROOTS
from tools.mutation_testing.records import records
from tools.mutation_testing.session import Result, results

PAGE: Final = ROOT / "docs" / "evidence" / "mutation.md"

HEAD: Final = """\
# Mutation testing

<!-- Written by `python -m tools.mutation_testing report`. -->

Does anything notice when a line of the spec or of the implementation is wrong? The operators of
[cosmic-ray](https://cosmic-ray.readthedocs.io) change one comparison, operator, number, condition, loop or handler at
a time. Each mutant is loaded in place of the real module in a process of its own, and tried on what reaches the
changed line: first the gate's streams, where spec and implementation judge each other; then, for an invariant, the
known wrong implementations that it must catch; then the quick tests of both roots. The first that notices kills it.
An endless loop counts as noticed.

Left out is what is no behaviour: annotations, docstrings, `TYPE_CHECKING`, the `*` between parameters, the wording of
messages after the normative part of a reason, and changes that do not compile. Left out is also what needs a service
or a GPU: the TransferQueue client, the pool on Ray and the Triton kernels.

The sample is drawn uniformly from all mutants, by seed 0, and tried in the order drawn: what was tried so far is a
uniform sample too. *Killed* counts against all that were tried; the *score* leaves out those that are equivalent, each
with its reason below. *Unexplained* are survivors that are still to be looked at. `make mutation` goes on where it
stopped, up to 400 of each root; with `--again`, `python -m tools.mutation_testing spec` tries unexplained ones anew.
A reason is a claim: `python -m tools.mutation_testing confirm --whole` runs the whole suite of its root on every mutant
that is said to be equivalent.
"""


def page() -> str:
    """Return the whole page."""
    reasons = records().reasons
    found = {root: list(results(root).values()) for root in ROOTS}
    return "\n".join([HEAD, *_summary(found, reasons), *_survivors(found, reasons)]) + "\n"


def _summary(found: dict[str, list[Result]], reasons: dict[str, str]) -> Iterator[str]:
    yield "| root | tried | killed | equivalent | unexplained | killed % | score % | mean seconds |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    for root, tried in found.items():
        if not tried:
            continue
        killed = sum(result.killed for result in tried)
        equivalent = sum(not result.killed and result.id in reasons for result in tried)
        left = len(tried) - killed - equivalent
        raw, score = 100 * killed / len(tried), 100 * killed / max(1, len(tried) - equivalent)
        spent = mean(result.seconds for result in tried)
        yield f"| {root} | {len(tried)} | {killed} | {equivalent} | {left} | {raw:.1f} | {score:.1f} | {spent:.1f} |"
    yield ""
    yield "| killed by | " + " | ".join(found) + " |"
    yield "| --- |" + " ---: |" * len(found)
    counts = {root: Counter(_kind(result.by) for result in tried if result.killed) for root, tried in found.items()}
    for kind in KINDS:
        yield f"| {KINDS[kind]} | " + " | ".join(str(counts[root][kind]) for root in found) + " |"
    yield ""


KINDS: Final = {
    "stream": "a stream of the gate",
    "wrong": "a wrong implementation that was let through",
    "tests": "a test",
    "time": "a crash or an endless loop",
    "import": "the import",
}


def _kind(by: str) -> str:
    if "out of time" in by:
        return "time"
    word = by.replace("/", " ").replace(":", " ").split(" ")[0]
    return word if word in KINDS else "import"


def _survivors(found: dict[str, list[Result]], reasons: dict[str, str]) -> Iterator[str]:
    for root, tried in found.items():
        alive = sorted((result for result in tried if not result.killed), key=lambda result: result.id)
        for title, chosen in (
            ("equivalent", [result for result in alive if result.id in reasons]),
            ("unexplained", [result for result in alive if result.id not in reasons]),
        ):
            if not chosen:
                continue
            yield f"## {root}: {title}\n"
            for result in chosen:
                module, _, rest = result.id.partition(" | ")
                operator = rest.rsplit(" | ", 2)[-2]
                reason = f"{reasons[result.id]}\n" if result.id in reasons else ""
                yield f"`{module}`, {operator}\n\n```diff\n{result.diff}\n```\n\n{reason}"
