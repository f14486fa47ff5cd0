"""Route fragments, envelopes, plans and whole assemblies: valid ones first, then one targeted break per rejection code.

Small by default (a few tokens, two layers, a top-k of two), as a shrunk example should be.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final

from attrs import evolve, frozen
from hypothesis import assume
from hypothesis import strategies as st

from rollproof.spec.constants import (
    EXTRAS_DIGEST_VERSION,
    ROUTE_ENCODING_ENVELOPE,
    ROUTE_ENCODING_LIST,
    ROUTE_SENTINEL,
)
from rollproof.spec.digest import extras_digest
from rollproof.spec.envelope import ENVELOPE_DTYPES, INT16_MAX, LIST_DTYPE, encode_routes, nested_lists
from rollproof.spec.extras import RouteFragment, extras_around
from rollproof.spec.outcomes import Dims
from rollproof.spec.plan import SpanMode
from rollproof.spec.records import RouteAssemblyPlan, RouteSpan
from rollproof.spec.rejections import Code
from rollproof.spec.staged import metadata_json
from rollproof.spec.tensor import Tensor

INT8_EXPERTS: Final = 128
"""As many experts as int8 can name."""


@frozen
class Assembly:
    """The arguments of one execution of a route plan."""

    plan: RouteAssemblyPlan
    fragments: Mapping[str, RouteFragment]
    dims: Dims
    canonical_len: int
    num_experts: int | None = None
    allow_repeated_experts: bool = False


# ── fragments ───────────────────────────────────────────────────────────────────────────────────────────────────────


@cache
def model_shapes(max_layers: int = 3, max_experts: int = 3) -> st.SearchStrategy[Dims]:
    """Draw (layers, top-k) of a model."""
    return st.tuples(st.integers(1, max_layers), st.integers(1, max_experts))


def id_vector(drawn: bytes, width: int, num_experts: int) -> list[int]:
    """Return the choice of one layer for one token, from three drawn bytes: distinct experts, or nothing captured."""
    if drawn[0] >= 192:
        return [ROUTE_SENTINEL] * width
    first = int.from_bytes(drawn[1:], "big")
    return [(first + slot) % num_experts for slot in range(width)]


@st.composite
def route_tensors(
    draw: st.DrawFn, tokens: int, dims: Dims, *, dtype: str = "int16", num_experts: int = INT8_EXPERTS
) -> Tensor:
    """Draw valid routes ``[tokens, L, K]``; any token-layer vector may be sentinel, also all of them.

    One draw for all ids: drawn one by one they would take most of a check's time.
    """
    count = tokens * dims[0]
    if draw(st.integers(0, 7)) == 7:
        return Tensor.of(dtype, [ROUTE_SENTINEL] * (count * dims[1]), (tokens, *dims))
    drawn = draw(st.binary(min_size=3 * count, max_size=3 * count))
    vectors = (id_vector(drawn[3 * index : 3 * index + 3], dims[1], num_experts) for index in range(count))
    return Tensor.of(dtype, [expert for vector in vectors for expert in vector], (tokens, *dims))


OTHER_EXTRAS: Final[tuple[dict[str, Any] | None, ...]] = (
    None,
    {},
    {"a": None},
    {"finish": "stop", "z": True},
    {"routed_experts2": [0, -1, 2.5], "routed": {}},
    {"\U0001f600": {"é": [[], {"a": ""}]}, "a": -0.5},
    {"é": "é", "a": [[[]]], "z": 2**62},
)
"""A call's extras besides its routes: names that sort before and after ``routed_experts``, in UTF-8 and in UTF-16."""


@cache
def other_extras() -> st.SearchStrategy[dict[str, Any] | None]:
    """Draw a call's extras besides its routes."""
    return st.sampled_from(OTHER_EXTRAS)


_ENCODINGS: Final = st.sampled_from([ROUTE_ENCODING_ENVELOPE, ROUTE_ENCODING_LIST])


@cache
def _dtypes(encoding: int, *, wide: bool) -> st.SearchStrategy[str]:
    """Draw a dtype that an encoding has, and that can name every expert. Hypothesis keeps no such strategy itself."""
    dtypes = [LIST_DTYPE] if encoding == ROUTE_ENCODING_LIST else list(ENVELOPE_DTYPES)
    return st.sampled_from([dtype for dtype in dtypes if not (wide and dtype == "int8")])


@st.composite
def fragments(draw: st.DrawFn, tokens: int, dims: Dims, *, num_experts: int = INT8_EXPERTS) -> RouteFragment:
    """Draw a valid fragment in any dtype and encoding."""
    encoding = draw(_ENCODINGS)
    dtype = draw(_dtypes(encoding, wide=num_experts > INT8_EXPERTS))
    routes = draw(route_tensors(tokens, dims, dtype=dtype, num_experts=num_experts))
    extras = draw(other_extras())
    return RouteFragment(routes, encoding, metadata_json(extras))


def route_payload(fragment: RouteFragment) -> Any:
    """Return the value of ``routed_experts`` in the call's extras: an envelope, or nested lists."""
    encoded = fragment.encoding == ROUTE_ENCODING_ENVELOPE
    return encode_routes(fragment.routes) if encoded else nested_lists(fragment.routes)


# ── plans and assemblies ────────────────────────────────────────────────────────────────────────────────────────────


@st.composite
def assemblies(
    draw: st.DrawFn,
    *,
    modes: tuple[SpanMode, ...] = tuple(SpanMode),
    min_spans: int = 0,
    max_spans: int = 3,
    max_tokens: int = 3,
    dims: Dims | None = None,
) -> Assembly:
    """Draw a valid plan with its fragments, and perhaps some that no span names."""
    shape = dims or draw(model_shapes())
    num_experts = draw(st.sampled_from([shape[1] + 1, INT8_EXPERTS, 512]))
    spans: list[RouteSpan] = []
    found: dict[str, RouteFragment] = {}
    for index in range(draw(st.integers(min_spans, max_spans))):
        key = f"r/c{index}"
        carry, generation = draw(st.integers(0, max_tokens)), draw(st.integers(0, max_tokens))
        mode = draw(st.sampled_from(modes))
        if mode is SpanMode.SENTINEL:
            # No routes at all, or too few to be of use.
            staged = 0 if draw(st.booleans()) else draw(st.integers(0, max(0, generation - 1)))
            commitment = extras_digest(draw(other_extras()))
        else:
            assume(generation if mode is SpanMode.TAIL else carry + generation)
            staged = carry + generation if mode is SpanMode.FULL else generation + draw(st.integers(0, 2))
            found[key] = draw(fragments(staged, shape, num_experts=num_experts))
            commitment = extras_digest(extras_around(found[key]))
        spans.append(RouteSpan(key, carry, generation, staged, EXTRAS_DIGEST_VERSION, commitment))
    if draw(st.booleans()):
        found["r/unused"] = RouteFragment(Tensor.of("uint8", [7]), 9, b"not JSON")
    total = sum(span.carry_len + span.generation_len for span in spans)
    length = total if spans else draw(st.integers(0, max_tokens))
    cleanup = draw(st.permutations([*(span.staging_key for span in spans), "r/dead"]))
    plan = RouteAssemblyPlan("staging", tuple(spans), tuple(cleanup), length)
    return Assembly(plan, found, shape, length, draw(st.sampled_from([None, num_experts])))


@st.composite
def broken_assemblies(draw: st.DrawFn, code: Code) -> Assembly:
    """Draw an assembly that is refused with ``code``, one of ``ASSEMBLY_BREAKS``."""
    dims = draw(st.tuples(st.integers(1, 2), st.integers(2, 3)))
    routed = (SpanMode.FULL, SpanMode.TAIL)
    whole = draw(assemblies(modes=routed, min_spans=1, max_spans=2, max_tokens=2, dims=dims))
    return draw(ASSEMBLY_BREAKS[code](whole))


def recommitted(whole: Assembly, key: str, fragment: RouteFragment) -> Assembly:
    """Return the assembly with one fragment replaced, and the plan committed to the new extras."""
    commitment = extras_digest(extras_around(fragment))
    spans = tuple(
        evolve(span, extras_digest=commitment) if span.staging_key == key else span for span in whole.plan.spans
    )
    return evolve(whole, plan=evolve(whole.plan, spans=spans), fragments={**whole.fragments, key: fragment})


def _used(whole: Assembly) -> st.SearchStrategy[str]:
    return st.sampled_from([span.staging_key for span in whole.plan.spans])


@st.composite
def _wrong_length(draw: st.DrawFn, whole: Assembly) -> Assembly:
    return evolve(whole, canonical_len=draw(st.integers(0, 20).filter(lambda size: size != whole.canonical_len)))


@st.composite
def _missing(draw: st.DrawFn, whole: Assembly) -> Assembly:
    key = draw(_used(whole))
    return evolve(whole, fragments={name: value for name, value in whole.fragments.items() if name != key})


@st.composite
def _not_as_committed(draw: st.DrawFn, whole: Assembly) -> Assembly:
    key = draw(_used(whole))
    fragment = whole.fragments[key]
    ids = list(fragment.routes.values())
    where = draw(st.integers(0, len(ids) - 1))
    ids[where] = 0 if ids[where] else 1
    empty = evolve(fragment.routes, shape=(fragment.routes.shape[0], 0, 2), data=b"")
    broken = [
        evolve(fragment, routes=Tensor.of(fragment.routes.dtype, ids, fragment.routes.shape)),
        evolve(fragment, encoding=ROUTE_ENCODING_ENVELOPE + ROUTE_ENCODING_LIST - fragment.encoding),
        evolve(fragment, encoding=draw(st.sampled_from([0, 3, -1]))),
        evolve(fragment, routes=Tensor.of("int64", fragment.routes.values(), fragment.routes.shape)),
        evolve(
            fragment, routes=evolve(fragment.routes, shape=(*fragment.routes.shape[:2], 1, fragment.routes.shape[2]))
        ),
        evolve(fragment, routes=empty),
        evolve(fragment, extras_metadata_json=draw(st.sampled_from(broken_metadata(fragment.extras_metadata_json)))),
    ]
    return evolve(whole, fragments={**whole.fragments, key: draw(st.sampled_from(broken))})


def broken_metadata(staged: bytes) -> list[bytes]:
    """Return staged extras that are not extras, or other ones than ``staged``."""
    return [
        b"",
        b"{",
        b"[]",
        b"0",
        b"\xff",
        b'{"a":NaN}',
        b'{"a":1e999}',
        b'{"a":18446744073709551616}',
        b'{"a":"\\ud800"}',
        b'{"a":1,"a":1}',
        b'{"b":{"a":1,"a":1}}',
        b'{"other":1}',
        b'{"routed_experts":null}',
        b'{"a":' + b"[" * 64 + b"]" * 64 + b"}",
        b"[" * 100_000,
        b'{"a":' * 5000,
        staged[:-1] + b"!",
        with_first_name_twice(staged),
    ]


def with_first_name_twice(staged: bytes) -> bytes:
    """Return staged extras that a reader which lets the last value win still accepts as committed to."""
    extras = json.loads(staged)
    if not extras:
        return b"{,}"
    return b"{" + json.dumps(next(iter(extras))).encode() + b":0," + staged[1:]


@st.composite
def _wrong_rank(draw: st.DrawFn, whole: Assembly) -> Assembly:
    """Draw a fragment of another rank. Only nested lists can have one: an envelope has three dimensions."""
    key = draw(_used(whole))
    fragment = whole.fragments[key]
    ids, (tokens, layers, width) = fragment.routes.values(), fragment.routes.shape
    shape = draw(
        st.sampled_from([(tokens, layers * width), (tokens, layers, width, 1), (len(ids),), (1,) * 62 + (len(ids),)])
    )
    return recommitted(
        whole, key, evolve(fragment, routes=Tensor.of(LIST_DTYPE, ids, shape), encoding=ROUTE_ENCODING_LIST)
    )


@st.composite
def _wrong_tokens(draw: st.DrawFn, whole: Assembly) -> Assembly:
    key = draw(_used(whole))
    fragment = whole.fragments[key]
    tokens = draw(st.integers(1, 6).filter(lambda size: size != fragment.routes.shape[0]))
    routes = draw(route_tensors(tokens, whole.dims, dtype=fragment.routes.dtype, num_experts=whole.dims[1]))
    return recommitted(whole, key, evolve(fragment, routes=routes))


@st.composite
def _wrong_model(draw: st.DrawFn, whole: Assembly) -> Assembly:
    return evolve(whole, dims=draw(model_shapes().filter(lambda dims: dims != whole.dims)))


@st.composite
def _changed_ids(
    draw: st.DrawFn, whole: Assembly, change: Callable[[list[int], int], None], dtype: str = ""
) -> Assembly:
    """Change one token-layer vector of a fragment, in any of its rows: also one that a tail drops."""
    key = draw(_used(whole))
    fragment = whole.fragments[key]
    routes, width = fragment.routes, whole.dims[1]
    ids = [int(expert) for expert in routes.values()]
    start = draw(st.integers(0, len(ids) // width - 1)) * width
    vector = list(range(width))
    change(vector, draw(st.integers(0, width - 1)))
    ids[start : start + width] = vector
    encoding = ROUTE_ENCODING_ENVELOPE if dtype else fragment.encoding
    changed = evolve(fragment, routes=Tensor.of(dtype or routes.dtype, ids, routes.shape), encoding=encoding)
    return recommitted(whole, key, changed)


@st.composite
def _out_of_range(draw: st.DrawFn, whole: Assembly) -> Assembly:
    limit = whole.num_experts if whole.num_experts is not None else INT16_MAX + 1
    expert = draw(st.sampled_from([-2, -(2**31), limit, INT16_MAX + 1, 2**16 - 1, 2**31 - 1]))

    def change(vector: list[int], slot: int) -> None:
        vector[slot] = expert

    return draw(_changed_ids(whole, change, dtype="int32"))


@st.composite
def _partly_sentinel(draw: st.DrawFn, whole: Assembly) -> Assembly:
    def change(vector: list[int], slot: int) -> None:
        vector[slot] = ROUTE_SENTINEL

    return draw(_changed_ids(whole, change))


@st.composite
def _repeated_expert(draw: st.DrawFn, whole: Assembly) -> Assembly:
    zeroed = draw(st.booleans())

    def change(vector: list[int], slot: int) -> None:
        if zeroed:
            vector[:] = [0] * len(vector)
        else:
            vector[slot] = vector[slot - 1]

    return draw(_changed_ids(whole, change))


ASSEMBLY_BREAKS: Final[dict[Code, Callable[[Assembly], st.SearchStrategy[Assembly]]]] = {
    Code.CANONICAL_LENGTH_MISMATCH: _wrong_length,
    Code.MISSING_FRAGMENT: _missing,
    Code.FRAGMENT_INTEGRITY: _not_as_committed,
    Code.FRAGMENT_RANK: _wrong_rank,
    Code.FRAGMENT_LENGTH: _wrong_tokens,
    Code.FRAGMENT_MODEL_SHAPE: _wrong_model,
    Code.FRAGMENT_VALUE_RANGE: _out_of_range,
    Code.FRAGMENT_PARTIAL_SENTINEL: _partly_sentinel,
    Code.FRAGMENT_DUPLICATE_EXPERT: _repeated_expert,
}
"""Per code of an execution, what breaks a whole assembly so that exactly that code is the answer."""
