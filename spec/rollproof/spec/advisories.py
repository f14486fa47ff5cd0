"""Oddities of the valid rows of a group (section 8): in which rollout, in which call, and how often.

Nothing here rejects. Metrics carry the counts; an audit lists the places, so that people can look.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from attrs import frozen

from rollproof.spec.assembly import TokenRoutes, token_routes
from rollproof.spec.constants import ROUTE_SENTINEL
from rollproof.spec.outcomes import RolloutOutcome
from rollproof.spec.records import LinearizedRow, ReassemblerConfig
from rollproof.spec.route_boundary import unrepaired_positions
from rollproof.spec.sampler import SampledTokens
from rollproof.spec.tensor import to_float32

SHARED_PROMPT = "prompt_shared_by_groups"
"""What only an audit sees: a group whose published prompt is that of an earlier group (decision D39)."""

LONGEST = frozenset({"repeated_route_run"})
"""Advisories whose metric is the largest count of a group; that of the others is the sum."""


@frozen
class Advisory:
    """One oddity. ``call`` is None where it is the rollout's as a whole."""

    name: str
    rollout_id: str
    call: str | None
    count: int


def names(config: ReassemblerConfig, current: int | None = None) -> tuple[str, ...]:
    """Return the advisories that a group reports, those without any case included.

    ``current`` is the group's current weight version, where the caller knows it.
    """
    return (
        "positive_logprob_tokens",
        "zero_logprob_generations",
        "weight_version_falls",
        "reward_disagreement",
        "overlong_rows",
        "several_extended_roots",
        "mixed_prompts",
        "zero_logprob_tokens",
        "implausible_logprobs",
        "untrained_generated_tokens",
        "unpredicted_first_token",
        *(("stop_token_not_trained",) if config.stop_token_ids else ()),
        *(("version_above_current",) if current is not None else ()),
        *(("placeholder_token_outside_items",) if config.capture_media else ()),
        *(("unchecked_media_calls",) if config.capture_media else ()),
        *(("topk_unordered", "topk_disagreement") if config.top_logprobs else ()),
        *(("unrepaired_boundary_tokens",) if config.route_boundary and config.router_replay_enabled else ()),
        *(("routeless_calls",) if config.router_replay_enabled else ()),
        *(("repeated_route_run",) if config.direct_routes else ()),
    )


def find_advisories(
    config: ReassemblerConfig, outcomes: Sequence[RolloutOutcome], current: int | None = None
) -> list[Advisory]:
    """Return every oddity of a group's valid rows, rollout by rollout, and then those of the rows side by side."""
    reported = names(config, current)
    valid = [outcome for outcome in outcomes if outcome.rollout.valid]
    own = [
        Advisory(name, outcome.rollout.rollout_id, call, count)
        for outcome in valid
        for name, call, count in (*_of_rollout(config, outcome), *newer_versions(outcome, current))
        if name in reported and count
    ]
    return [*own, *(Advisory("mixed_prompts", rollout_id, None, 1) for rollout_id in other_prompts(valid))]


def other_prompts(valid: Sequence[RolloutOutcome]) -> Iterator[str]:
    """Yield the valid rollouts whose prompt is not that of the first, which all rows publish (decision D39)."""
    prompts = [outcome.rollout.token_ids[: outcome.rollout.prompt_len] for outcome in valid]
    for outcome, prompt in zip(valid, prompts, strict=True):
        if prompt != prompts[0]:
            yield outcome.rollout.rollout_id


def _of_rollout(config: ReassemblerConfig, outcome: RolloutOutcome) -> Iterator[tuple[str, str | None, int]]:
    """Yield (name, call, count)."""
    row, receipt, rollout = outcome.row, outcome.receipt, outcome.rollout
    assert row is not None
    assert receipt is not None
    least = least_plausible(config)
    for call, (start, carry, end) in zip(row.model_call_ids, spans(row), strict=True):
        logprobs = row.logprobs[start:end]
        yield "positive_logprob_tokens", call, sum(value > 0.0 for value in logprobs)
        yield "zero_logprob_generations", call, int(not any(logprobs[carry:]))
        yield "zero_logprob_tokens", call, sum(value == 0.0 for value in logprobs[carry:])
        yield "implausible_logprobs", call, sum(value < least for value in logprobs)
    for name, counts in () if outcome.topk is None else sampler_counts(outcome.topk):
        for call, count in counts:
            yield name, call, count
    for call, count in outcome.untrained:
        yield "untrained_generated_tokens", call, count
    yield "unpredicted_first_token", row.model_call_ids[0], int(row.token_mask[0] == 1.0)
    for call in untrained_stops(config, row):
        yield "stop_token_not_trained", call, 1
    for call, count in outcome.stray_placeholders:
        yield "placeholder_token_outside_items", call, count
    for call in weight_version_falls(row):
        yield "weight_version_falls", call, 1
    yield "reward_disagreement", None, int(receipt.reward is not None and to_float32(receipt.reward) != rollout.reward)
    yield "overlong_rows", None, int(len(rollout.token_ids) > config.max_seq_len)
    yield "several_extended_roots", None, int(extended_roots(outcome) > 1)
    for call in outcome.unchecked_media:
        yield "unchecked_media_calls", call, 1
    if any(outcome.route_lengths):
        for call, length in zip(row.model_call_ids, outcome.route_lengths, strict=True):
            yield "routeless_calls", call, int(length == 0)
    for position in () if rollout.route_plan is None else unrepaired_positions(rollout.route_plan):
        yield "unrepaired_boundary_tokens", call_at(row, position), 1
    begin, run = longest_route_run(outcome)
    if run > 1:
        yield "repeated_route_run", call_at(row, begin), run


def sampler_counts(topk: SampledTokens) -> tuple[tuple[str, tuple[tuple[str, int], ...]], ...]:
    """Return what is odd about the candidates of a row's tokens: name, and per call how often (section 12)."""
    return ("topk_unordered", topk.unordered), ("topk_disagreement", topk.disagreeing)


def least_plausible(config: ReassemblerConfig) -> float:
    """Return the bound in the type of what is compared with it: -0.3 is not below -0.3."""
    return to_float32(config.least_plausible_logprob)


def newer_versions(outcome: RolloutOutcome, current: int | None) -> Iterator[tuple[str, str, int]]:
    """Yield the calls of the manifest that say that they ran under a newer weight version than there is."""
    assert outcome.receipt is not None
    for record in outcome.receipt.manifest:
        if current is not None and record.weight_version > current:
            yield "version_above_current", record.model_call_id, 1


def untrained_stops(config: ReassemblerConfig, row: LinearizedRow) -> Iterator[str]:
    """Yield the calls whose generation did not end in a stop token, while the next call's carry begins with one.

    The policy sampled that token; it came back as a part of the next prompt, and is not trained.
    """
    for call, (before, after) in zip(row.model_call_ids, pairwise(spans(row)), strict=False):
        start, carry, end = before
        generated, following = row.token_ids[start + carry : end], row.token_ids[end : end + after[1]]
        stops = [ids[0] in config.stop_token_ids for ids in (generated[-1:], following) if ids]
        if stops == [False, True]:
            yield call


def weight_version_falls(row: LinearizedRow) -> Iterator[str]:
    """Yield the calls of a chain that ran under an older weight version than their parent."""
    for call, (earlier, later) in zip(row.model_call_ids[1:], pairwise(row.weight_versions), strict=True):
        if later < earlier:
            yield call


def spans(row: LinearizedRow) -> Iterator[tuple[int, int, int]]:
    """Yield for each call of a chain where it starts in the row, how much of it is carry, and where it ends."""
    start = 0
    for span in row.link_spans:
        end = start + span.carry_len + span.generation_len
        yield start, span.carry_len, end
        start = end


def call_at(row: LinearizedRow, position: int) -> str:
    """Return the call that a token of the row belongs to."""
    return next(call for call, (_, _, end) in zip(row.model_call_ids, spans(row), strict=True) if position < end)


def extended_roots(outcome: RolloutOutcome) -> int:
    """Return how many root calls of the manifest some call continues."""
    assert outcome.receipt is not None
    parents = {record.parent_call_id for record in outcome.receipt.manifest}
    roots = [record for record in outcome.receipt.manifest if record.parent_call_id is None]
    return sum(record.model_call_id in parents for record in roots)


def ids_per_token(outcome: RolloutOutcome) -> list[TokenRoutes]:
    """Return per token of the row its expert ids over all layers; nothing where the row has no routes."""
    routed = outcome.rollout.routed_experts
    return [] if routed is None else token_routes(routed)


def longest_route_run(outcome: RolloutOutcome) -> tuple[int, int]:
    """Return where the longest run of tokens with one route begins, and its length; sentinels are not routes."""
    begin, longest, run, previous = 0, 0, 0, None
    for position, ids in enumerate(ids_per_token(outcome)):
        if set(ids) == {ROUTE_SENTINEL}:
            run, previous = 0, None
            continue
        run = run + 1 if ids == previous else 1
        previous = ids
        if run > longest:
            begin, longest = position - run + 1, run
    return begin, longest
