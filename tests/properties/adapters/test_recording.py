"""The gate's plane fails with errors that look like misses, and answers in every manner that the protocol allows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from planted import SwallowsErrors

from rollproof.impl.dataplane.memory import MemoryDataPlane
from rollproof.properties.adapters.asking import ask
from rollproof.properties.adapters.ours import Ours
from rollproof.properties.adapters.recording import OUTAGES, Manner, RecordingPlane
from rollproof.properties.machine.model import CONFIG, RolloutPlan, group_of
from rollproof.spec.judge.catalogue import CATALOGUE
from rollproof.spec.judge.oracle import answer
from rollproof.spec.judge.requests import FinalizeGroups, GroupStep
from rollproof.spec.judge.staging import Faults, Staging


class Swallowing(Ours):
    reassembler = SwallowsErrors


def broken(implementation: Any, request: Any) -> set[str]:
    expected, actual = answer(request), ask(implementation, request)
    return {item.id for item in CATALOGUE if item.covers(request) and item.check(request, expected, actual)}


def test_an_outage_that_is_taken_for_a_miss_is_found():
    """Of the requests whose read fails, those whose error is a KeyError or ValueError show it."""
    found = 0
    for calls in range(1, len(OUTAGES) + 1):
        group = group_of(1, [RolloutPlan(((1, 1),) * calls)], [])
        request = FinalizeGroups(CONFIG, (GroupStep(group.request, Faults(failing_get=0)),), Staging(group.rows))
        assert broken(Ours(), request) == set()
        found += "GROUP-6" in broken(Swallowing(), request)
    assert found >= 4


ROWS = group_of(1, [RolloutPlan(((1, 1), (1, 1)))], []).rows


def read(manner: Manner, columns: list[str]) -> Any:
    plane = RecordingPlane.over(MemoryDataPlane(), Staging(ROWS), "staging")
    plane.manner = manner
    return plane.get_samples(list(ROWS), "staging", columns)


def test_manners_change_how_a_read_is_answered():
    asked = ["token_ids_delta", "delta_len"]
    assert list(read(Manner(), asked).keys()) == asked
    assert list(read(Manner(reversed_columns=True), ["delta_len", "token_ids_delta"]).keys()) == asked
    assert "unasked" in read(Manner(extra_column=True), asked)
    assert read(Manner(scalars_as_vectors=True), asked)["delta_len"].shape == (2, 1)
    assert read(Manner(dense=True), asked)["token_ids_delta"].layout is torch.strided
    assert read(Manner(), ["routed_experts", *asked]).batch_size[0] == 2
    with pytest.raises(KeyError, match="field 'routed_experts'"):
        read(Manner(column_error=True), ["routed_experts", *asked])


def test_manners_follow_from_what_is_staged():
    made = {Manner.of(Staging({f"k{index}": {}})) for index in range(200)}
    assert len(made) == 2**5
