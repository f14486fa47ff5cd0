"""Envelopes and plans in their wire format: valid ones, and ones with one thing wrong."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any, Final

from hypothesis import strategies as st

from rollproof.properties.strategies.rollouts.routes import assemblies, fragments, model_shapes, route_payload
from rollproof.spec.constants import ROUTE_ENCODING_ENVELOPE
from rollproof.spec.envelope import INT16_MAX, encode_routes, nested_lists
from rollproof.spec.extras import RouteFragment
from rollproof.spec.plan import encode_plan
from rollproof.spec.records import RouteAssemblyPlan
from rollproof.spec.tensor import Tensor

# ── envelopes ───────────────────────────────────────────────────────────────────────────────────────────────────────


@st.composite
def payloads(draw: st.DrawFn) -> Any:
    """Draw an envelope or nested lists, valid."""
    return route_payload(draw(fragments(draw(st.integers(1, 4)), draw(model_shapes()))))


OTHER_ENCODINGS: Final = (base64.b85encode, base64.a85encode, base64.b32encode, base64.b16encode)
"""What other servers write bytes as."""

EXAMPLE: Final = RouteFragment(Tensor.of("int16", [4, 700, 0, 3, 2, 9], (3, 1, 2)), ROUTE_ENCODING_ENVELOPE, b"null")


@st.composite
def broken_payloads(draw: st.DrawFn) -> Any:
    """Draw a payload that is not a route tensor: an envelope that no encoder writes, or malformed lists."""
    return draw(st.sampled_from(odd_payloads(draw(fragments(draw(st.integers(1, 2)), draw(model_shapes(2, 2)))))))


def odd_payloads(valid: RouteFragment) -> list[Any]:
    """Return every way in which the payload of a valid fragment of up to nine tokens can be spoiled."""
    text = encode_routes(valid.routes)
    magic, dtype, shape, encoded = text.split(":")
    tokens = shape.split("x")[0]
    lists = nested_lists(valid.routes)

    def with_shape(*sizes: str) -> str:
        return f"{magic}:{dtype}:{'x'.join(sizes)}:{encoded}"

    rest = shape.split("x")[1:]
    odd: list[Any] = [
        with_shape(f"+{tokens}", *rest),
        with_shape(f" {tokens}", *rest),
        with_shape(f"{tokens}\n", *rest),
        with_shape(f"0{tokens}", *rest),
        with_shape(f"0_{tokens}", *rest),
        with_shape(f"-{tokens}", *rest),
        with_shape(chr(0x660 + int(tokens)), *rest),
        with_shape(chr(0xFF10 + int(tokens)), *rest),
        with_shape("", *rest),
        with_shape("0", *rest),
        with_shape("1.0", *rest),
        with_shape(str(int(tokens) + 1), *rest),
        with_shape("99999999999", *rest),
        with_shape("9" * 5000, *rest),
        with_shape(tokens, *rest, "1"),
        with_shape(tokens, *rest[:1]),
        with_shape(*["1"] * 10_000),
        f"{magic}:{dtype.upper()}:{shape}:{encoded}",
        f"{magic}:uint8:{shape}:{encoded}",
        f"{magic}:int64:{shape}:{encoded}",
        f"{magic[:-1]}2:{dtype}:{shape}:{encoded}",
        f" {text}",
        f"{text}\n",
        f"{text}=",
        f"{text}====",
        text[:-1],
        text[:-4],
        f"{magic}:{dtype}:{shape}",
        f"{magic}:{dtype}:{shape}:-{encoded[1:]}",
        f"{magic}:{dtype}:{shape}:={encoded[1:]}",
        f"{magic}:{dtype}:{shape}:é{encoded[1:]}",
        f"{magic}:{dtype}:{shape}:{encoded[:-1]}\n",
        *(f"{magic}:{dtype}:{shape}:{encode(valid.routes.data).decode()}" for encode in OTHER_ENCODINGS),
        trailing_bits(1),
        trailing_bits(2),
        "nrlre1:int8:1024x1024x1024:AAAA",
        "",
        magic,
    ]
    other: list[Any] = [
        None,
        0,
        1.5,
        True,
        {},
        {"data": encoded, "shape": list(valid.routes.shape)},
        {"data": base64.b85encode(valid.routes.data).decode(), "shape": list(valid.routes.shape)},
        [],
        [[]],
        [[[]]],
        [lists],
        lists[0],
        [*lists, []],
        [*lists, [*lists[0], lists[0][0]]],
        [[[*layer, 0] if layer is lists[0][0] else layer for layer in token] for token in [*lists, lists[0][1:]]],
        [[[True for _ in layer] for layer in token] for token in lists],
        [[[0.0 for _ in layer] for layer in token] for token in lists],
        [[[INT16_MAX + 1 for _ in layer] for layer in token] for token in lists],
        [[[2**70 for _ in layer] for layer in token] for token in lists],
        [[tuple(layer) for layer in token] for token in lists],
        [[None for _ in token] for token in lists],
    ]
    return odd + other


def trailing_bits(padding: int) -> str:
    """Return an envelope with a bit after the last byte: it decodes, but the encoder would not have written it."""
    count = 3 - padding
    encoded = base64.b64encode(bytes(count)).decode()
    last = encoded.rstrip("=")[:-1] + "B" + "=" * padding
    return f"nrlre1:int8:{count}x1x1:{last}"


# ── plans as JSON ───────────────────────────────────────────────────────────────────────────────────────────────────


def plans() -> st.SearchStrategy[RouteAssemblyPlan]:
    """Draw valid plans."""
    return assemblies().map(lambda whole: whole.plan)


@st.composite
def broken_plans(draw: st.DrawFn, kind: str = "") -> Any:
    """Draw a plan's JSON with one thing wrong: what ``PLAN_BREAKS`` says under ``kind``, or under any of its names."""
    plan = draw(assemblies(min_spans=1)).plan
    value: dict[str, Any] = json.loads(json.dumps(encode_plan(plan)))
    span = draw(st.sampled_from(value["spans"]))
    change = PLAN_BREAKS[kind or draw(st.sampled_from(sorted(PLAN_BREAKS)))]
    return change(draw, value, span)


def _no_object(draw: st.DrawFn, value: dict[str, Any], _: dict[str, Any]) -> Any:
    return draw(st.sampled_from([None, [], "plan", 3, [value], {}]))


def _missing(draw: st.DrawFn, value: dict[str, Any], span: dict[str, Any]) -> Any:
    target = draw(st.sampled_from([value, span]))
    del target[draw(st.sampled_from(sorted(target)))]
    return value


def _unknown(draw: st.DrawFn, value: dict[str, Any], span: dict[str, Any]) -> Any:
    target = draw(st.sampled_from([value, span]))
    target[draw(st.sampled_from(["boundary_token_index", "repair_previous_token", "", "extra"]))] = None
    return value


def _wrong_type(draw: st.DrawFn, value: dict[str, Any], span: dict[str, Any]) -> Any:
    target = draw(st.sampled_from([value, span]))
    name = draw(st.sampled_from(sorted(target)))
    wrong: list[Any] = [None, True, 1.0, -1, 2**63, 2**80, "", "\ud800", [], {}, b"x", (), [None]]
    target[name] = draw(
        st.sampled_from([item for item in wrong if (type(item), item) != (type(target[name]), target[name])])
    )
    return value


def _longer_row(_: st.DrawFn, value: dict[str, Any], __: dict[str, Any]) -> Any:
    value["expected_token_length"] += 1
    return value


def _longer_span(draw: st.DrawFn, value: dict[str, Any], span: dict[str, Any]) -> Any:
    span[draw(st.sampled_from(["carry_len", "generation_len"]))] += 1
    return value


def _not_owned(_: st.DrawFn, value: dict[str, Any], span: dict[str, Any]) -> Any:
    value["cleanup_staging_keys"].remove(span["staging_key"])
    return value


def _owned_twice(_: st.DrawFn, value: dict[str, Any], span: dict[str, Any]) -> Any:
    value["cleanup_staging_keys"].append(span["staging_key"])
    return value


def _used_twice(_: st.DrawFn, value: dict[str, Any], span: dict[str, Any]) -> Any:
    value["spans"].append(dict(span))
    value["expected_token_length"] += span["carry_len"] + span["generation_len"]
    return value


def _other_schema(draw: st.DrawFn, value: dict[str, Any], _: dict[str, Any]) -> Any:
    value["schema_version"] = draw(st.sampled_from([0, 1, 3, "2"]))
    return value


def _other_digest_version(draw: st.DrawFn, value: dict[str, Any], span: dict[str, Any]) -> Any:
    span["extras_digest_version"] = draw(st.sampled_from([0, 2, "1"]))
    return value


def _no_digest(draw: st.DrawFn, value: dict[str, Any], span: dict[str, Any]) -> Any:
    span["extras_digest"] = draw(st.sampled_from(["0" * 63, "0" * 65, "A" * 64, "g" * 64]))
    return value


PLAN_BREAKS: Final[dict[str, Callable[[st.DrawFn, dict[str, Any], dict[str, Any]], Any]]] = {
    "no object": _no_object,
    "missing field": _missing,
    "unknown field": _unknown,
    "wrong type": _wrong_type,
    "longer row": _longer_row,
    "longer span": _longer_span,
    "span not owned": _not_owned,
    "key owned twice": _owned_twice,
    "span used twice": _used_twice,
    "other schema": _other_schema,
    "other digest version": _other_digest_version,
    "no digest": _no_digest,
}
"""The faults that a plan's JSON can have."""
