"""The text of a rejection tells which call or key it is about, the field, the value, and what was expected.

Only the code is normative, and for a few the subject. The text is what somebody reads at three in the morning, with a
thousand calls in the rollout; so the contract and ours keep it in one form, for every code that the streams reach.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pytest
from attrs import fields, frozen, has
from hypothesis import Phase

from rollproof.properties.adapters.ours import Ours
from rollproof.properties.gate.codes import AREAS, driven_code, reachable, reason_of
from rollproof.properties.gate.run import both_answers, exercise
from rollproof.properties.gate.streams import request_streams
from rollproof.properties.strategies.rollouts.recipes import realize_request
from rollproof.spec.judge.oracle import answer
from rollproof.spec.judge.requests import Area, CheckCompletion, FinalizeGroups, Request
from rollproof.spec.rejections import Code

THE_CODE_TELLS_ALL = {
    *("missing_receipt", "capture_poisoned", "rollout_failed", "empty_manifest"),
}
"""The value is the code itself, or its subject: there is no receipt, its flag is set, its failure reason is this."""

OF_NO_CALL = {
    *("identity_mismatch", "invalid_reward", "canonical_length_mismatch", "row_count_mismatch", "missing_terminal"),
    *("unsupported_schema", "unsupported_digest", "unsupported_extras_digest", "media_group_incompatible"),
}
"""About a rollout as a whole, its reward, or a plan as a whole."""

MAY_BE_OF_NO_CALL = {"invalid_receipt", "invalid_route_plan", "invalid_route_envelope"}
"""Some of their rules are about a field of the whole."""

MORE = re.compile(r" and \d+ more$")

IN_OTHER_WORDS = {
    "missing_staging_row": "planes say in their own way that rows are missing, and some do not say which",
    "route_assembly:missing_fragment": "a batch that lacks the column does not tell of which row",
    "invalid_staging_row": "ours sees tensors of a batch: torch's dtypes, and a dimension less",
    "invalid_media_columns": "the same",
    "invalid_route_envelope": "ours reads the head of an envelope, and each level of the lists, at once",
    "invalid_reward": "ours tells what an array without dimensions holds",
    "media_capture_rejected": "ours names what torch's tensors are",
}
"""Where ours need not show the value that the contract's text shows. One row that it names is still the contract's."""


def request_names(value: Any, depth: int = 8) -> Iterator[str]:
    """Yield the call ids and staging keys in a request; receipts may be nested deeper than they have any."""
    if has(type(value)):
        for field in fields(type(value)):
            yield from _named(field.name, getattr(value, field.name), depth - 1)
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _named(name, item, depth - 1)
    elif isinstance(value, list | tuple) and depth:
        for item in value:
            yield from request_names(item, depth - 1)


def _named(name: object, value: Any, depth: int) -> Iterator[str]:
    if name in ("rows", "fragments") and isinstance(value, Mapping):
        yield from value
    elif name in ("model_call_id", "staging_key") and isinstance(value, str):
        yield value
    elif name in ("cleanup_staging_keys", "live_keys"):
        yield from (key for key in value if isinstance(key, str))
    elif name == "source_call_id":
        yield value
    elif depth > 0:
        yield from request_names(value, depth)


@frozen
class Told:
    """A reason in its parts."""

    place: str | None
    field: str
    value: str


def told(reason: str, code: str, names: Iterable[str]) -> Told | None:
    """Return the parts of a reason, or None where it has another form."""
    name = "|".join(re.escape(each) for each in sorted(names, key=len, reverse=True)) or "(?!)"
    place = rf"(?:call )?(?:{name})(?: and \d+ more)?|(?:manifest row|span) \d+(?: \((?:{name})\))?|receipt|part \d+"
    form = rf"{code}(?::(?P<subject>{name}))?: (?:(?P<place>{place}): )?(?P<field>.+?): got (?P<value>.+?), expected .+"
    found = re.fullmatch(form, reason, re.DOTALL)
    return found and Told(found["subject"] or found["place"], found["field"], found["value"])


def names_a_call(found: Told, names: Iterable[str]) -> bool:
    return found.place is not None and any(name in found.place for name in names)


def agree(expected: Told, actual: Told) -> bool:
    """Return whether both name the same place, and there the same field, as far as ours can know the place."""
    if actual.place is None or MORE.search(actual.place):
        return True
    if actual.place != MORE.sub("", str(expected.place)):
        return False
    return actual.field.replace("logprobs", "log_probs") == expected.field.replace("logprobs", "log_probs")


def rejected(area: Area, examples: int) -> Iterator[tuple[str, Request]]:
    """Yield requests of an area that are rejected, each with its code: some from every stream that breaks something."""
    codes = reachable(area)
    for stream in request_streams(area):
        if stream.codes or stream.every or stream.name.startswith(("break", "broken")):
            drawn: list[Request] = list(stream.every)
            if not drawn:
                exercise(stream.strategy, drawn.append, examples, 0, (Phase.generate,))
            for request in drawn:
                code = driven_code(answer(realize_request(request)), codes)
                if code is not None:
                    yield code, request


def complaints(area: Area, examples: int) -> Iterator[str]:
    """Yield what is wrong with the reasons of an area, the contract's and ours, and which codes were not met."""
    ours, unmet = Ours(), set(reachable(area))
    for code, request in rejected(area, examples):
        unmet.discard(code)
        if isinstance(request, FinalizeGroups) or code in THE_CODE_TELLS_ALL:
            continue
        names = {name for name in request_names(realize_request(request)) if name}
        if isinstance(request, CheckCompletion):
            answers = both_answers(ours, request)
            subjects = {subject for answered in answers for _, subject in answered.value}
            if not subjects <= names:
                yield f"{code}: {subjects} are no calls and keys of the request"
            continue
        found: list[Told] = []
        for reason in map(reason_of, both_answers(ours, request)):
            parts = told(str(reason), code, names)
            if parts is None:
                yield f"{code}: not in the form of a reason: {reason!r}"
            elif names and code not in OF_NO_CALL | MAY_BE_OF_NO_CALL and not names_a_call(parts, names):
                yield f"{code}: names no call: {reason!r}"
            else:
                found.append(parts)
        if len(found) == 2 and not (agree(*found) if code in IN_OTHER_WORDS else found[0] == found[1]):
            yield f"{code}: {found[0]} in the contract, {found[1]} in ours"
    yield from (f"{code}: not met" for code in unmet)


@pytest.mark.parametrize("examples", [1, pytest.param(25, marks=pytest.mark.deep)])
@pytest.mark.parametrize("area", [area for area in AREAS if reachable(area)])
def test_reasons_tell_place_field_value_and_expectation(area, examples):
    first = {complaint.partition(": ")[0]: complaint for complaint in complaints(area, examples)}
    assert list(first.values()) == []


def test_media_that_do_not_fit_the_group_are_named():
    (stream,) = (each for each in request_streams(Area.MEDIA) if Code.MEDIA_GROUP_INCOMPATIBLE.code in each.codes)
    drawn: list[Request] = []
    exercise(stream.strategy, drawn.append, 5, 0, (Phase.generate,))
    for request in drawn:
        (outcome,) = answer(realize_request(request)).value
        reasons = [each.rejection_reason for each in outcome.rollouts]
        reason = next(each for each in reasons if each and each.startswith("media_group_incompatible"))
        rollout = outcome.rollouts[reasons.index(reason)].rollout_id
        assert told(reason.replace(f"rollout {rollout}: ", ""), "media_group_incompatible", ()) is not None


@pytest.mark.parametrize(
    ("reason", "parts"),
    [
        ("wrong_mode: call c1: mode: got 'text', expected 'token_in'", Told("call c1", "mode", "'text'")),
        ("wrong_mode: r/c1 and 2 more: mode: got 1, expected 2", Told("r/c1 and 2 more", "mode", "1")),
        ("wrong_mode:c1: mode: got 1, expected 2", Told("c1", "mode", "1")),
        ("wrong_mode: span 3 (r/c1): mode: got 1, expected 2", Told("span 3 (r/c1)", "mode", "1")),
        ("wrong_mode: mode: got 1, expected 2", Told(None, "mode", "1")),
        ("wrong_mode: call c2: mode: got 1, expected 2", Told(None, "call c2: mode", "1")),
        ("wrong_mode: call c1", None),
        ("wrong_mode: call c1: expected 2", None),
        ("wrong_mode: call c1: mode is 1, not 2", None),
        ("wrong_mode:c1", None),
        ("wrong_mode", None),
    ],
)
def test_told_reads_reasons_of_one_form(reason, parts):
    assert told(reason, "wrong_mode", ["c1", "r/c1"]) == parts
