"""What verifiers leaves to its consumer: branches share sampled nodes, and each of them trains such a node."""

from __future__ import annotations

from collections.abc import Iterable

from rollproof.properties.adapters.protocol import AnswerClass, Deviation
from rollproof.spec.judge.catalogue import of_area
from rollproof.spec.judge.portable import MergeCalls
from rollproof.spec.judge.requests import Accepted, Answer, Area, Request
from rollproof.spec.portable import Call, Merged, Row

FORK = MergeCalls(
    (
        Call((3,), (4,), (-1.0,)),
        Call((3, 4, 5), (6,), (-2.0,)),
        Call((3, 4, 7), (6,), (-3.0,)),
    ),
    reward=1.0,
    max_len=None,
    pad_id=2,
    eos_ids=(9,),
)


def trained_once(merged: Merged, request: MergeCalls) -> Merged:
    """Return the rows in which a node that an earlier branch trains is context, as the consumer makes them."""
    sampled: dict[tuple[int, ...], int] = {}
    for call in request.calls:
        for end in range(len(call.prompt_ids) + 1, len(call.context) + 1):
            sampled[call.context[:end]] = sampled.get(call.context[:end], 0) + 1
    rows = []
    for row in merged.rows:
        mask, log_probs = list(row.mask), list(row.log_probs or ())
        for position, trains in enumerate(row.mask):
            prefix = row.ids[: position + 1]
            if trains and prefix in sampled:
                if sampled[prefix] == 0:
                    mask[position] = 0
                    log_probs[position] = 0.0
                else:
                    sampled[prefix] -= 1
        rows.append(Row(row.ids, tuple(mask), tuple(log_probs), row.attention))
    return Merged(tuple(rows), merged.dropped)


def shared_nodes(request: Request, expected: Answer) -> Iterable[Answer | AnswerClass]:
    """Yield the class of answers that hold everything, once shared nodes are trained once."""
    if not isinstance(request, MergeCalls):
        return

    def holds(answer: Answer) -> bool:
        if not isinstance(answer, Accepted) or not isinstance(answer.value, Merged):
            return False
        once = Accepted(trained_once(answer.value, request), answer.policies)
        rules = [rule for rule in of_area(Area.MERGE) if rule.covers(request) and not rule.advisory]
        return all(rule.check(request, expected, once) is None for rule in rules)

    yield holds


DEVIATIONS = (
    Deviation(
        "shared-nodes",
        Area.MERGE,
        "14",
        "A sampled node that several branches share is in the sampled_mask of each: prime-rl, which makes samples of "
        "the branches, trains it in the first one only (PrimeIntellect-ai/prime-rl 2975).",
        shared_nodes,
        (FORK,),
    ),
)
