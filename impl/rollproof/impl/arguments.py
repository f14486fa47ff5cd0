"""Arguments of public constructors: converted where a value has only one meaning, refused before anything is read.

Configuration files give lists for pairs, numpy gives integers of its own, and a bool is an int to Python. Unconverted,
``routed_dims=[2, 2]`` equals no shape, and every routed rollout is rejected and cleared. Each error names the argument,
its value and what was expected.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Collection, Sequence
from typing import Any, NoReturn

METHODS = ("get_samples", "put_samples", "clear_samples")
"""The methods that a finalizer calls on a data plane."""


def _refuse(name: str, value: Any, expected: str) -> NoReturn:
    raise ValueError(f"{name}: got {value!r:.80}, expected {expected}")


def as_name(name: str, value: Any) -> str:
    """Return a partition's name: a non-empty string."""
    if not isinstance(value, str) or not value:
        _refuse(name, value, "a non-empty string")
    return str(value)


def as_flag(name: str, value: Any) -> bool:
    """Return a bool; numpy's too, but no other value that is merely true or false."""
    if type(value).__name__ not in ("bool", "bool_"):
        _refuse(name, value, "true or false")
    return bool(value)


def as_choice(name: str, value: Any, choices: Sequence[str]) -> str:
    """Return one of some strings."""
    if not isinstance(value, str) or value not in choices:
        _refuse(name, value, " or ".join(choices))
    return str(value)


def as_count(name: str, value: Any, least: int = 1, most: int = 2**63 - 1) -> int:
    """Return an integer between ``least`` and ``most``: Python's or numpy's, but no bool, float or string."""
    try:
        number = operator.index(value)
    except TypeError:
        _refuse(name, value, "an integer")
    if type(value).__name__ in ("bool", "bool_") or not least <= number <= most:
        _refuse(name, value, f"an integer from {least} to {most}")
    return number


def as_optional_count(name: str, value: Any) -> int | None:
    """Return None, or a positive integer."""
    return None if value is None else as_count(name, value)


def as_dims(name: str, value: Any) -> tuple[int, int]:
    """Return (layers, top-k): any sequence or array of two positive integers."""
    if isinstance(value, str | bytes) or not (isinstance(value, Sequence) or hasattr(value, "tolist")):
        _refuse(name, value, "(layers, top-k)")
    pair = list(value)
    if len(pair) != 2:
        _refuse(name, value, "(layers, top-k)")
    return as_count(f"{name}[0]", pair[0]), as_count(f"{name}[1]", pair[1])


def as_optional_dims(name: str, value: Any) -> tuple[int, int] | None:
    """Return None, or (layers, top-k)."""
    return None if value is None else as_dims(name, value)


def as_log_prob(name: str, value: Any) -> float:
    """Return a log-probability: a finite number that is not above 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not -math.inf < value <= 0:
        _refuse(name, value, "a finite number, at most 0")
    return float(value)


def as_token_ids(name: str, value: Any) -> tuple[int, ...]:
    """Return token ids: one, None for none, or any sequence, set or array of them."""
    listed = value.tolist() if hasattr(value, "tolist") else value
    if listed is None or isinstance(listed, int):
        listed = () if listed is None else (listed,)
    if isinstance(listed, str | bytes) or not isinstance(listed, Collection):
        _refuse(name, value, "token ids")
    return tuple(as_count(f"{name}[{index}]", token, 0) for index, token in enumerate(listed))


def as_seconds(name: str, value: Any) -> float:
    """Return a positive, finite number of seconds."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        _refuse(name, value, "a positive number of seconds")
    return float(value)


def as_amount(name: str, value: Any) -> float:
    """Return a finite number that is not negative."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        _refuse(name, value, "a number that is not negative")
    return float(value)


def as_plane(name: str, value: Any, methods: Sequence[str] = METHODS) -> Any:
    """Return a data plane, or a handle to one: an object with these methods."""
    missing = [method for method in methods if not callable(getattr(value, method, None))]
    missing = [method for method in missing if not hasattr(getattr(value, method, None), "remote")]
    if missing:
        _refuse(name, value, f"a data plane with {', '.join(methods)}")
    return value
