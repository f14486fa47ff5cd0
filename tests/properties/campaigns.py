"""Fuzzing campaigns of planted faults."""

from __future__ import annotations

from rollproof.properties.fuzz.campaign import Campaign, run_campaign


def campaign(implementation, area, *, examples, corpus=None, workers=1, changed=lambda: None, seed=0):
    run = Campaign.of(f"planted:{type(implementation).__name__}", implementation, (area,), seed, corpus)
    run_campaign(run, examples, None, workers, changed)
    return run


def outcome(run):
    """Return what must not depend on the number of workers."""
    return (
        {name: (state.rounds, state.hits) for name, state in run.states.items()},
        {name: run.corpus.of(name) for name in run.states},
        {key: (finding.request, run.times[key]) for key, finding in run.findings.items()},
        (run.done, run.rounds, run.replayed, run.crashes, run.report.codes),
    )
