"""Finding out which arguments a reassembler was built with."""

from __future__ import annotations

from typing import Any, Final

from attrs import fields

from rollproof.properties.adapters.reassembler import REFERENCE_ARGUMENTS
from rollproof.properties.errors import InputError
from rollproof.spec.records import ReassemblerConfig

_ABSENT: Final = object()


def read_config(reassembler: Any, given: dict[str, Any]) -> ReassemblerConfig:
    """Return the constructor arguments: those ``given``, the others as the reassembler's attributes.

    Arguments that only our own class has may be absent. Raises ``InputError``.
    """
    names = [field.name for field in fields(ReassemblerConfig)]
    unknown = sorted(given.keys() - set(names))
    if unknown:
        raise InputError(f"{', '.join(unknown)}: no such argument of a reassembler; expected {', '.join(names)}")
    values = {name: given[name] if name in given else attribute(reassembler, name) for name in names}
    missing = [name for name in REFERENCE_ARGUMENTS if values[name] is _ABSENT]
    if missing:
        kind = type(reassembler).__name__
        raise InputError(f"{kind} does not show its {', '.join(missing)}: pass them to watch()")
    known = {name: value for name, value in values.items() if value is not _ABSENT}
    if known.get("routed_dims") is not None:
        known["routed_dims"] = tuple(known["routed_dims"])
    if "stop_token_ids" in known:
        known["stop_token_ids"] = tuple(known["stop_token_ids"])
    return ReassemblerConfig(**known)


def attribute(reassembler: Any, name: str) -> Any:
    """Return what a reassembler keeps under a constructor argument's name."""
    holders = [reassembler, getattr(reassembler, "_config", None), getattr(reassembler, "config", None)]
    for holder in holders:
        for spelling in (name, f"_{name}"):
            value = getattr(holder, spelling, _ABSENT)
            if value is not _ABSENT:
                return value
    return _ABSENT
