"""Codes that an earlier rule hides: each can arise in its own function, and the public entry never returns it.

Every entry enumerates a small domain in which what the code describes is the case, or could be, and feeds all of it
through the entry. A code that the catalogue newly calls shadowed fails here until it has one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import pytest
from attrs import evolve, frozen

from rollproof.properties.strategies.rollouts.staged_calls import raw_record
from rollproof.spec.assembly import execute
from rollproof.spec.constants import MODE_TEXT, MODE_TOKEN_IN
from rollproof.spec.digest import call_digest, chain_digest, extras_digest, prefix_digest
from rollproof.spec.lineage import lay_out, linearize
from rollproof.spec.media import rollout_media
from rollproof.spec.plan import check_plan, encode_plan
from rollproof.spec.plane import DataPlane
from rollproof.spec.receipt import parse_receipt
from rollproof.spec.records import LinkSpan, ReassemblerConfig, RouteAssemblyPlan, RouteSpan, StagedCall
from rollproof.spec.rejections import Code, Rejected, Stage
from rollproof.spec.replay import execute_published_plan
from rollproof.spec.rollout import check_identity, fetch, finalize_rollout
from rollproof.spec.routes import check_link_spans
from rollproof.spec.shadowed import HIDDEN_IN_ROLLOUT_BY, SHADOWED_BY, of_rollouts
from rollproof.spec.staged import decode_row, encode_row
from rollproof.spec.tensor import Tensor

ZEROS = "0" * 64
REPLAY = ReassemblerConfig(router_replay_enabled=True)
MEDIA = ReassemblerConfig(capture_media=True)
NO_MEDIA = {
    "media_present": Tensor.of("bool", [False]),
    "media_has_frames": Tensor.of("bool", [False]),
}

# ── a rollout of two calls ──────────────────────────────────────────────────────────────────────────────────────────


def redigest(call: StagedCall, **changes) -> StagedCall:
    """Return the call with changes and its own digest, where it has one."""
    call = evolve(call, **changes)
    try:
        return evolve(call, digest=call_digest(call))
    except ValueError:
        return call


def make_call(call_id: str, parent: StagedCall | None, ids: tuple[int, ...], mask: tuple[float, ...]) -> StagedCall:
    prev_len = 0 if parent is None else parent.cum_len
    before = () if parent is None else parent.token_ids_delta
    return redigest(
        StagedCall(
            rollout_id="r",
            model_call_id=call_id,
            parent_call_id=None if parent is None else parent.model_call_id,
            mode=MODE_TEXT if parent is None else MODE_TOKEN_IN,
            prev_len=prev_len,
            delta_len=len(ids),
            cum_len=prev_len + len(ids),
            weight_version=1,
            token_ids_delta=ids,
            token_mask_delta=mask,
            generation_log_probs_delta=tuple(-0.5 * value for value in mask),
            extras_digest=extras_digest(None),
            chain_hash=chain_digest(None if parent is None else parent.chain_hash, ids),
            cumulative_hash=prefix_digest((*before, *ids)),
            digest=ZEROS,
        )
    )


def two_calls(first: tuple[float, ...] = (0.0, 1.0), second: tuple[float, ...] = (0.0, 1.0)) -> list[StagedCall]:
    root = make_call("a", None, tuple(range(10, 10 + len(first))), tuple(value + 0.0 for value in first))
    return [root, make_call("b", root, tuple(range(20, 20 + len(second))), tuple(value + 0.0 for value in second))]


def plus_zero(call: StagedCall) -> StagedCall:
    """Replace -0.0 by 0.0: -0.5 * 0.0 is -0.0, which is not a carry log-probability."""
    return redigest(call, generation_log_probs_delta=tuple(value or 0.0 for value in call.generation_log_probs_delta))


def raw(calls: list[StagedCall], **changes) -> dict:
    """Return the receipt of some calls; the last one is terminal."""
    manifest = [raw_record(call, f"resp-{call.model_call_id}") for call in calls]
    terminal = calls[-1].model_call_id if calls else None
    receipt = {"rollout_id": "r", "manifest": manifest, "terminal_model_call_id": terminal}
    return {**receipt, "terminal_selection": "declared", **changes}


CALLS = [plus_zero(call) for call in two_calls()]
RECEIPT = parse_receipt(raw(CALLS))
ROWS = {f"r/{call.model_call_id}": encode_row(call, media=NO_MEDIA) for call in CALLS}
ROW = linearize(RECEIPT, CALLS)
CHAIN = [decode_row(row) for row in ROWS.values()]


def reason(receipt: object, rows: object = ROWS, config: ReassemblerConfig = REPLAY) -> str:
    """Return the reason that the public entry gives."""
    outcome = finalize_rollout(config, "r", receipt, 1.0, DataPlane(rows))
    return outcome.rollout.rejection_reason or "accepted"


def with_rows(**changes) -> dict:
    """Return the raw receipt with fields of its second row changed."""
    receipt = raw(CALLS)
    receipt["manifest"][1] |= changes
    return receipt


# ── what is fed through the entry ───────────────────────────────────────────────────────────────────────────────────


def receipts(**choices) -> Callable[[], Iterator[str]]:
    """Return every combination of values for some fields of the receipt."""
    return lambda: (
        reason(raw(CALLS, **dict(zip(choices, values, strict=True)))) for values in product(*choices.values())
    )


def repeated_ids() -> Iterator[str]:
    for ids, keys in product(product("ab", repeat=2), product(("r/a", "r/b"), repeat=2)):
        if len(set(ids)) == 1:
            receipt = raw(CALLS, terminal_model_call_id=ids[0])
            for row, call_id, key in zip(receipt["manifest"], ids, keys, strict=True):
                row |= {"model_call_id": call_id, "staging_key": key}
            yield reason(receipt)


def repeated_keys() -> Iterator[str]:
    for key in ("r/a", "r/b", "elsewhere"):
        receipt = raw(CALLS)
        for row in receipt["manifest"]:
            row["staging_key"] = key
        yield reason(receipt)


def misplaced(config: ReassemblerConfig = REPLAY) -> Iterator[str]:
    """Yield every way to list two calls under two keys, and to stage a row of either call, or none, under each key."""
    for keys, staged in product(product(("r/a", "r/b"), repeat=2), product((None, "r/a", "r/b"), repeat=2)):
        receipt = raw(CALLS)
        for row, key in zip(receipt["manifest"], keys, strict=True):
            row["staging_key"] = key
        rows = {key: ROWS[of] for key, of in zip(("r/a", "r/b"), staged, strict=True) if of is not None}
        if (keys, staged) != (("r/a", "r/b"), ("r/a", "r/b")):
            yield reason(receipt, rows, config)


def missing_rows() -> Iterator[str]:
    for kept in ((), ("r/a",), ("r/b",)):
        yield reason(raw(CALLS), {key: ROWS[key] for key in kept})


def masks() -> Iterator[str]:
    """Yield all masks of two calls of one or two tokens."""
    every = [mask for length in (1, 2) for mask in product((0.0, 1.0), repeat=length)]
    for first, second in product(every, repeat=2):
        calls = [plus_zero(call) for call in two_calls(first, second)]
        yield reason(raw(calls), {f"r/{call.model_call_id}": encode_row(call) for call in calls})


def modes() -> Iterator[str]:
    """Yield modes that differ between staged row and manifest row, with every parent and start on both sides."""
    sides = list(product((MODE_TEXT, MODE_TOKEN_IN), (None, "a"), (0, 2)))
    for listed, staged in product(sides, repeat=2):
        if listed[0] != staged[0]:
            fields = [
                {"mode": mode, "parent_call_id": parent, "prev_len": start, "cum_len": start + 2}
                for mode, parent, start in (listed, staged)
            ]
            yield reason(with_rows(**fields[0]), {**ROWS, "r/b": encode_row(redigest(CALLS[1], **fields[1]))})


def cumulative_lengths() -> Iterator[str]:
    """Yield all small lengths of a manifest row whose cum_len differs from the staged one, and of a staged row."""
    for prev_len, delta_len, cum_len in product(range(5), repeat=3):
        lengths = {"prev_len": prev_len, "delta_len": delta_len, "cum_len": cum_len}
        if cum_len != CALLS[1].cum_len:
            yield reason(with_rows(**lengths))
            yield reason(raw(CALLS), {**ROWS, "r/b": encode_row(redigest(CALLS[1], **lengths))})


def column_lengths() -> Iterator[str]:
    """Yield all small lengths of the token columns and of delta_len that are not one."""
    for tokens, mask, values, delta_len in product((1, 2, 3), repeat=4):
        if len({tokens, mask, values, delta_len}) > 1:
            columns = {
                "token_ids_delta": (20, 21, 22)[:tokens],
                "token_mask_delta": (0.0, 1.0, 1.0)[:mask],
                "generation_log_probs_delta": (0.0, -0.5, -0.5)[:values],
            }
            changes = {"delta_len": delta_len, "cum_len": 2 + delta_len}
            call = redigest(CALLS[1], **columns, **changes)
            yield reason(with_rows(digest=call.digest, **changes), {**ROWS, "r/b": encode_row(call)})


def staged_versions(name: str) -> Callable[[], Iterator[str]]:
    """Return versions of a staged row and of a manifest row that are not supported."""

    def answers() -> Iterator[str]:
        for version in (0, 1, 2, 3):
            if version != getattr(CALLS[1], name):
                yield reason(raw(CALLS), {**ROWS, "r/b": encode_row(evolve(CALLS[1], **{name: version}))})
                yield reason(with_rows(**{name: version}))

    return answers


def snapshots() -> Iterator[str]:
    """Yield staged rows with a mask, log-probability or id outside its domain."""
    for mask, value, token in product((0.0, -0.0, 1.0, 0.5), (0.0, -0.0, -0.5, float("nan")), (20, -1)):
        columns = {
            "token_ids_delta": (token, 21),
            "token_mask_delta": (mask, 1.0),
            "generation_log_probs_delta": (value, -0.5),
        }
        call = evolve(CALLS[1], **columns)
        try:
            call_digest(call)
        except ValueError:
            yield reason(raw(CALLS), {**ROWS, "r/b": encode_row(call)})


def circles() -> Iterator[str]:
    """Yield all parents and starts of two calls that lead in a circle."""
    for parents, starts in product((("b", "a"), ("a", None), ("b", "b")), product(range(5), repeat=2)):
        calls = []
        for call, parent, start in zip(CALLS, parents, starts, strict=True):
            mode = MODE_TEXT if parent is None else MODE_TOKEN_IN
            calls.append(redigest(call, parent_call_id=parent, mode=mode, prev_len=start, cum_len=start + 2))
        rows = {f"r/{call.model_call_id}": encode_row(call) for call in calls}
        yield reason(raw(calls, terminal_model_call_id="a"), rows)


def plan_of(carry: int, generation: int, staged: int, expected: int) -> RouteAssemblyPlan:
    return RouteAssemblyPlan("staging", (RouteSpan("r/a", carry, generation, staged, 1, ZEROS),), ("r/a",), expected)


def plans() -> Iterator[str]:
    """Yield published plans whose spans do not add up, for a row of any length: what the policy counts."""
    for carry, generation, staged, expected, length in product(range(3), range(3), range(3), range(5), range(1, 5)):
        if carry + generation != expected:
            published = encode_plan(plan_of(0, 1, 0, 1)) | {"expected_token_length": expected}
            published["spans"][0] |= {"carry_len": carry, "generation_len": generation, "staged_route_len": staged}
            yield execute_published_plan(published, {}, (1, 1), length).failure or "accepted"


# ── the table ───────────────────────────────────────────────────────────────────────────────────────────────────────


@frozen
class Shadow:
    """How a code arises on its own, and what the public entry answers over the enumerated domain."""

    alone: Callable[[], object]
    answers: Callable[[], Iterator[str]]


def linearizing(receipt=RECEIPT, calls=CALLS) -> Callable[[], object]:
    return lambda: linearize(receipt, calls)


def listing(**changes) -> Callable[[], object]:
    """Return a linearization with a manifest whose second row is another."""
    manifest = (RECEIPT.manifest[0], evolve(RECEIPT.manifest[1], **changes))
    return linearizing(evolve(RECEIPT, manifest=manifest))


def staging(**changes) -> Callable[[], object]:
    """Return a linearization with a second call that is another."""
    return linearizing(calls=[CALLS[0], evolve(CALLS[1], **changes)])


def linking(*links: LinkSpan) -> Callable[[], object]:
    """Return the checks of a row whose link spans are these."""
    return lambda: check_link_spans(evolve(ROW, link_spans=links), CHAIN)


A, B = ROW.link_spans
TWICE = evolve(RECEIPT, manifest=(RECEIPT.manifest[0],) * 2, terminal_model_call_id="a")
SAME_KEY = evolve(RECEIPT, manifest=(RECEIPT.manifest[0], evolve(RECEIPT.manifest[1], staging_key="r/a")))
POISON = {"capture_poisoned": [True], "terminal_selection": [None, "declared"]}

SHADOWS = {
    Code.DUPLICATE_MANIFEST_CALL_ID: Shadow(
        lambda: check_identity(
            "r", evolve(TWICE, manifest=(TWICE.manifest[0], evolve(TWICE.manifest[0], staging_key="k")))
        ),
        repeated_ids,
    ),
    Code.DUPLICATE_FETCHED_CALL_ID: Shadow(lambda: fetch(REPLAY, TWICE, DataPlane(ROWS)), misplaced),
    Code.UNSUPPORTED_SCHEMA: Shadow(
        linearizing(evolve(RECEIPT, schema_version=3)), receipts(schema_version=[0, 1, 3, None, "2", True, 2.0])
    ),
    Code.UNSUPPORTED_DIGEST: Shadow(
        linearizing(evolve(RECEIPT, digest_version=3)), receipts(digest_version=[0, 1, 3, None, "2", True, 2.0])
    ),
    Code.UNSUPPORTED_EXTRAS_DIGEST: Shadow(
        linearizing(evolve(RECEIPT, extras_digest_version=2)),
        receipts(extras_digest_version=[0, 2, 3, None, "1", True, 1.0]),
    ),
    Code.REBUILD_ROLLOUT_FAILED: Shadow(
        linearizing(evolve(RECEIPT, failure_reason="lost")),
        receipts(failure_reason=["lost", "", "a:b", " "], terminal_model_call_id=[None, "b"], **POISON),
    ),
    Code.REBUILD_CAPTURE_POISONED: Shadow(
        linearizing(evolve(RECEIPT, capture_poisoned=True)), receipts(terminal_model_call_id=[None, "b"], **POISON)
    ),
    Code.EMPTY_MANIFEST: Shadow(
        linearizing(evolve(RECEIPT, manifest=()), []),
        receipts(
            manifest=[[]],
            terminal_model_call_id=[None, "a"],
            terminal_selection=[None, "declared"],
            capture_poisoned=[False, True],
            failure_reason=[None, "lost"],
        ),
    ),
    Code.DUPLICATE_MANIFEST_ROW: Shadow(linearizing(TWICE, [CALLS[0]] * 2), repeated_ids),
    Code.REBUILD_DUPLICATE_STAGING_KEY: Shadow(linearizing(SAME_KEY), repeated_keys),
    Code.ROW_COUNT_MISMATCH: Shadow(linearizing(calls=CALLS[:1]), missing_rows),
    Code.DUPLICATE_SNAPSHOT: Shadow(linearizing(calls=[CALLS[0]] * 2), misplaced),
    Code.SNAPSHOT_IDENTITY_MISMATCH: Shadow(staging(model_call_id="c"), misplaced),
    Code.SNAPSHOT_ORDER_MISMATCH: Shadow(linearizing(calls=CALLS[::-1]), misplaced),
    Code.WRONG_MODE: Shadow(listing(mode=MODE_TEXT), modes),
    Code.WRONG_CUM_LEN: Shadow(listing(cum_len=5), cumulative_lengths),
    Code.WRONG_SCHEMA_VERSION: Shadow(staging(schema_version=3), staged_versions("schema_version")),
    Code.WRONG_DIGEST_VERSION: Shadow(staging(digest_version=3), staged_versions("digest_version")),
    Code.WRONG_EXTRAS_DIGEST_VERSION: Shadow(
        staging(extras_digest_version=3), staged_versions("extras_digest_version")
    ),
    Code.INVALID_SNAPSHOT: Shadow(staging(token_mask_delta=(0.5, 1.0)), snapshots),
    Code.MISSING_TERMINAL: Shadow(
        linearizing(evolve(RECEIPT, terminal_model_call_id="c")), receipts(terminal_model_call_id=[None, "c", "", "A"])
    ),
    Code.EMPTY_TRAINING_ROW: Shadow(lambda: lay_out("r", []), masks),
    Code.MEDIA_CHAIN_IDENTITY: Shadow(
        lambda: rollout_media(MEDIA, ROW, CHAIN[:1], DataPlane(ROWS)), lambda: misplaced(MEDIA)
    ),
    Code.DUPLICATE_ROUTE_SPAN: Shadow(linking(A, A), circles),
    Code.ROUTE_SPAN_IDENTITY: Shadow(linking(B, A), misplaced),
    Code.ROUTE_GENERATION_SPAN_MISMATCH: Shadow(linking(A, LinkSpan("b", 0, 3)), masks),
    Code.ROUTE_CARRY_SPAN_MISMATCH: Shadow(linking(A, LinkSpan("b", 0, 1)), masks),
    Code.ROUTE_SPAN_LENGTH_MISMATCH: Shadow(
        lambda: check_link_spans(evolve(ROW, token_ids=ROW.token_ids[:-1]), CHAIN), column_lengths
    ),
    Code.INVALID_ROUTE_PLAN: Shadow(lambda: check_plan(plan_of(0, 1, 0, 2)), misplaced),
    Code.CANONICAL_LENGTH_MISMATCH: Shadow(
        lambda: execute(plan_of(0, 1, 0, 1), {}, (1, 1), 2), lambda: (*masks(), *column_lengths())
    ),
    Code.ASSEMBLED_LENGTH_MISMATCH: Shadow(lambda: execute(plan_of(0, 1, 0, 2), {}, (1, 1), 2), plans),
}
"""Per code that an earlier rule hides, everywhere or inside a rollout."""

WITHIN_ONE_FUNCTION = {Code.WRONG_MODEL_CALL_ID}
"""The comparison and the rule that hides it are steps of one function: there is nothing to call separately."""


def hidden(code: Code) -> bool:
    return not of_rollouts(code)


def head(answer: str) -> str:
    """Return the normative part of a reason."""
    code, _, rest = answer.partition(":")
    return f"{code}:{rest.partition(':')[0]}" if code in ("rebuild_failed", "route_assembly") else code


def earlier(code: Code) -> set[str]:
    """Return the reasons that the catalogue names as firing first, as the public entry writes them."""
    named = (SHADOWED_BY.get(code) or HIDDEN_IN_ROLLOUT_BY.get(code) or "").split(" or ")
    rebuilding = {each.code for each in Code if each.stage is Stage.REBUILD}
    others = {each.code for each in Code if each.stage is not Stage.REBUILD}
    return {
        f"rebuild_failed:{name}" if name in rebuilding and name not in others else name
        for name in named
        if name.partition(":")[0] in rebuilding | others
    }


def test_every_hidden_code_has_an_entry():
    assert SHADOWS.keys() | WITHIN_ONE_FUNCTION == {code for code in Code if hidden(code)}


def test_finalize_rollout_accepts_the_rollout_that_entries_start_from():
    assert reason(raw(CALLS)) == reason(raw(CALLS), config=MEDIA) == "accepted"


@pytest.mark.parametrize("code", SHADOWS, ids=lambda code: code.name)
def test_hidden_codes_are_raised_by_their_own_function(code):
    with pytest.raises(Rejected) as caught:
        SHADOWS[code].alone()
    assert caught.value.code is code


@pytest.mark.parametrize("code", SHADOWS, ids=lambda code: code.name)
def test_hidden_codes_give_way_to_an_earlier_rule(code):
    answers = {head(answer) for answer in SHADOWS[code].answers()}
    own = f"rebuild_failed:{code.code}" if code.stage is Stage.REBUILD else code.code
    shared = {each.code for each in Code if each.code == code.code and not hidden(each)}
    assert own not in answers or own in shared
    assert f"route_assembly:{code.code}" not in answers
    assert earlier(code) <= answers


def test_linearize_compares_ids_before_fields():
    codes = set()
    for ids in product("abc", repeat=2):
        calls = [evolve(call, model_call_id=call_id) for call, call_id in zip(CALLS, ids, strict=True)]
        if ids == ("a", "b"):
            continue
        with pytest.raises(Rejected) as caught:
            linearize(RECEIPT, calls)
        codes.add(caught.value.code)
    assert codes == {Code.DUPLICATE_SNAPSHOT, Code.SNAPSHOT_IDENTITY_MISMATCH, Code.SNAPSHOT_ORDER_MISMATCH}
