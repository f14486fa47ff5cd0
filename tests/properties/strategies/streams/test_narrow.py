"""Each narrow stream has its feature by construction, so that what shows only there falls at every seed."""

from __future__ import annotations

import pytest

from rollproof.properties.evidence.thickness import LEAST, Asked, shown
from rollproof.properties.gate.profiles import PROFILES
from rollproof.properties.gate.run import drawn
from rollproof.properties.mutants import MUTANTS
from rollproof.properties.strategies.rollouts.recipes import realize_request
from rollproof.properties.strategies.streams import narrow, narrow_media, narrow_routes
from rollproof.spec.judge.catalogue import BY_ID
from rollproof.spec.judge.oracle import answer
from rollproof.spec.judge.requests import Accepted, Area, Refused

SEEDS = range(2)
CHAPTERS = (narrow, narrow_routes, narrow_media)
STREAMS = {stream.name: stream for area in Area for chapter in CHAPTERS for stream in chapter.streams(area)}
BY_NAME = {mutant.name: mutant for mutant in MUTANTS}

EVERY_REQUEST = {
    "refused:nests": "extras-of-any-depth",
    "refused:a minus zero": "minus-zero-has-a-digest",
    "valid:scalars of two dimensions": "scalars-of-one-shape",
    "break:missing beside the chain": "fewer-rows-accepted",
    "stopped earlier": "cut-off-by-any-call",
    "equal samplings": "equals-share",
    "large rewards": "sums-in-float16",
    "failed puts": "failed-put-clears",
    "cut off with routes": "finish-reason-of-routed-calls-ignored",
    "taught by rejected": "rejected-rollout-teaches",
    "broken boundary: no number": "boundary-index-crashes",
    "engine rows behind a prefix": "cached-prefix-left-out",
    "sidecars of retried calls": "sidecar-of-a-retried-sibling",
    "spelled placeholders": "spelled-placeholder-rejected",
    "merged by no square": "merge-factor-square",
    "broken behind routes": "media-of-routed-calls-unchecked",
}
"""Streams each of whose requests shows a mutant."""
SOME_REQUESTS = {
    "break:huge rewards": ("huge-rewards-raise",),
    "plausible bounds": ("implausible-in-float64",),
    "break:rewards of other types": ("rewards-of-any-type",),
    "break:selections left out": ("selection-not-required",),
    "odd log-probs": ("missing-logprobs-are-zero", "nan-logprob-is-neutral"),
    "largest ids": ("vocabulary-size-is-an-id",),
    "spans with all their routes": ("tail-before-full",),
    "stop tokens": ("stop-token-lost-unnoticed",),
    "wide ids": ("routes-in-uint8", "routes-narrowed-to-int16"),
    "spellings of a boundary": ("other-boundaries-unnoticed",),
    "mixed kinds": ("mixed-chain-misnamed",),
    "equal areas": ("sizes-of-the-first-part",),
}
"""Listed streams some of whose requests show a mutant: the others are neighbours."""


def asked(stream, profile, seed):
    count = PROFILES[profile].examples(stream.weight, drives_code=bool(stream.codes))
    return [Asked(stream.name, request) for request in drawn(stream, count, seed)]


@pytest.mark.parametrize("name", EVERY_REQUEST)
def test_every_request_shows_what_the_stream_is_for(name):
    stream, mutant = STREAMS[name], BY_NAME[EVERY_REQUEST[name]]
    assert stream.area is BY_ID[mutant.invariant].area
    for seed in SEEDS[:1] if stream.every else SEEDS:
        found = asked(stream, "ci", seed)
        assert shown(mutant, found, len(found)).total() == len(found) >= LEAST


@pytest.mark.parametrize(("name", "mutant"), [(name, one) for name, each in SOME_REQUESTS.items() for one in each])
def test_enough_of_a_list_shows_what_it_is_for(name, mutant):
    found = asked(STREAMS[name], "quick", 0)
    assert LEAST <= shown(BY_NAME[mutant], found, len(found) + 1).total() <= len(found)


def test_all_streams_are_tried_here():
    # Calls without media have one dtype of pixels, and nothing else to vary: there are three.
    assert STREAMS.keys() - EVERY_REQUEST.keys() - SOME_REQUESTS.keys() == {"without media"}


def test_they_are_few():
    assert sum(len(asked(stream, "ci", 0)) for stream in STREAMS.values()) < 400


@pytest.mark.parametrize("name", [name for name in STREAMS if name.startswith(("refused:", "valid:"))])
def test_names_say_how_requests_are_answered(name):
    kind = Refused if name.startswith("refused:") else Accepted
    for one in asked(STREAMS[name], "quick", 0):
        found = answer(realize_request(one.request))
        assert isinstance(found, kind)
        assert kind is Refused or found.value.rollout.valid
