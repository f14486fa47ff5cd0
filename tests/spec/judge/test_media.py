"""Each invariant of media alone on a wrong answer made by hand: no later one may be needed to notice."""

from __future__ import annotations

import pytest
from answers import FINALIZE, VALID, column, complaint, group, once
from attrs import evolve

from rollproof.spec.constants import MEDIA_TENSOR_COLUMNS
from rollproof.spec.judge.requests import Accepted
from rollproof.spec.outcomes import GroupOutcome
from rollproof.spec.plane import Get, Put


@pytest.mark.parametrize(
    "wrong",
    [
        GroupOutcome((Put("train", ("g_g0",), (column(2.0),)),), group(2, 6)),
        GroupOutcome((Put("train", ("g_g0",), (column(1.0),)),), group(2, 7)),
        GroupOutcome((Get("staging", (), ()),), group(2, 6)),
    ],
)
def test_a_group_with_media_agrees_in_its_rows_and_in_its_result(wrong: GroupOutcome) -> None:
    right = GroupOutcome((Put("train", ("g_g0",), (column(1.0),)),), group(2, 6))
    assert complaint("MEDIA-11", once(), Accepted((right,)), Accepted((right,))) is None
    assert complaint("MEDIA-11", once(), Accepted((right,)), Accepted((wrong,)))


def test_media_that_are_read_twice_are_noticed() -> None:
    request = evolve(FINALIZE, config=evolve(FINALIZE.config, capture_media=True))
    read = Get("staging", ("r/a",), (MEDIA_TENSOR_COLUMNS[0],))
    once_read, twice_read = (evolve(VALID, value=evolve(VALID.value, effects=(read,) * count)) for count in (1, 2))
    assert complaint("MEDIA-5", request, once_read, once_read) is None
    assert complaint("MEDIA-5", request, once_read, twice_read)
