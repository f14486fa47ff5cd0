"""Rules that spec and implementation each state in their own way, compared: CrossHair searches for a difference.

Both sides take the same scalars and give plain values. Errors count by their type, or, where both reject with a code,
by the code.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from rollproof.properties.strategies.rollouts.staged_calls import bare_record
from rollproof.properties.symbolic import boundary
from rollproof.properties.symbolic.build import accepted, pick
from rollproof.properties.symbolic.group import counted, request, rollout
from rollproof.properties.symbolic.lineage import masked
from rollproof.properties.symbolic.media import ITEM, bundle
from rollproof.properties.symbolic.routes import plan_of
from rollproof.properties.symbolic.rule import pair
from rollproof.properties.symbolic.terminal import CALLS, manifest
from rollproof.spec import (
    assembly,
    bundles,
    completion,
    digest,
    envelope,
    lineage,
    plan,
    route_boundary,
    spans,
    terminal,
    values,
)
from rollproof.spec import group as spec_group
from rollproof.spec import rows as spec_rows
from rollproof.spec.cut_records import Completion, Cut, TrainedRow
from rollproof.spec.records import CallRecord, LinkSpan, RouteAssemblyPlan
from rollproof.spec.rejections import Code, Rejected
from rollproof.spec.tensor import Tensor

# Which pairs there are is known without torch; only to compare their sides takes our implementation.
with suppress(ModuleNotFoundError):
    import numpy as np
    import torch

    from rollproof.impl import assembly as impl_assembly
    from rollproof.impl import base64 as impl_base64
    from rollproof.impl import bundles as impl_bundles
    from rollproof.impl import checks as impl_checks
    from rollproof.impl import completion as impl_completion
    from rollproof.impl import digest as impl_digest
    from rollproof.impl import envelope as impl_envelope
    from rollproof.impl import group as impl_group
    from rollproof.impl import lineage as impl_lineage
    from rollproof.impl import outcomes as impl_outcomes
    from rollproof.impl import plan as impl_plan
    from rollproof.impl import route_boundary as impl_route_boundary
    from rollproof.impl import spans as impl_spans
    from rollproof.impl import terminal as impl_terminal


def result_of(function: Callable[..., object], *arguments: object) -> object:
    """Return what a function returns, or the code with which it rejects."""
    try:
        return function(*arguments)
    except Rejected as rejected:
        return rejected.code.code


def code_of(function: Callable[..., object], *arguments: object) -> str:
    """Return the code with which a function rejects, or "accepted"."""
    found = result_of(function, *arguments)
    return found if isinstance(found, str) else "accepted"


@pair("1", ("RECEIPT-2", "ROUTE-5"), "all integers", (2**63,))
class Length:
    """Which integers are lengths."""

    @staticmethod
    def spec(value: int) -> bool:
        return values.is_length(value)

    @staticmethod
    def impl(value: int) -> bool:
        return impl_checks.is_length(value)


@pair("2", ("DIGEST-2", "DIGEST-3"), "integers from -2**64 to 2**64", (-(2**63),))
class ExtrasInteger:
    """How an integer in the extras is encoded, and which have no encoding."""

    @staticmethod
    def spec(value: int) -> bytes | None:
        return digest.extra(value) if -(2**64) <= value <= 2**64 else None

    @staticmethod
    def impl(value: int) -> bytes | None:
        if not -(2**64) <= value <= 2**64:
            return None
        encoded = bytearray()
        impl_digest.encode_extra(value, encoded, 64)
        return bytes(encoded)


@pair("3", "TERMINAL-1", "all manifests of 3 calls", (0, 1, 2))
class TerminalChoice:
    """The terminal call, or the reason for none."""

    @staticmethod
    def spec(first: int, second: int, third: int) -> object:
        return terminal.select_terminal(manifest(first % 4, second % 4, third % 4))

    @staticmethod
    def impl(first: int, second: int, third: int) -> object:
        return impl_terminal.select_terminal(manifest(first % 4, second % 4, third % 4))


def roots(first: int, second: int, unstamped: int) -> list[CallRecord]:
    """Return two roots with their times of admission; ``unstamped`` says which of them have none."""
    stamps = None if unstamped in (1, 3) else first, None if unstamped in (2, 3) else second
    return [bare_record(call, None, admitted_at=stamp) for call, stamp in zip(CALLS, stamps, strict=False)]


@pair("3", "TERMINAL-1", "2 roots, all integers as times, any of them unstamped", (5, 4, 0))
class TerminalRoot:
    """Which of two roots is preferred."""

    @staticmethod
    def spec(first: int, second: int, unstamped: int) -> object:
        return terminal.select_terminal(roots(first, second, unstamped))

    @staticmethod
    def impl(first: int, second: int, unstamped: int) -> object:
        return impl_terminal.select_terminal(roots(first, second, unstamped))


@pair("4", ("LINEAGE-2", "LINEAGE-3"), "all masks of 4 tokens", (False, False, True, True))
class CarryBoundary:
    """How many tokens a call carries and generates, or why it is refused."""

    @staticmethod
    def spec(first: bool, second: bool, third: bool, fourth: bool) -> object:
        return result_of(lineage.carry_length, masked([first, second, third, fourth]))

    @staticmethod
    def impl(first: bool, second: bool, third: bool, fourth: bool) -> object:
        mask = np.array([pick((False, True), flag) for flag in (first, second, third, fourth)])
        lengths, ordered = impl_lineage._generation(mask, np.array([0, 4]))
        if not ordered[0]:
            return Code.INVALID_MASK_ORDER.code
        return 4 - int(lengths[0]) if lengths[0] else Code.EMPTY_GENERATION.code


@pair("6", "ROUTE-4", "all integers", (3, 2, 4))
class SpanClassification:
    """Whether a span is full, tail or sentinel."""

    @staticmethod
    def spec(carry_len: int, generation_len: int, staged_route_len: int) -> str:
        return plan.classify_span(carry_len, generation_len, staged_route_len).value

    @staticmethod
    def impl(carry_len: int, generation_len: int, staged_route_len: int) -> str:
        return impl_plan.classify(carry_len, generation_len, staged_route_len)


@pair("6", ("ROUTE-4", "ROUTE-7"), "all integers", (3, 2, 4))
class FragmentUse:
    """How many tokens stay sentinel, and which rows of the fragment follow."""

    @staticmethod
    def spec(carry_len: int, generation_len: int, staged_route_len: int) -> tuple[int, int, int]:
        use = plan.fragment_use(carry_len, generation_len, staged_route_len)
        return use.unrouted, use.first, use.rows

    @staticmethod
    def impl(carry_len: int, generation_len: int, staged_route_len: int) -> tuple[int, int, int]:
        use = impl_plan.use_of(impl_plan.RouteSpan("r/c", carry_len, generation_len, staged_route_len, 1, "0" * 64))
        return use.unrouted, use.first, use.rows


@pair("6", "ROUTE-5", "one span, lengths from -1 to 2, row lengths from -1 to 4", (1, 2, 3))
class PlanValidity:
    """Whether a plan is valid."""

    @staticmethod
    def spec(carry: int, generation: int, row: int) -> str:
        lengths = carry % 4 - 1, generation % 4 - 1, 0
        return code_of(plan.check_plan, plan_of(lengths, expected=row % 6 - 1))

    @staticmethod
    def impl(carry: int, generation: int, row: int) -> str:
        lengths = carry % 4 - 1, generation % 4 - 1, 0
        return code_of(impl_plan.validate, plan_of(lengths, expected=row % 6 - 1))


@pair("10", "BOUNDARY-4", "one span after another, indices from -1 to 2, positions from 0 to 2", (2, 2, 1, 1, 1, True))
class BoundaryValidity:
    """Which sidecars a span of a plan may have."""

    @staticmethod
    def spec(index: int, position: int, staged: int, before: int, generation: int, repair: bool) -> bool:
        later = boundary.span(generation % 2, staged % 2, index % 4 - 1, repair)
        return accepted(plan.check_boundary, later, position % 3, boundary.span(before % 2, 0))

    @staticmethod
    def impl(index: int, position: int, staged: int, before: int, generation: int, repair: bool) -> bool:
        later = boundary.span(generation % 2, staged % 2, index % 4 - 1, repair)
        return result_of(impl_plan._boundary_fault, later, position % 3, boundary.span(before % 2, 0)) is None


@pair("10", ("BOUNDARY-2", "BOUNDARY-11"), "2 spans, generated and staged lengths from 0 to 2", (2, 1, 2, 1, True))
class UnrepairedPositions:
    """Which tokens of a row nobody repaired."""

    @staticmethod
    def spec(first: int, second: int, staged: int, later: int, repair: bool) -> list[int]:
        return list(route_boundary.unrepaired_positions(two_spans(first, second, staged, later, repair)))

    @staticmethod
    def impl(first: int, second: int, staged: int, later: int, repair: bool) -> object:
        return result_of(impl_route_boundary.unrepaired_positions, two_spans(first, second, staged, later, repair))


def two_spans(first: int, second: int, staged: int, later: int, repair: bool) -> RouteAssemblyPlan:
    """Return a plan of two spans that each carry one token, with lengths from 0 to 2."""
    spans = boundary.span(first % 3, staged % 3), boundary.span(second % 3, later % 3, first % 3, repair)
    return boundary.plan_with(*spans)


@pair("6", "ROUTE-2", "all integers", (7,))
class Base64Length:
    """How many characters base64 writes."""

    @staticmethod
    def spec(byte_count: int) -> int:
        return envelope.base64_length(byte_count)

    @staticmethod
    def impl(byte_count: int) -> int:
        return impl_base64.encoded_length(byte_count)


def envelope_of(first: int, second: int) -> str:
    """Return an envelope of one zero byte, whose first dimension is spelled with up to 2 characters."""
    alphabet = (*"019+-_ ", "")
    return f"nrlre1:int8:{pick(alphabet, first % 8)}{pick(alphabet, second % 8)}x1x1:AA=="


@pair("6", "ROUTE-2", "dimensions of up to 2 characters: digits, signs and others", (1, 7))
class DimensionSpelling:
    """Which spellings of a dimension are read."""

    @staticmethod
    def spec(first: int, second: int) -> str:
        return code_of(envelope.decode_routes, envelope_of(first, second))

    @staticmethod
    def impl(first: int, second: int) -> str:
        return code_of(impl_envelope.decode_routes, envelope_of(first, second))


def vector(first: int, second: int) -> list[int]:
    """Return a vector of two expert ids from -2 to 2."""
    return [pick(range(-2, 3), first % 5), pick(range(-2, 3), second % 5)]


@pair("6", ("ROUTE-8", "ROUTE-9"), "vectors of 2 ids from -2 to 2, of 2 experts", (2, 3, False))
class VectorValidity:
    """Whether a vector of expert ids is accepted, and which rule it breaks first."""

    @staticmethod
    def spec(first: int, second: int, allow_repeated: bool) -> str:
        ids = Tensor.of("int16", vector(first, second), (1, 1, 2))
        return code_of(assembly.check_ids, ids, "r/a", 2, allow_repeated)

    @staticmethod
    def impl(first: int, second: int, allow_repeated: bool) -> str:
        ids = torch.tensor([[vector(first, second)]], dtype=torch.int16)
        return code_of(impl_assembly.check_ids, ids, "r/a", 2, allow_repeated)


def item(offset: int, length: int, start: int, run: int, after: int, last: int) -> dict[str, object]:
    """Return a media item with two embedding runs."""
    runs = [[start, run], [after, last]]
    fields = {"placeholder_offset": offset, "placeholder_length": length, "embedding_spans": runs}
    return spans.item_value(ITEM) | fields


@pair("7", "MEDIA-7", "all integers", (4, 6, 4, 2, 7, 3))
class EmbeddingRuns:
    """Which offsets, lengths and runs make a media item."""

    @staticmethod
    def spec(offset: int, length: int, start: int, run: int, after: int, last: int) -> bool:
        return accepted(spans.parse_items, [item(offset, length, start, run, after, last)])

    @staticmethod
    def impl(offset: int, length: int, start: int, run: int, after: int, last: int) -> bool:
        return accepted(impl_spans.read_items, [item(offset, length, start, run, after, last)])


def one_run(offset: int, length: int, height: int, width: int) -> dict[str, object]:
    """Return an image whose placeholder is one embedding run."""
    fields = {"placeholder_offset": offset, "placeholder_length": length, "embedding_spans": [[offset, length]]}
    return spans.item_value(ITEM) | fields | {"imgs_sizes": [[height, width]]}


@pair("7", "MEDIA-7", "all integers", (4, 3, 7, 2))
class DisjointItems:
    """Which two items may follow on each other."""

    @staticmethod
    def spec(offset: int, length: int, next_offset: int, next_length: int) -> bool:
        return accepted(spans.parse_items, [one_run(offset, length, 1, 1), one_run(next_offset, next_length, 1, 1)])

    @staticmethod
    def impl(offset: int, length: int, next_offset: int, next_length: int) -> bool:
        items = [one_run(offset, length, 1, 1), one_run(next_offset, next_length, 1, 1)]
        return accepted(impl_spans.read_items, items)


@pair("7", "MEDIA-7", "all integers", (1, 2**31))
class ImageSides:
    """Which heights and widths an item may have."""

    @staticmethod
    def spec(height: int, width: int) -> bool:
        return accepted(spans.parse_items, [one_run(0, 1, height, width)])

    @staticmethod
    def impl(height: int, width: int) -> bool:
        return accepted(impl_spans.read_items, [one_run(0, 1, height, width)])


def named_images(height: int, frames: int) -> dict[str, Tensor]:
    """Return a bundle of 2 patches and two images, the second of one patch; with frames, as one or two videos."""
    size = pick(range(1, 4), height % 3), 1
    return bundle(2, [size, (1, 1)], pick(((), (2,), (1, 1), (1,), (2, 1)), frames % 5))


@pair("7", "MEDIA-1", "2 patches of an image of up to 3 x 1 patches and one of 1; frames that add up or not", (0, 1))
class BundleValidity:
    """Whether sizes, frames and patches make a bundle."""

    @staticmethod
    def spec(height: int, frames: int) -> bool:
        return accepted(bundles.check_bundle, named_images(height, frames))

    @staticmethod
    def impl(height: int, frames: int) -> bool:
        named = named_images(height, frames)
        held = {
            name: torch.tensor(value.values(), dtype=getattr(torch, value.dtype)).reshape(value.shape)
            for name, value in named.items()
        }
        return accepted(impl_bundles.read_bundle, held)


def completed(prefix: int, tail: int, first: int, second: int) -> tuple[list[Cut], list[Completion], list[TrainedRow]]:
    """Return a cut after one token, its completion, and the trained row with two generated tokens."""
    row = TrainedRow("r", (LinkSpan("a", 1, 0), LinkSpan("n", 0, 2)), (9, first, second))
    return [Cut("s", "r", (7,))], [Completion("s", "n", prefix, tail)], [row]


@pair("7", ("RETAINED-13", "RETAINED-14", "RETAINED-16"), "all integers as counts and ids", (1, 1, 7, 8))
class CompletionFaults:
    """What is wrong with a completion."""

    @staticmethod
    def spec(prefix: int, tail: int, first: int, second: int) -> list[tuple[str, str]]:
        found = completion.check_completion(*completed(prefix, tail, first, second), (), ())
        return [(violation.code.code, violation.subject) for violation in found]

    @staticmethod
    def impl(prefix: int, tail: int, first: int, second: int) -> list[tuple[str, str]]:
        found = impl_completion.check_completion(*completed(prefix, tail, first, second), (), ())
        return [(violation.code.code, violation.subject) for violation in found]


@pair("8", "GROUP-9", "2 rollouts, each valid or not, all integers as versions and fallback", (True, False, 3, 2, 9))
class VersionRange:
    """The weight-version range of a group."""

    @staticmethod
    def spec(first: bool, second: bool, older: int, newer: int, fallback: int) -> tuple[int, int]:
        both = ((first, older), (second, newer))
        rollouts = [rollout(valid, min_wv=version, max_wv=version) for valid, version in both]
        return spec_rows.weight_range(request(2, fallback_weight_version=fallback), rollouts)

    @staticmethod
    def impl(first: bool, second: bool, older: int, newer: int, fallback: int) -> tuple[int, int]:
        found = [version if valid else None for valid, version in ((first, older), (second, newer))]
        rollouts = [
            impl_outcomes.FinalizedRow("r", version is not None, None, 0.0, min_wv=version, max_wv=version)
            for version in found
        ]
        return impl_group.weight_range(request(2, fallback_weight_version=fallback), rollouts)


@pair("8", ("GROUP-2", "GROUP-7"), "0 to 2 rollouts, receipts and rewards, as many mask flags as rewards", (2, 2, 2))
class GroupArguments:
    """Which numbers of arguments are taken."""

    @staticmethod
    def spec(rollouts: int, receipts: int, rewards: int) -> bool:
        return spec_group.argument_error(counted(rollouts, receipts, rewards, rewards)) is None

    @staticmethod
    def impl(rollouts: int, receipts: int, rewards: int) -> bool:
        return impl_group.argument_error(counted(rollouts, receipts, rewards, rewards)) is None
