"""Requests of the area retained: digests, cuts and restores, completions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from attrs import evolve
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from rollproof.properties.strategies.breaks.media import SPAN_EDITS
from rollproof.properties.strategies.named_tensors import (
    HARD_PAIRS,
    PAIR_EDITS,
    Entries,
    different,
    digests,
    draw_scheme,
    equal,
    relaid,
    valueless,
    valueless_pairs,
)
from rollproof.properties.strategies.rollouts.media import MediaKind, draw_kind, draw_sizes, expand, make_bundle
from rollproof.properties.strategies.rollouts.routes import fragments, route_payload
from rollproof.properties.strategies.scalars import EXTRAS, Bytes, draw_bytes
from rollproof.properties.strategies.stream import Stream, StreamsOf, listed
from rollproof.properties.strategies.streams.completion import COMPLETION_EDITS, completions
from rollproof.spec.constants import (
    BUNDLE_PIXELS,
    MEDIA_BLAKE3,
    MEDIA_DIGEST_FIELDS,
    MEDIA_SHA256,
    MEDIA_SPANS,
    ROUTED_EXPERTS,
)
from rollproof.spec.digest import extras_digest
from rollproof.spec.judge.requests import Area, CutGeneration, Restore, SameMedia
from rollproof.spec.judge.views import VALUELESS, Entry
from rollproof.spec.rejections import Code
from rollproof.spec.retained import CallMedia, PrefixRow, cut_extras, media_digest
from rollproof.spec.routes import staged_routes
from rollproof.spec.spans import item_value
from rollproof.spec.staged import metadata_json
from rollproof.spec.tensor import Tensor

# ── cuts and restores ───────────────────────────────────────────────────────────────────────────────────────────────


def draw_media(decide: Bytes, kind: MediaKind) -> tuple[list[dict[str, Any]], dict[str, Tensor]]:
    """Draw spans and bundle of one call."""
    items = [draw_sizes(decide, kind) for _ in range(1 + decide.below(3))]
    made = expand(kind, items, range(1, 13), decide.below(8), 18, decide)
    return [item_value(item) for item in made.items], make_bundle(kind, items, decide)


@st.composite
def cuts(draw: DrawFn) -> CutGeneration:
    """Draw calls with and without media, cut up to three times; now and then with invalid spans or pixels."""
    decide = draw_bytes(draw, 96)
    kind = draw_kind(decide)
    spans, bundle = draw_media(decide, kind)
    extras = decide.choose(EXTRAS)
    request = CutGeneration(extras, spans, bundle, kind.pixel_dtype, decide.below(4), draw_scheme(decide))
    if decide.chance(48):
        return evolve(request, spans=[], bundle=None)
    if decide.chance(112):
        decide.choose(SPAN_EDITS)(decide, spans)
    if decide.chance(24):
        request = evolve(request, pixel_dtype="float32" if kind.pixel_dtype != "float32" else "float16")
    return request


def odd_cuts() -> Iterator[CutGeneration]:
    """Yield cuts of two images with each edit of their spans, and with pixels of another dtype."""
    for edit in SPAN_EDITS:
        decide = Bytes(b"")
        kind = draw_kind(decide)
        spans, bundle = draw_media(Bytes(bytes([1])), kind)
        edit(decide, spans)
        yield CutGeneration(None, spans, bundle, kind.pixel_dtype, 1, MEDIA_SHA256)
    yield CutGeneration(None, *draw_media(Bytes(b""), kind), "float16", 1, MEDIA_SHA256)


def prefix_row(extras: Any) -> PrefixRow:
    """Return the row that a cut stages, with its commitment."""
    return PrefixRow(metadata_json(extras), extras_digest(extras))


def entries_of(decide: Bytes, bundle: dict[str, Tensor]) -> Entries:
    """Return a bundle as an engine hands it over: in any order, held in any way."""
    return relaid(decide, tuple(Entry(name, tensor) for name, tensor in bundle.items()))


RestoreEdit = Callable[[Bytes, Restore], Restore]


def of_extras(request: Restore, extras: Any) -> Restore:
    """Return the request with another prefix row, committed to."""
    return evolve(request, row=prefix_row(extras))


def extras_of(decide: Bytes, request: Restore) -> tuple[dict[str, Any], str]:
    """Return the extras of the request's row, media included, and the name under which they hold the digest."""
    scheme = draw_scheme(decide)
    digest = media_digest({entry.name: entry.tensor for entry in request.tensors or ()}, scheme)
    return {MEDIA_SPANS: request.spans, MEDIA_DIGEST_FIELDS[scheme]: digest}, MEDIA_DIGEST_FIELDS[scheme]


def broken_commitment(decide: Bytes, request: Restore) -> Restore:
    """Stage extras in the row that are not those committed to, or not extras at all."""
    data = request.row.extras_metadata_json
    forged = (
        data[:-1] + b',"x":0}',
        data[:-1],
        b"",
        b"null",
        b"[]",
        b"\xff",
        data[:-1] + b',"y":1,"y":1}',
        b" " + data[:-1],
    )
    if decide.chance(64):
        return evolve(request, row=evolve(request.row, extras_digest="0" * 64))
    return evolve(request, row=evolve(request.row, extras_metadata_json=decide.choose(forged)))


def lost_field(decide: Bytes, request: Restore) -> Restore:
    """Drop one of spans and digest, or put in digests of two schemes."""
    extras, name = extras_of(decide, request)
    if decide.chance(64):
        return of_extras(request, {**extras, **dict.fromkeys(MEDIA_DIGEST_FIELDS.values(), extras[name])})
    del extras[decide.choose((MEDIA_SPANS, name))]
    return of_extras(request, extras)


def odd_digest(decide: Bytes, request: Restore) -> Restore:
    """Give the digest another form."""
    extras, name = extras_of(decide, request)
    scheme, _, plain = extras[name].partition(":")
    other = MEDIA_BLAKE3 if scheme == MEDIA_SHA256 else MEDIA_SHA256
    odd: tuple[Any, ...] = (
        plain, f"{scheme[:-1]}2:{plain}", f"{scheme}:{plain.upper()}", f"{scheme}:{plain[:16]}",
        f"{scheme}:{plain}\n", f"{scheme}:", f"{other}:{plain}", "", None, 0, [plain],
    )  # fmt: skip
    return of_extras(request, {**extras, name: decide.choose(odd)})


def odd_spans(decide: Bytes, request: Restore) -> Restore:
    """Put invalid spans into the row."""
    extras, _ = extras_of(decide, request)
    return of_extras(request, {**extras, MEDIA_SPANS: decide.choose((None, {}, "x", 0, [0], [{}]))})


def unhashable(decide: Bytes, request: Restore) -> Restore:
    """Add a fresh tensor that has no digest; perhaps with other spans, which is found later."""
    entries = list(request.tensors or ())
    at = decide.below(len(entries))
    entries[at] = evolve(entries[at], held=decide.choose(tuple(sorted(VALUELESS))))
    return evolve(request, tensors=tuple(entries), spans=request.spans if decide.chance(128) else [])


def unknown_media(decide: Bytes, request: Restore) -> Restore:
    """Send media with the request although the row has none."""
    request = of_extras(request, decide.choose(EXTRAS))
    part = decide.below(3)
    return evolve(request, spans=[] if part == 1 else request.spans, tensors=None if part == 2 else request.tensors)


def other_spans(decide: Bytes, request: Restore) -> Restore:
    """Expand the request's media differently, drop a span, or make one malformed."""
    spans: list[dict[str, Any]] = [
        {name: [list(pair) for pair in value] if type(value) is list else value for name, value in item.items()}
        for item in request.spans
    ]
    if decide.chance(48):
        spans.clear()
    elif decide.chance(48):
        offset = spans[-1]["placeholder_offset"] + 2**20
        spans.append({**spans[-1], "placeholder_offset": offset, "embedding_spans": [[offset, 1]]})
    else:
        decide.choose(SPAN_EDITS)(decide, spans)
    return evolve(request, spans=spans)


def other_tensors(decide: Bytes, request: Restore) -> Restore:
    """Change one of the request's pixels, sizes or names, or drop them all."""
    entries = list(request.tensors or ())
    if decide.chance(48):
        return evolve(request, tensors=decide.choose((None, ())))
    edited = decide.choose(PAIR_EDITS)(decide, entries)
    return evolve(request, tensors=tuple(edited) if edited is not None else tuple(entries[:-1]))


RETAINED_EDITS: Final[dict[Code, tuple[RestoreEdit, ...]]] = {
    Code.MEDIA_CAPTURE_REJECTED: (broken_commitment, lost_field, odd_digest, odd_spans, unhashable, unknown_media),
    Code.RETAINED_MEDIA_CHANGED: (other_spans, other_tensors),
}


@st.composite
def restores(draw: DrawFn, code: Code | None = None) -> Restore:
    """Draw a call resumed with the same media; with ``code``, one that is refused with it."""
    decide = draw_bytes(draw, 96)
    kind = draw_kind(decide)
    spans, bundle = draw_media(decide, kind)
    extras = cut_extras(decide.choose(EXTRAS), CallMedia(spans, bundle), draw_scheme(decide))
    request = Restore(prefix_row(extras), spans, entries_of(decide, bundle))
    if code is None:
        return draw(odd_restores(request, extras)) if decide.chance(96) else request
    edit = decide.choose(RETAINED_EDITS[code])
    request = edit(decide, request)
    two_faults = code is Code.MEDIA_CAPTURE_REJECTED and edit not in (unhashable, unknown_media) and decide.chance(64)
    return other_tensors(decide, request) if two_faults else request


@st.composite
def odd_restores(draw: DrawFn, request: Restore, extras: Any) -> Restore:
    """Return restores that succeed and look unusual: with routes on the row, without media, without items."""
    decide = draw_bytes(draw)
    kind = decide.below(4)
    if kind == 0:
        fragment = draw(fragments(3, (1, 2)))
        whole = {**extras, ROUTED_EXPERTS: route_payload(fragment)}
        encoding, column = staged_routes(whole, 3)
        assert column is not None
        routes = Tensor(column.dtype, column.shape[1:], column.data)
        return evolve(request, row=PrefixRow(metadata_json(whole), extras_digest(whole), routes, encoding))
    if kind == 1:
        return Restore(prefix_row(decide.choose(EXTRAS)), [], decide.choose((None, ())))
    if kind == 2:
        return Restore(prefix_row(cut_extras(None, CallMedia([], None))), [], None)
    pixels = tuple(entry for entry in request.tensors or () if entry.name == BUNDLE_PIXELS)
    held = {entry.name: entry.tensor for entry in pixels}
    return Restore(prefix_row(cut_extras(None, CallMedia([], held))), [], pixels)


def among_others() -> Iterator[SameMedia]:
    """Yield each hard pair the other way round, and with the same tensor before or after it on both sides."""
    before, after = (Entry(name, Tensor.of("int8", [1])) for name in ("A", "z"))
    for name, pair in HARD_PAIRS.items():
        if name == "framing":
            continue  # a tensor of many bytes, and one is enough
        left, right = pair.left or (), pair.right or ()
        yield SameMedia(pair.right, pair.left)
        yield SameMedia((before, *left), (before, *right))
        yield SameMedia((*left, after), (*right, after))
        yield SameMedia((before, *right, after), (before, *left, after))


# ── streams ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def streams(area: Area) -> Iterator[Stream]:
    """Yield the streams of the area retained."""
    if area is not Area.RETAINED:
        return

    stream = StreamsOf(area)

    rejected, changed_media = Code.MEDIA_CAPTURE_REJECTED, Code.RETAINED_MEDIA_CHANGED
    for name, pair in HARD_PAIRS.items():
        yield stream(f"hard pair: {name}", st.just(pair), 0.0)
    yield listed("hard pairs among others", area, among_others())
    yield stream("digests", digests(), 2.0)
    yield stream("valueless", valueless(), 1.0, (rejected.code,))
    yield stream("valueless pairs", valueless_pairs(), 1.0, (rejected.code,))
    yield stream("equal pairs", equal(), 2.0)
    yield stream("different pairs", different(), 3.0)
    yield stream("cuts", cuts())
    yield listed("each odd cut", area, odd_cuts())
    yield stream("restores", restores(), 2.0)
    yield stream(f"break:restore:{rejected.code}", restores(rejected), 2.0, (rejected.code,))
    yield stream(f"break:restore:{changed_media.code}", restores(changed_media), 2.0, (changed_media.code,))
    yield stream("completions", completions(), 2.0)
    for code in COMPLETION_EDITS:
        yield stream(f"break:completion:{code.code}", completions(code), 1.0, (code.code,))
