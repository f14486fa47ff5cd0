"""Input from outside is bounded: depth, number of values, and the size that numbers imply."""

from __future__ import annotations

import json
import resource
import subprocess
import sys

import pytest
from attrs import evolve
from click.testing import CliRunner

from rollproof.properties.cli import main
from rollproof.properties.strategies.rollouts.recipes import BigInt, JsonText, Nest, Repeat, Rows
from rollproof.properties.wire.bounds import (
    DEEPEST,
    MOST_VALUES,
    TooDeep,
    TooLarge,
    check_size,
    nesting,
    parse_json,
    read_json,
    recipe_bytes,
)
from rollproof.properties.wire.codec import dump
from rollproof.spec.judge.requests import (
    CutGeneration,
    ExecutePlan,
    ExtrasDigest,
    FinalizeRollout,
    LinearizeGrowth,
    ParseReceipt,
)
from rollproof.spec.judge.staging import Staging
from rollproof.spec.records import ReassemblerConfig, RouteAssemblyPlan
from rollproof.spec.tensor import Tensor

CONFIG = ReassemblerConfig("train", "staging", 0, 100, router_replay_enabled=True, routed_dims=(30_000, 30_000))
ROUTED = FinalizeRollout(CONFIG, "r", None, 0.0, Staging({}))
PLAN = ExecutePlan(RouteAssemblyPlan("staging", (), (), 2**40), {}, (1, 1), 2**40)
HUGE = {
    "rows": ParseReceipt({"manifest": Rows({}, 2**40)}),
    "text": ExtrasDigest({"": Repeat("ab", 2**40)}),
    "nest": ExtrasDigest({"": Nest("list", 2**40)}),
    "digits": ExtrasDigest({"": BigInt(2**40)}),
    "rows of rows": ParseReceipt(Rows({"": Rows({"": Repeat("a", 2**10)}, 2**10)}, 2**10)),
    "calls": LinearizeGrowth(1, 2**40),
    "cuts": CutGeneration(None, [], None, "float32", 2**40),
    "tokens": PLAN,
    "dimensions": ROUTED,
}


@pytest.mark.parametrize("name", HUGE)
def test_a_request_of_a_few_bytes_does_not_stand_for_gigabytes(name, tmp_path):
    with pytest.raises(TooLarge, match="expected at most"):
        check_size(HUGE[name])
    path = tmp_path / "replay.json"
    replay = {"format": "rollproof-replay-1", "implementation": "spec", "invariant": "RECEIPT-1"}
    path.write_text(json.dumps(replay | {"request": dump(HUGE[name])}))
    result = CliRunner().invoke(main, ["replay", str(path)])
    assert result.exit_code == 2
    assert result.output.count("\n") == 1
    assert "expected at most" in result.output


def test_what_is_refused_at_once_may_be_as_large_as_it_likes():
    check_size(evolve(PLAN, canonical_len=2**62))
    check_size(evolve(ROUTED, config=evolve(CONFIG, routed_dims=(4, 2))))


def test_data_may_stand_for_a_multiple_of_itself():
    tokens = Tensor("int64", (1, 2**16), bytes(2**19))
    routes = Tensor("int16", (1, 2**16, 64, 8), bytes(2**26))
    config = evolve(CONFIG, routed_dims=(64, 8))
    with pytest.raises(TooLarge):
        check_size(evolve(ROUTED, config=config, staging=Staging({"r/c": {"token_ids_delta": tokens}})))
    held = {"token_ids_delta": tokens, "routed_experts": routes}
    check_size(evolve(ROUTED, config=config, staging=Staging({"r/c": held})))


def test_recipes_are_measured_where_they_are():
    assert recipe_bytes({"a": [1, ("b", None)]}) == 0
    assert recipe_bytes({"a": [Repeat("xy", 5)], "b": (BigInt(20),)}) == 20
    assert recipe_bytes(JsonText("[[],[]]")) >= 300


@pytest.mark.parametrize("text", ["[" * 300 + "]" * 300, '{"a":' * 100_000, "[" * 100_000])
def test_deep_json_is_refused_in_one_way(text):
    for data in (text, text.encode()):
        with pytest.raises(TooDeep, match=f"nested more than {DEEPEST} deep"):
            parse_json(data)


def test_the_bounds_themselves_are_allowed(tmp_path):
    assert nesting(parse_json("[" * DEEPEST + "]" * DEEPEST)) == DEEPEST
    (tmp_path / "a").write_text('{"a": [1, "[[["]}')
    assert read_json(tmp_path / "a") == {"a": [1, "[[["]}


def test_small_values_are_counted_before_they_are_built():
    """As a process of its own, whose memory ends where the values would not fit."""
    source = f"""
import resource
from rollproof.properties.wire.bounds import TooLarge, parse_json
data = b"[" + b"[],[]," * {MOST_VALUES} + b"[]]"
resource.setrlimit(resource.RLIMIT_DATA, (2**29, 2**29))
try:
    parse_json(data)
except TooLarge as error:
    print(error)
"""
    assert resource.RLIMIT_DATA
    ended = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert "values, expected at most" in ended.stdout
