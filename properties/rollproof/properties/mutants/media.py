"""Mutants of media and of the retained-media hash (section 7)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from attrs import evolve

from rollproof.properties.mutants.mutant import Mutant, patches
from rollproof.spec.constants import MEDIA_TENSOR_COLUMNS, MEDIA_TENSOR_SHA256
from rollproof.spec.judge.views import VALUELESS, Entry, Held
from rollproof.spec.media import mismatch
from rollproof.spec.plane import Get
from rollproof.spec.rejections import Code, Rejected
from rollproof.spec.tensor import ITEM_SIZES, Tensor


def nothing(_: Any) -> Any:
    """Leave the check out."""
    return lambda *_arguments: None


def columns_mistaken(join: Any) -> Any:
    """Report a mixed chain as unreadable columns."""

    def wrong(*arguments: Any) -> Any:
        try:
            return join(*arguments)
        except Rejected as rejected:
            raise Rejected(Code.INVALID_MEDIA_COLUMNS, rejected.detail) from None

    return wrong


def read_twice(read_bundles: Any) -> Any:
    """Read each call's media separately, and then all of them."""

    def wrong(config: Any, carriers: Any, plane: Any) -> Any:
        for staged in carriers:
            plane.effects.append(Get(config.staging_partition, (staged.key,), MEDIA_TENSOR_COLUMNS))
        return read_bundles(config, carriers, plane)

    return wrong


def spelled_is_meant(check_placeholders: Any) -> Any:
    """Take a row without media whose prompt repeats a token for one that lost its pixels."""

    def wrong(row: Any, chain: Any, bundles: Any) -> None:
        check_placeholders(row, chain, bundles)
        for staged in chain:
            if not bundles and len(set(staged.call.token_ids_delta)) < len(staged.call.token_ids_delta):
                with mismatch(staged.call.model_call_id):
                    raise ValueError("placeholders without pixels")

    return wrong


def only_where_present(row_columns: Any) -> Any:
    """Give a row without media no media columns."""

    def wrong(fields: Mapping[str, Any], index: int) -> Any:
        return row_columns({name: rows for name, rows in fields.items() if rows[index] is not None}, index)

    return wrong


def other_order(group_fields: Any) -> Any:
    """Put media rows in another order than token rows."""
    return lambda rollouts: {name: rows[::-1] for name, rows in group_fields(rollouts).items()}


def never_with_media(rollout_metrics: Any) -> Any:
    """Report a constant media row rate."""
    return lambda outcomes: rollout_metrics(outcomes) | {"finalize/media_row_rate": 0.0}


def laid_out_otherwise(named_values: Any) -> Any:
    """Hash a transposed tensor in its memory order."""

    def wrong(entries: tuple[Entry, ...] | None) -> Any:
        values = named_values(entries)
        for entry in entries or ():
            if entry.held is Held.TRANSPOSED:
                tensor, size = entry.tensor, ITEM_SIZES[entry.tensor.dtype]
                items = [tensor.data[start : start + size] for start in range(0, len(tensor.data), size)]
                values[entry.name] = Tensor(tensor.dtype, tensor.shape, b"".join(items[::-1]))
        return values

    return wrong


def bytes_of_anything(named_values: Any) -> Any:
    """Hash whatever has bytes: quantized tensors without their scale."""

    def wrong(entries: tuple[Entry, ...] | None) -> Any:
        values = named_values(entries)
        for entry in entries or ():
            if entry.held in VALUELESS:
                values[entry.name] = entry.tensor
        return values

    return wrong


def no_scalars(tensor_bytes: Any) -> Any:
    """Refuse to hash a tensor without dimensions."""

    def wrong(tensor: Tensor) -> bytes:
        if not tensor.shape:
            raise Rejected(Code.MEDIA_CAPTURE_REJECTED, "no dimensions")
        return bytes(tensor_bytes(tensor))

    return wrong


def without_digest(cut_extras: Any) -> Any:
    """Keep only the spans in the prefix row."""

    def wrong(*arguments: Any) -> Any:
        extras = cut_extras(*arguments)
        return extras if extras is None else {name: extras[name] for name in extras if name != MEDIA_TENSOR_SHA256}

    return wrong


def cut_anything(cut_extras: Any) -> Any:
    """Cut media that cannot be retained, without a digest."""

    def wrong(extras: Any, *rest: Any) -> Any:
        try:
            return cut_extras(extras, *rest)
        except Rejected:
            return dict(extras or {})

    return wrong


def forgiving(restore: Any) -> Any:
    """Let a restore continue with other media than the cut saw."""

    def wrong(row: Any, fresh: Any) -> Any:
        try:
            return restore(row, fresh)
        except Rejected as rejected:
            if rejected.code is not Code.RETAINED_MEDIA_CHANGED:
                raise
            return fresh

    return wrong


def always_changed(restore: Any) -> Any:
    """Report every fault as a change."""

    def wrong(row: Any, fresh: Any) -> Any:
        try:
            return restore(row, fresh)
        except Rejected as rejected:
            raise Rejected(Code.RETAINED_MEDIA_CHANGED, rejected.detail) from None

    return wrong


def copied(restore: Any) -> Any:
    """Let a restore return copies in place of the fresh tensors."""

    def wrong(row: Any, fresh: Any) -> Any:
        media = restore(row, fresh)
        if media is None or not media.tensors:
            return media
        copies = {name: evolve(tensor) for name, tensor in media.tensors.items()}
        return evolve(media, tensors=copies)

    return wrong


def without(code: Code) -> Any:
    """Leave one kind of violation unreported."""
    return lambda check: lambda *arguments: tuple(found for found in check(*arguments) if found.code is not code)


def first_only(check: Any) -> Any:
    """Report only the first violation."""
    return lambda *arguments: check(*arguments)[:1]


def log_adds_up(faults: Any) -> Any:
    """Compare the log's own total with itself."""

    def wrong(cut: Any, completion: Any, generated: Any) -> Any:
        own = (*generated, *([0] * 1000))[: completion.prefix_len + completion.tail_len]
        return (code for code in faults(cut, completion, own) if code is not Code.PREFIX_TOKENS)

    return wrong


def of_joined(change: Callable[[list[Tensor]], list[Tensor]]) -> Any:
    """Join the parts of a chain in another way."""
    return lambda append: lambda tensors, dimension: append(change(list(tensors)), dimension)


MUTANTS: Final = (
    Mutant(
        "bundles-unchecked",
        "MEDIA-1",
        "contract decision D18",
        "A bundle's sums are not compared with its patches.",
        patches(bundles__check_bundle=nothing),
    ),
    Mutant(
        "parts-joined-backwards",
        "MEDIA-2",
        "modelscope/ms-swift 6376",
        "Images of later turns come before those of earlier ones.",
        patches(bundles__append=of_joined(lambda parts: parts[::-1])),
    ),
    Mutant(
        "later-images-lost",
        "MEDIA-2",
        "modelscope/ms-swift 6376",
        "Images of later turns never reach training.",
        patches(bundles__append=of_joined(lambda parts: parts[:1])),
    ),
    Mutant(
        "mixed-chain-misnamed",
        "MEDIA-3",
        "contract section 7",
        "A mixed chain is reported as unreadable columns.",
        patches(bundles__join=columns_mistaken),
    ),
    Mutant(
        "sentinels-in-float32",
        "MEDIA-4",
        "contract section 9",
        "Rows without media are staged in another pixel dtype than the column's.",
        patches(bundles__absent=lambda absent: lambda name, _dtype: absent(name, "float32")),
    ),
    Mutant(
        "media-read-call-by-call",
        "MEDIA-5",
        "contract decision D15",
        "A rollout's media are read call by call.",
        patches(media__read_bundles=read_twice),
    ),
    Mutant(
        "spelled-placeholder-rejected",
        "MEDIA-6",
        "NVIDIA-NeMo/RL 3631",
        "A text row that merely spells placeholders is dropped.",
        patches(media__check_placeholders=spelled_is_meant),
    ),
    Mutant(
        "pixels-not-compared",
        "MEDIA-7",
        "NVIDIA-NeMo/RL 3940, 3980, 3858; PrimeIntellect-ai/prime-rl 1739, 2786, 2013; huggingface/trl 5927",
        "Spans are not compared with the bundle: resized or dropped pixels pass.",
        patches(media__check_media=nothing),
    ),
    Mutant(
        "placeholders-not-compared",
        "MEDIA-7",
        "NVIDIA-NeMo/RL 3940; StarsfieldAI/R1-V 91",
        "Spans are not compared with the tokens: placeholders expanded twice pass.",
        patches(media__check_tokens=nothing),
    ),
    Mutant(
        "text-rows-without-media-columns",
        "MEDIA-8",
        "contract section 8",
        "A row without media contributes no logical row.",
        patches(media__row_columns=only_where_present),
    ),
    Mutant(
        "media-rows-shuffled",
        "MEDIA-9",
        "huggingface/trl 6619",
        "Media rows are ordered by another permutation than token rows.",
        patches(media__group_fields=other_order),
    ),
    Mutant(
        "mixed-group-published",
        "MEDIA-10",
        "contract decision D19",
        "A row of another pixel dtype, width or modality stays in the group.",
        patches(media__fit_into_group=lambda _: lambda outcome, *_rest: outcome),
    ),
    Mutant(
        "media-row-rate-constant",
        "MEDIA-11",
        "contract section 8",
        "The media row rate says 0 for every group.",
        patches(metrics__rollout_metrics=never_with_media),
    ),
    Mutant(
        "tensors-without-borders",
        "RETAINED-1",
        "sgl-project/sglang 25462; ai-dynamo/dynamo 8340; vllm-project/vllm 55203",
        "Tensors are hashed without dtype, dimensions and length.",
        patches(retained__tensor_bytes=lambda _: lambda tensor: tensor.data),
    ),
    Mutant(
        "null-is-empty",
        "RETAINED-1",
        "the review's sketch",
        "No media and an empty set of tensors have one digest.",
        patches(judge__oracle__media_digest=lambda digest: lambda tensors, *scheme: digest(tensors or {}, *scheme)),
    ),
    Mutant(
        "hashed-as-it-lies",
        "RETAINED-2",
        "contract decision D11",
        "A transposed tensor is hashed in memory order.",
        patches(judge__oracle__named_values=laid_out_otherwise),
    ),
    Mutant(
        "valueless-hashed",
        "RETAINED-3",
        "the review's sketch",
        "Quantized tensors are hashed without their scale, null entries as nothing.",
        patches(judge__oracle__named_values=bytes_of_anything),
    ),
    Mutant(
        "scalars-refused",
        "RETAINED-4",
        "the review's sketch",
        "A tensor without dimensions cannot be hashed.",
        patches(retained__tensor_bytes=no_scalars),
    ),
    Mutant(
        "digest-cut-short",
        "RETAINED-5",
        "LMCache/LMCache 4783; raullenchai/Rapid-MLX 22",
        "The digest is cut to 16 bits.",
        patches(judge__oracle__media_digest=lambda digest: lambda *asked: digest(*asked)[:20]),
    ),
    Mutant(
        "final-row-without-pixels",
        "RETAINED-6",
        "contract section 7",
        "The pixels are staged with no row of the call.",
        patches(judge__oracle__staged_media=lambda staged: lambda _bundle, dtype: staged(None, dtype)),
    ),
    Mutant(
        "prefix-without-digest",
        "RETAINED-7",
        "contract section 7",
        "The prefix row keeps the spans and no digest.",
        patches(judge__oracle__cut_extras=without_digest),
    ),
    Mutant(
        "cut-of-anything",
        "RETAINED-8",
        "contract section 7",
        "Media that cannot be retained are cut without a digest.",
        patches(judge__oracle__cut_extras=cut_anything),
    ),
    Mutant(
        "forgiving-restore",
        "RETAINED-9",
        "contract section 7",
        "A restore goes on with other media than the cut saw.",
        patches(judge__oracle__restore=forgiving),
    ),
    Mutant(
        "everything-is-a-change",
        "RETAINED-10",
        "contract section 7",
        "A row that was tampered with is called a change of media.",
        patches(judge__oracle__restore=always_changed),
    ),
    Mutant(
        "restore-returns-copies",
        "RETAINED-11",
        "contract section 7",
        "A restore returns copies in place of the fresh tensors.",
        patches(judge__oracle__restore=copied),
    ),
    Mutant(
        "completions-uncounted",
        "RETAINED-12",
        "contract section 7",
        "A cut that completes twice or never is not reported.",
        patches(judge__oracle__check_completion=without(Code.COMPLETION_COUNT)),
    ),
    Mutant(
        "own-sum-checked",
        "RETAINED-13",
        "NVIDIA-NeMo/RL 4583 review",
        "The log's own total is checked, which is written as prefix plus tail.",
        patches(completion__faults=log_adds_up),
    ),
    Mutant(
        "terminal-cut-needs-a-tail",
        "RETAINED-13",
        "contract decision D25",
        "A call that was complete when it was cut is reported for adding nothing.",
        patches(completion__faults=lambda faults: lambda cut, *rest: faults(evolve(cut, terminal=False), *rest)),
    ),
    Mutant(
        "prefix-tokens-unchecked",
        "RETAINED-14",
        "contract section 7",
        "Counts alone are compared: one token dropped and one repeated go unnoticed.",
        patches(judge__oracle__check_completion=without(Code.PREFIX_TOKENS)),
    ),
    Mutant(
        "retired-keys-forgotten",
        "RETAINED-15",
        "contract section 7",
        "Prefix rows that outlive their call are not reported.",
        patches(judge__oracle__check_completion=without(Code.RETIRED_KEY_LIVE)),
    ),
    Mutant(
        "first-violation-only",
        "RETAINED-16",
        "contract section 7",
        "Only the first violation is reported.",
        patches(judge__oracle__check_completion=first_only),
    ),
)
