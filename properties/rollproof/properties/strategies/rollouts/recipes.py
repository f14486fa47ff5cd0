"""Values too deep, too large or too odd to be drawn, printed or stored: small recipes, built when they are used.

A request holds recipes; ``realize_request`` builds the real values just before an implementation gets the request. That
way Hypothesis shrinks a depth instead of a nest, and a replay file stays readable.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

from attrs import evolve, field, frozen
from attrs.validators import ge, in_

from rollproof.properties.errors import LeftOut, extra_hint
from rollproof.spec.judge.requests import (
    CutGeneration,
    DecodePlan,
    DecodeRoutes,
    ExtrasDigest,
    FinalizeGroups,
    FinalizeRollout,
    ParseReceipt,
    Request,
    Restore,
)
from rollproof.spec.tensor import Tensor


@frozen
class Nest:
    """``inner`` inside ``depth`` lists or, with kind "dict", objects with one empty key."""

    kind: str = field(validator=in_(("list", "dict")))
    depth: int = field(validator=ge(0))
    inner: Any = None


@frozen
class BigInt:
    """Ten to the power of ``digits``. Python refuses to print one of more than 4,300 digits."""

    digits: int = field(validator=ge(0))
    negative: bool = False


@frozen
class Repeat:
    """``text``, ``count`` times."""

    text: str
    count: int = field(validator=ge(0))


@frozen
class Rows:
    """A manifest of ``count`` copies of ``row``; ids and staging keys end in the row's number where ``distinct``."""

    row: Mapping[str, Any] = field(hash=False)
    count: int = field(validator=ge(0))
    distinct: bool = True


@frozen
class JsonText:
    """The result of parsing ``text`` as JSON: the way to repeated keys, of which the last one wins."""

    text: str


@frozen
class Scalar:
    """``value`` as an object of numpy or torch: rewards come out of arrays and tensors."""

    library: str = field(validator=in_(("numpy", "torch")))
    dtype: str
    value: Any
    shape: tuple[int, ...] = ()
    odd: str = field(default="", validator=in_(("", "item", "meta", "sparse")))
    """"item" of a numpy array is its scalar; a torch tensor may have no data, or no zeros."""

    def build(self) -> Any:
        """Return the object. Raises ``LeftOut`` where its library is not installed."""
        try:
            return self._built()
        except ModuleNotFoundError as error:
            raise LeftOut(f"a reward of {self.library}: {extra_hint(error) or error}") from error

    def _built(self) -> Any:
        if self.library == "numpy":
            import numpy as np

            array = np.full(self.shape, self.value, dtype=self.dtype)
            return array[()] if self.odd == "item" else array
        import torch

        tensor = torch.full(self.shape, self.value, dtype=getattr(torch, self.dtype))
        return tensor.to_sparse() if self.odd == "sparse" else tensor.to(self.odd or "cpu")


class Form(StrEnum):
    """How a data plane hands over a column that has no elements to read, or more of them than memory."""

    EXPANDED = "expanded"
    IMPOSSIBLE = "impossible"
    SPARSE = "sparse"
    META = "meta"
    QUANTIZED = "quantized"
    NESTED_ROWS = "nested_rows"
    TEXT_ROWS = "text_rows"
    SCALAR = "scalar"


@frozen
class OddColumn(Tensor):
    """A staged column that the data plane hands over in an odd form, together with those of the same read.

    To whoever is not behind a data plane in this process it is the plain tensor.
    """

    form: Form = field(default=Form.SPARSE, converter=Form)


RECIPES: Final = (Nest, BigInt, Repeat, Rows, JsonText, Scalar)
_PLAIN: Final = frozenset({type(None), bool, int, float, str, bytes})


def realize(value: Any) -> Any:
    """Return a fresh copy of a JSON-like value with every recipe in it built.

    Does not recurse, however deep the value is.
    """
    if type(value) in _PLAIN:
        return value
    made: list[Any] = [None]
    waiting: list[tuple[Any, Any, Any]] = [(value, made, 0)]
    while waiting:
        source, into, at = waiting.pop()
        kind = type(source)
        if kind is dict:
            copy: dict[Any, Any] = {}
            into[at] = copy
            for name, item in source.items():
                key = name if type(name) in _PLAIN else realize(name)
                copy[key] = item
                if type(item) not in _PLAIN:
                    waiting.append((item, copy, key))
        elif kind is list:
            into[at] = items = list(source)
            waiting += ((item, items, index) for index, item in enumerate(source) if type(item) not in _PLAIN)
        elif kind is tuple:
            into[at] = tuple(realize(item) for item in source)
        elif kind is Nest:
            outer: Any = into
            for _ in range(source.depth):
                outer[at] = inner = [None] if source.kind == "list" else {"": None}
                outer, at = inner, 0 if source.kind == "list" else ""
            outer[at] = None
            waiting.append((source.inner, outer, at))
        else:
            into[at] = _build(source)
    return made[0]


def _build(source: Any) -> Any:
    match source:
        case BigInt(digits, negative):
            return -(10**digits) if negative else 10**digits
        case Repeat(text, count):
            return text * count
        case JsonText(text):
            return json.loads(text)
        case Rows(row, count, distinct):
            return [_numbered(row, index if distinct else 0) for index in range(count)]
        case Scalar():
            return source.build()
        case _:
            return source


def _numbered(row: Mapping[str, Any], index: int) -> dict[str, Any]:
    copy: dict[str, Any] = realize(dict(row))
    for name in ("model_call_id", "staging_key"):
        if type(copy.get(name)) is str:
            copy[name] = f"{copy[name]}{index}"
    return copy


def realize_request(request: Request) -> Request:
    """Return the request with its recipes built.

    Every JSON value is copied, so that an implementation may change it.
    """
    match request:
        case ParseReceipt(value):
            return ParseReceipt(realize(value))
        case ExtrasDigest(extras):
            return ExtrasDigest(realize(extras))
        case DecodeRoutes(payload):
            return DecodeRoutes(realize(payload))
        case DecodePlan(value):
            return DecodePlan(realize(value))
        case CutGeneration():
            return evolve(request, extras=realize(request.extras), spans=realize(request.spans))
        case Restore():
            return evolve(request, spans=realize(request.spans))
        case FinalizeRollout():
            return evolve(request, receipt=realize(request.receipt), reward=realize(request.reward))
        case FinalizeGroups():
            # A step that is run again gets the same copy: it is a retry with the same arguments.
            groups = {id(step.request): _realize_group(step.request) for step in request.steps}
            steps = tuple(evolve(step, request=groups[id(step.request)]) for step in request.steps)
            return evolve(request, steps=steps)
        case _:
            return request


def _realize_group(group: Any) -> Any:
    return evolve(
        group,
        receipts=tuple(realize(receipt) for receipt in group.receipts),
        rewards=tuple(realize(reward) for reward in group.rewards),
        loss_multiplier=realize(group.loss_multiplier),
    )
