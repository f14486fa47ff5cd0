"""Mutants of router replay and of the media hash that are faults met in public, beside the ones per invariant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from attrs import evolve

from rollproof.properties.mutants.mutant import Mutant, patches
from rollproof.spec.constants import BUNDLE_FRAMES
from rollproof.spec.rejections import Code, Rejected
from rollproof.spec.staged import StagedRow
from rollproof.spec.tensor import Tensor


def any_routed_length(rollout_plan: Any) -> Any:
    """Take the staged routes for those of the call's tokens, however many there are."""

    def wrong(config: Any, row: Any, chain: Sequence[StagedRow], keys: Any) -> Any:
        own = [
            staged if staged.routed_len == 0 else evolve(staged, routed_len=staged.call.delta_len) for staged in chain
        ]
        return rollout_plan(config, row, own, keys)

    return wrong


def no_advisory(name: str) -> Any:
    """Report 0 for one advisory, where it is reported at all."""

    def replacement(advisories: Any) -> Any:
        def wrong(*arguments: Any) -> Any:
            counts = advisories(*arguments)
            return counts | {f"advisory/{name}": 0.0} if f"advisory/{name}" in counts else counts

        return wrong

    return patches(metrics__advisories=replacement)


def in_any_order(tensor_bytes: Any) -> Any:
    """Sum up the bytes of a tensor rather than hash them in order."""
    return lambda tensor: tensor_bytes(Tensor(tensor.dtype, tensor.shape, bytes(sorted(tensor.data))))


def without_tail(tensor_bytes: Any) -> Any:
    """Ignore the last byte of a tensor."""
    return lambda tensor: tensor_bytes(evolve(tensor, data=tensor.data[:-1] + b"\x00" if tensor.data else b""))


def in_words(tensor_bytes: Any) -> Any:
    """Hash bytes four at a time, and require a whole number of such words."""

    def wrong(tensor: Tensor) -> bytes:
        if len(tensor.data) % 4:
            raise Rejected(Code.MEDIA_CAPTURE_REJECTED, f"{len(tensor.data)} bytes")
        return bytes(tensor_bytes(tensor))

    return wrong


def without_frames(media_digest: Any) -> Any:
    """Leave the number of sampled frames out of a video's identity."""

    def wrong(tensors: Mapping[Any, Any] | None, *scheme: str) -> str:
        kept = None if tensors is None else {name: held for name, held in tensors.items() if name != BUNDLE_FRAMES}
        return str(media_digest(kept, *scheme))

    return wrong


MUTANTS: Final = (
    Mutant(
        "routed-length-unchecked",
        "ROUTE-17",
        "sgl-project/sglang 20964; vllm-project/vllm 37094; radixark/miles 893",
        "One route too few, or those of earlier turns as well, are taken for the call's own.",
        patches(routes__rollout_plan=any_routed_length),
    ),
    Mutant(
        "routeless-calls-unnoticed",
        "ROUTE-18",
        "vllm-project/vllm 39917",
        "A call that lost its routes to a preemption is not counted.",
        no_advisory("routeless_calls"),
    ),
    Mutant(
        "repeated-routes-unnoticed",
        "ROUTE-18",
        "sgl-project/sglang 36404, 12162",
        "Token after token with one and the same route is not counted.",
        no_advisory("repeated_route_run"),
    ),
    Mutant(
        "digest-ignores-order",
        "RETAINED-5",
        "LMCache/LMCache 4783; raullenchai/Rapid-MLX 22",
        "Two pictures with their bytes in another order have one digest.",
        patches(retained__tensor_bytes=in_any_order),
    ),
    Mutant(
        "digest-ignores-the-tail",
        "RETAINED-1",
        "LMCache/LMCache 4783; raullenchai/Rapid-MLX 22",
        "Two pictures that differ in their last byte have one digest.",
        patches(retained__tensor_bytes=without_tail),
    ),
    Mutant(
        "digest-ignores-frame-counts",
        "RETAINED-1",
        "vllm-project/vllm 55203",
        "One video at two frame counts has one digest.",
        patches(judge__oracle__media_digest=without_frames),
    ),
    Mutant(
        "digest-of-whole-words",
        "RETAINED-4",
        "radixark/miles 1262",
        "Three bfloat16 cannot be hashed: their bytes are not divisible by four.",
        patches(retained__tensor_bytes=in_words),
    ),
)
