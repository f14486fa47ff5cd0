"""The contract's worked example (section 9): two calls of group g7, rollout g7_g0."""

from __future__ import annotations

from typing import Final

from rollproof.properties.strategies.history import NO_DIGEST, Call, History, rehash
from rollproof.spec.constants import MODE_TEXT, MODE_TOKEN_IN
from rollproof.spec.records import StagedCall
from rollproof.spec.tensor import to_float32


def worked_example(second_version: int = 4) -> History:
    """The example; with another weight version of the second call it is the mixed-version case."""
    first = StagedCall(
        rollout_id="g7_g0",
        model_call_id="c1",
        parent_call_id=None,
        mode=MODE_TEXT,
        prev_len=0,
        delta_len=4,
        cum_len=4,
        weight_version=4,
        token_ids_delta=(10, 11, 12, 13),
        token_mask_delta=(0.0, 0.0, 1.0, 1.0),
        generation_log_probs_delta=(0.0, 0.0, to_float32(-0.1), to_float32(-0.2)),
        extras_digest=NO_DIGEST,
        chain_hash=NO_DIGEST,
        cumulative_hash=NO_DIGEST,
        digest=NO_DIGEST,
    )
    second = StagedCall(
        rollout_id="g7_g0",
        model_call_id="c2",
        parent_call_id="c1",
        mode=MODE_TOKEN_IN,
        prev_len=4,
        delta_len=3,
        cum_len=7,
        weight_version=second_version,
        token_ids_delta=(20, 21, 22),
        token_mask_delta=(0.0, 1.0, 1.0),
        generation_log_probs_delta=(0.0, to_float32(-0.3), to_float32(-0.4)),
        extras_digest=NO_DIGEST,
        chain_hash=NO_DIGEST,
        cumulative_hash=NO_DIGEST,
        digest=NO_DIGEST,
    )
    calls = (Call(first, response_id="resp-1"), Call(second, response_id="resp-2"))
    return rehash(History("g7_g0", calls, "c2"))


WORKED_EXAMPLE: Final = worked_example()
