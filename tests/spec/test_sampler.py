"""Section 12: candidates of generated tokens, and what is off by default."""

from __future__ import annotations

from functools import partial

import pytest
from attrs import evolve

from rollproof.properties.adapters.asking import ask
from rollproof.properties.adapters.ours import Ours
from rollproof.properties.strategies.rollouts.route_boundary import EXAMPLE
from rollproof.properties.strategies.rollouts.worked import WORKED_EXAMPLE
from rollproof.properties.strategies.streams.between import in_one_group
from rollproof.spec.constants import TOPK_COLUMNS, TOPK_IDS, TOPK_LOGPROBS
from rollproof.spec.judge.oracle import answer
from rollproof.spec.judge.requests import FinalizeRollout
from rollproof.spec.judge.staging import Staging
from rollproof.spec.records import ReassemblerConfig
from rollproof.spec.rejections import Code, Stage
from rollproof.spec.tensor import Tensor

TOPK = {
    "c1": {
        TOPK_IDS: Tensor.of("int32", [12, 5, 13, 6], (1, 2, 2)),
        TOPK_LOGPROBS: Tensor.of("float32", [-0.5, -1.0, -2.0, -1.0], (1, 2, 2)),
    },
    "c2": {
        TOPK_IDS: Tensor.of("int32", [1, 2, 3, 4], (1, 2, 2)),
        TOPK_LOGPROBS: Tensor.of("float32", [0.0, float("-inf"), -1.0, -1.0], (1, 2, 2)),
    },
}
HISTORY = evolve(WORKED_EXAMPLE, calls=tuple(evolve(call, topk=TOPK[call.id]) for call in WORKED_EXAMPLE.calls))
CONFIG = ReassemblerConfig(top_logprobs=2)


def published(config, history=HISTORY):
    renamed = history.renamed("a")
    (outcome,) = answer(in_one_group(config, [renamed.finalize(config)])).value
    return outcome


def test_generated_tokens_have_candidates_and_others_zeros():
    outcome = published(CONFIG)
    (row,) = outcome.rows
    assert row.columns[TOPK_IDS].values() == (0, 0, 0, 0, 12, 5, 13, 6, 0, 0, 1, 2, 3, 4)
    assert row.columns[TOPK_IDS].shape == row.columns[TOPK_LOGPROBS].shape == (7, 2)
    assert outcome.group.metrics["advisory/topk_unordered"] == 1.0
    assert outcome.group.metrics["advisory/topk_disagreement"] == 2.0


def test_without_the_capability_candidates_are_neither_read_nor_published():
    outcome = published(ReassemblerConfig())
    (row,) = outcome.rows
    assert not set(TOPK_COLUMNS) & set(row.columns)
    assert not [name for name in outcome.group.metrics if "topk" in name]
    assert not set(TOPK_COLUMNS) & set(outcome.effects[0].columns)


@pytest.mark.parametrize("ids", [[3, 4], [3, 3]])
@pytest.mark.parametrize("asked", [answer, partial(ask, Ours())], ids=["spec", "impl"])
def test_what_two_capabilities_reject_has_the_code_that_the_catalogue_lists_first(asked, ids):
    topk = {
        TOPK_IDS: Tensor.of("int32", ids, (1, 1, 2)),
        TOPK_LOGPROBS: Tensor.of("float32", [-1.0, -2.0], (1, 1, 2)),
    }
    staging = Staging({key: {**row, **topk} for key, row in EXAMPLE.rows.items()})
    config = ReassemblerConfig(router_replay_enabled=True, top_logprobs=2)
    rollout = asked(FinalizeRollout(config, EXAMPLE.rollout_id, EXAMPLE.receipt, 1.0, staging)).value.rollout
    broken = [Code.TOPK_VALUE_RANGE] * (ids == [3, 3]) + [Code.UNSUPPORTED_ROUTE_BOUNDARY]
    assert rollout.rejection_reason.startswith(min(broken, key=list(Code).index).code)
    stages = [code.stage for code in Code]
    assert (
        max(map(stages.index, (Stage.REBUILD, Stage.MEDIA))) < stages.index(Stage.SAMPLER) < stages.index(Stage.ROUTES)
    )


@pytest.mark.parametrize("count", [-1, True, 1.0, None, "2"])
def test_a_number_of_candidates_that_is_none_is_refused(count):
    with pytest.raises(ValueError, match="top_logprobs: got"):
        ReassemblerConfig(top_logprobs=count)
