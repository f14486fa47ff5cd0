"""Mutants of rebuilding one rollout (sections 4 and 5)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from attrs import evolve

from rollproof.properties.mutants.mutant import Mutant, passing, patches
from rollproof.spec.outcomes import RolloutOutcome
from rollproof.spec.plane import DataPlane, Get, Outage
from rollproof.spec.records import LinearizedRow, Receipt
from rollproof.spec.rejections import Code, Rejected
from rollproof.spec.staged import Row
from rollproof.spec.tensor import Tensor


def with_dead_branches(linearize: Any) -> Any:
    """Append every staged call's tokens, on the chain or not."""

    def wrong(receipt: Receipt, calls: Any) -> LinearizedRow:
        row: LinearizedRow = linearize(receipt, calls)
        dead = [call for call in calls if call.model_call_id not in row.model_call_ids]
        return evolve(
            row,
            token_ids=row.token_ids + tuple(token for call in dead for token in call.token_ids_delta),
            token_mask=row.token_mask + tuple(mask for call in dead for mask in call.token_mask_delta),
            logprobs=row.logprobs + tuple(value for call in dead for value in call.generation_log_probs_delta),
        )

    return wrong


def versions_of_chain(_: Any) -> Any:
    """Read the range off the terminal chain."""

    def wrong(receipt: Receipt) -> tuple[int, int]:
        by_id = {record.model_call_id: record for record in receipt.manifest}
        versions, current = [], receipt.terminal_model_call_id
        while current is not None:
            versions.append(by_id[current].weight_version)
            current = by_id[current].parent_call_id
        return min(versions), max(versions)

    return wrong


def rounded_logprobs(lay_out: Any) -> Any:
    """Write log-probabilities with a few decimals, so that they come back as other float64 values."""

    def wrong(rollout_id: str, chain: Any) -> LinearizedRow:
        row: LinearizedRow = lay_out(rollout_id, chain)
        return evolve(row, logprobs=tuple(float(f"{value:.6g}") for value in row.logprobs))

    return wrong


def raise_on_nan(is_usable_reward: Any) -> Any:
    """Fail an assertion instead of rejecting."""

    def wrong(reward: Any) -> bool:
        if isinstance(reward, float) and reward != reward:
            raise AssertionError("reward is NaN")
        return bool(is_usable_reward(reward))

    return wrong


def any_number(is_usable_reward: Any) -> Any:
    """Accept NaN and infinity as numbers."""
    return lambda reward: is_usable_reward(reward) or (isinstance(reward, float) and not is_finite(reward))


def is_finite(value: float) -> bool:
    """Return whether it is a number at all, and not infinite."""
    return value - value == 0.0


def null_is_zero(finalize_rollout: Any) -> Any:
    """Take a missing reward for 0.0."""

    def wrong(config: Any, rollout_id: str, receipt: Any, reward: Any, *rest: Any) -> Any:
        return finalize_rollout(config, rollout_id, receipt, 0.0 if reward is None else reward, *rest)

    return wrong


def outage_is_a_miss(fetch: Any) -> Any:
    """Take every error while reading for missing rows."""

    def wrong(*arguments: Any) -> Any:
        try:
            return fetch(*arguments)
        except Outage:
            raise Rejected(Code.MISSING_STAGING_ROW) from None

    return wrong


def row_by_row(fetch: Any) -> Any:
    """Look rows up one by one before they are read together."""

    def wrong(config: Any, receipt: Receipt, plane: DataPlane) -> Any:
        staged = fetch(config, receipt, plane)
        read = plane.effects[-1]
        if isinstance(read, Get):
            plane.effects[-1:-1] = [Get(read.partition, (key,), read.columns) for key in read.keys]
        return staged

    return wrong


def what_is_there(finalize_rollout: Any) -> Any:
    """Take the rows that the data plane returned for the whole manifest."""

    def wrong(config: Any, rollout_id: str, receipt: Any, reward: Any, plane: DataPlane, *rest: Any) -> Any:
        manifest = receipt.get("manifest") if type(receipt) is dict else None
        if type(manifest) is list:
            there = [row for row in manifest if type(row) is not dict or row.get("staging_key") in plane.rows]
            receipt = {**receipt, "manifest": there}
        return finalize_rollout(config, rollout_id, receipt, reward, plane, *rest)

    return wrong


def anybodys(check_identity: Any) -> Any:
    """Ignore whose receipt it is."""
    return lambda _rollout_id, receipt: check_identity(receipt.rollout_id, receipt)


def one_id_more(decode_row: Any) -> Any:
    """Accept the vocabulary's size as an id."""

    def wrong(row: Row, *, vocab_size: int | None, **options: Any) -> Any:
        return decode_row(row, vocab_size=None if vocab_size is None else vocab_size + 1, **options)

    return wrong


def flat_only(scalar: Any) -> Any:
    """Require one dimension of a scalar column."""

    def wrong(row: Row, name: str, *dtype: str) -> int:
        if name in row and len(row[name].shape) > 1:
            raise ValueError(f"{name}: {row[name].shape}")
        return int(scalar(row, name, *dtype))

    return wrong


def columns_changed(change: Any) -> Any:
    """Repair staged token columns before they are checked: ``change`` gets all three by name."""

    def replacement(decode_row: Any) -> Any:
        def wrong(row: Row, **options: Any) -> Any:
            names = ("token_ids_delta", "token_mask_delta", "generation_logprobs_delta")
            held = {name: row[name] for name in names if name in row and len(row[name].shape) == 2}
            if len(held) < len(names) or [held[name].dtype for name in names] != ["int64", "float32", "float32"]:
                return decode_row(row, **options)
            values = change({name: held[name].values() for name in names})
            repaired = {name: Tensor.of(held[name].dtype, values[name], (1, len(values[name]))) for name in names}
            lengths = {name: Tensor.of("int64", [len(values["token_ids_delta"])]) for name in ("delta_len",)}
            return decode_row({**row, **repaired, **(lengths if "delta_len" in row else {})}, **options)

        return wrong

    return replacement


def cut_to_shortest(columns: Mapping[str, tuple[Any, ...]]) -> dict[str, tuple[Any, ...]]:
    """Cut all columns to the length of the shortest one."""
    length = min(map(len, columns.values()))
    return {name: values[:length] for name, values in columns.items()}


def filled_with_zeros(columns: Mapping[str, tuple[Any, ...]]) -> dict[str, tuple[Any, ...]]:
    """Fill missing log-probabilities with 0.0, and drop surplus ones."""
    length = len(columns["token_ids_delta"])
    padded = (*columns["generation_logprobs_delta"], *[0.0] * length)
    return {**columns, "generation_logprobs_delta": padded[:length]}


def nan_is_zero(columns: Mapping[str, tuple[Any, ...]]) -> dict[str, tuple[Any, ...]]:
    """Replace a NaN log-probability by 0.0."""
    values = columns["generation_logprobs_delta"]
    return {**columns, "generation_logprobs_delta": tuple(0.0 if value != value else value for value in values)}


def folded(rebuild: Any) -> Any:
    """Report a digest that does not match as one more invalid row."""

    def wrong(receipt: Receipt, staged: Any) -> LinearizedRow:
        try:
            row: LinearizedRow = rebuild(receipt, staged)
        except Rejected as rejected:
            if rejected.subject != Code.CORRUPT_DIGEST.code:
                raise
            raise Rejected(Code.INVALID_STAGING_ROW, rejected.detail) from None
        return row

    return wrong


def of_rollout(change: Any) -> Any:
    """Return another finalized rollout than the rebuilt one."""

    def replacement(finalize_rollout: Any) -> Any:
        def wrong(*arguments: Any) -> RolloutOutcome:
            outcome: RolloutOutcome = finalize_rollout(*arguments)
            return evolve(outcome, rollout=change(outcome))

        return wrong

    return replacement


def keyless_if_rejected(outcome: RolloutOutcome) -> Any:
    """Return no keys for a rejected rollout."""
    return outcome.rollout if outcome.rollout.valid else evolve(outcome.rollout, staging_keys=())


def versions_if_rejected(outcome: RolloutOutcome) -> Any:
    """Return 0 for the weight versions that a rejected rollout does not have."""
    return outcome.rollout if outcome.rollout.valid else evolve(outcome.rollout, min_wv=0, max_wv=0)


def keys_of_chain(outcome: RolloutOutcome) -> Any:
    """Return only the keys of the chain for an accepted rollout."""
    if outcome.row is None or outcome.receipt is None:
        return outcome.rollout
    keys = {record.model_call_id: record.staging_key for record in outcome.receipt.manifest}
    return evolve(outcome.rollout, staging_keys=tuple(keys[call_id] for call_id in outcome.row.model_call_ids))


MUTANTS: Final = (
    Mutant(
        "dead-branch-tokens",
        "ROLLOUT-7",
        "contract section 4",
        "Tokens of dead branches follow the terminal chain's.",
        patches(judge__oracle__linearize=with_dead_branches, rollout__linearize=with_dead_branches),
    ),
    Mutant(
        "min-wv-of-chain",
        "ROLLOUT-8",
        "contract section 5",
        "The weight-version range forgets dead branches.",
        patches(rollout__version_range=versions_of_chain),
    ),
    Mutant(
        "float64-logprobs",
        "ROLLOUT-10",
        "contract section 1",
        "Log-probabilities are float64 values that only round to the sampled float32.",
        patches(lineage__lay_out=rounded_logprobs),
    ),
    Mutant(
        "raises-on-nan-reward",
        "ROLLOUT-1",
        "huggingface/trl 6427, 5775; radixark/miles 2814",
        "A NaN reward raises and takes the group down.",
        patches(rollout__is_usable_reward=raise_on_nan),
    ),
    Mutant(
        "outage-is-a-missing-row",
        "ROLLOUT-2",
        "contract section 5",
        "An outage of the data plane rejects the rollout, which may be perfectly good.",
        patches(rollout__fetch=outage_is_a_miss),
    ),
    Mutant(
        "rows-read-one-by-one",
        "ROLLOUT-3",
        "contract decision D15",
        "Every staged row is a read of its own.",
        patches(rollout__fetch=row_by_row),
    ),
    Mutant(
        "fewer-rows-accepted",
        "ROLLOUT-4",
        "Ascend/TransferQueue 126, 160",
        "Asked for three rows the queue answers with two, and the two are taken for all.",
        patches(judge__oracle__finalize_rollout=what_is_there),
    ),
    Mutant(
        "identity-unchecked",
        "ROLLOUT-4",
        "NVIDIA-NeMo/RL 3923, 3794",
        "Results that were compacted are paired with other inputs: a receipt counts for whom it is handed in for.",
        patches(rollout__check_identity=anybodys),
    ),
    Mutant(
        "vocabulary-size-is-an-id",
        "ROLLOUT-4",
        "vllm-project/vllm 53029",
        "The id that is as large as the vocabulary, drawn where all logits were NaN, is published.",
        patches(rollout__decode_row=one_id_more),
    ),
    Mutant(
        "scalars-of-one-shape",
        "ROLLOUT-4",
        "redai-studio/Relax 283",
        "A reader that expects (1,) rejects what the queue returns as (1, 1).",
        patches(staged__scalar=flat_only),
    ),
    Mutant(
        "carry-logprobs-unchecked",
        "ROLLOUT-5",
        "verl-project/verl 3287; modelscope/ms-swift 8427",
        "Log-probabilities that are one position off the mask, on carry tokens too, are not invalid.",
        patches(staged__check_call=passing("on a carry token"), digest__check_call=passing("on a carry token")),
    ),
    Mutant(
        "columns-cut-to-the-shortest",
        "ROLLOUT-4",
        "sgl-project/sglang 20724, 26510; THUDM/slime 1861, 1440; NVIDIA/TensorRT-LLM 18190",
        "After a retraction that changed one column only, all are cut to the shortest.",
        patches(rollout__decode_row=columns_changed(cut_to_shortest)),
    ),
    Mutant(
        "missing-logprobs-are-zero",
        "ROLLOUT-4",
        "vllm-project/vime 70",
        "Missing log-probabilities are filled with 0.0, surplus ones are cut.",
        patches(rollout__decode_row=columns_changed(filled_with_zeros)),
    ),
    Mutant(
        "nan-logprob-is-neutral",
        "ROLLOUT-4",
        "huggingface/trl 6693",
        "A log-probability that is NaN is read as 0.0.",
        patches(rollout__decode_row=columns_changed(nan_is_zero)),
    ),
    Mutant(
        "tampering-is-a-type-error",
        "ROLLOUT-5",
        "contract decision D17",
        "A row that does not digest to its digest is reported as malformed.",
        patches(rollout__rebuild=folded),
    ),
    Mutant(
        "rejected-rollout-forgets-keys",
        "ROLLOUT-6",
        "contract section 5",
        "A rejected rollout names no staging keys: its rows stay staged for ever.",
        patches(judge__oracle__finalize_rollout=of_rollout(keyless_if_rejected)),
    ),
    Mutant(
        "rejected-rollout-has-versions",
        "ROLLOUT-6",
        "contract section 5",
        "A rejected rollout took part under weight version 0.",
        patches(judge__oracle__finalize_rollout=of_rollout(versions_if_rejected)),
    ),
    Mutant(
        "null-reward-is-zero",
        "ROLLOUT-9",
        "huggingface/trl 6427, 5775",
        "A rollout whose reward is null is trained with 0.0.",
        patches(judge__oracle__finalize_rollout=null_is_zero),
    ),
    Mutant(
        "nan-reward-published",
        "ROLLOUT-9",
        "radixark/miles 2814",
        "A NaN reward reaches the group's baseline.",
        patches(rollout__is_usable_reward=any_number),
    ),
    Mutant(
        "keys-of-chain-only",
        "ROLLOUT-11",
        "contract section 5",
        "An accepted rollout names the keys of its chain alone: dead branches stay staged.",
        patches(judge__oracle__finalize_rollout=of_rollout(keys_of_chain)),
    ),
)
