"""Advisories that end an audit with exit code 1: ``--fail-on advisory/NAME[=N]``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rollproof.properties.audit.judge import ADVISORY
from rollproof.properties.errors import InputError
from rollproof.spec.advisories import SHARED_PROMPT, names
from rollproof.spec.constants import AS_STAGED
from rollproof.spec.records import ReassemblerConfig

EVERYTHING = ReassemblerConfig(
    router_replay_enabled=True, capture_media=True, stop_token_ids=(0,), route_boundary=AS_STAGED, top_logprobs=1
)
NAMES = tuple(f"{ADVISORY}{name}" for name in (*names(EVERYTHING, current=0), SHARED_PROMPT))
"""All that there are: a run without routes, media, stop tokens or a current version reports fewer."""


def read_thresholds(given: Iterable[str]) -> dict[str, int]:
    """Return the count from which on each of these advisories is a failure. Raises ``InputError``."""
    limits: dict[str, int] = {}
    for text in given:
        name, equals, number = text.partition("=")
        if name not in NAMES:
            raise InputError(f"--fail-on {text}: no such advisory; there are {', '.join(NAMES)}")
        if equals and not (number.isascii() and number.isdigit() and len(number) < 19 and int(number) > 0):
            raise InputError(f"--fail-on {text}: expected {name}=N, N an integer from 1 on")
        limits[name] = int(number) if equals else 1
    return limits


def exceeded(limits: Mapping[str, int], counted: Mapping[str, int]) -> dict[str, int]:
    """Return the advisories that reached their limit, with the count."""
    return {name: counted[name] for name, limit in limits.items() if counted.get(name, 0) >= limit}
