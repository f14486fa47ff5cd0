"""The same seed gives the same requests: whatever was drawn before, and however a process hashes."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from rollproof.properties.gate.profiles import PROFILES
from rollproof.properties.gate.run import drawn
from rollproof.properties.gate.streams import request_streams
from rollproof.spec.judge.requests import Area


def requests_of(areas):
    """Return a digest of the requests of every stream that is not listed, by area and name."""
    return {
        f"{area}: {stream.name}": hashlib.sha256(repr(drawn(stream, examples, 0)).encode()).hexdigest()
        for area in areas
        for stream in request_streams(area)
        if not stream.every
        for examples in [PROFILES["ci"].examples(stream.weight, drives_code=bool(stream.codes))]
    }


@pytest.mark.deep
def test_requests_depend_on_their_seed_alone(hashing_otherwise):
    """Hypothesis repeats values of what looks alike, and two NaN look alike where they have one address."""
    code = (
        f"import json, sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import test_repeatable as there;"
        "print(json.dumps(there.requests_of(reversed(there.Area))))"
    )
    command = [sys.executable, "-c", code]
    run = subprocess.run(command, env=hashing_otherwise, check=True, capture_output=True, text=True)
    there, here = json.loads(run.stdout), requests_of(Area)
    assert len(here) > 400
    assert {name for name in here | there if here.get(name) != there.get(name)} == set()
