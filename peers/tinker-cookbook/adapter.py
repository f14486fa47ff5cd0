"""tinker-cookbook: a trajectory to training data, and the advantages of a group of trajectories."""

from __future__ import annotations

from typing import Any

import tinker
from serving import Refusal, serve
from tinker_cookbook.completers import TokensWithLogprobs
from tinker_cookbook.exceptions import DataValidationError
from tinker_cookbook.rl.data_processing import compute_advantages, trajectory_to_data
from tinker_cookbook.rl.types import Trajectory, TrajectoryGroup, Transition

Json = dict[str, Any]


def observation(ids: list[int]) -> tinker.ModelInput:
    """Return token ids as the package's observation."""
    return tinker.ModelInput.from_ints(ids) if ids else tinker.ModelInput.empty()


def trajectory_of(calls: list[Json], reward: float) -> Trajectory:
    """Return the calls of a rollout as the transitions of a trajectory; the last one has the reward."""
    transitions = [
        Transition(
            ob=observation(call["prompt_ids"]),
            ac=TokensWithLogprobs(
                tokens=call["generated_ids"],
                maybe_logprobs=call["log_probs"],
                stop_reason=call["finish_reason"],
            ),
            reward=reward if call is calls[-1] else 0.0,
            episode_done=call is calls[-1],
        )
        for call in calls
    ]
    return Trajectory(transitions=transitions, final_ob=tinker.ModelInput.empty())


def merge_calls(calls: list[Json], reward: float, max_len: int | None, pad_id: int, eos_ids: list[int]) -> Json:
    """Return one row per datum, its labels where the package has them: at the position that predicts them."""
    try:
        data = trajectory_to_data(trajectory_of(calls, reward), 1.0, include_provenance=False)
    except DataValidationError as error:
        raise Refusal(f"data_validation: {error}") from None
    except ValueError as error:
        if "Logprobs" in str(error):
            raise Refusal(f"log_probs: {error}") from None
        raise
    except AssertionError:
        raise Refusal("lengths: its own assertion that all columns of a datum have one length") from None
    return {"rows": [row_of(datum) for datum in data], "dropped": []}


def row_of(datum: tinker.Datum) -> Json:
    """Return a datum as a row: its input and the last target, which is in no input."""
    columns = {name: value.tolist() for name, value in datum.loss_fn_inputs.items()}
    targets = columns["target_tokens"]
    return {
        "ids": [*datum.model_input.to_ints(), *targets[-1:]],
        "mask": [*map(int, columns["mask"]), 0],
        "log_probs": [*columns["logprobs"], 0.0],
        "attention": None,
    }


def advantages(first: list[Json], second: list[Json]) -> Json:
    """Return the values of both batches."""
    return {"first": values(first), "second": values(second)}


def values(batch: list[Json]) -> list[float]:
    """Return the advantage of each row's trajectory in the group of its prompt."""
    groups: dict[str, dict[str, float]] = {}
    for row in batch:
        groups.setdefault(row["group"], {})[row["rollout"]] = row["reward"]
    found: dict[str, float] = {}
    for rewards in groups.values():
        trajectories = [trajectory_of([CALL], reward) for reward in rewards.values()]
        group = TrajectoryGroup(trajectories, [0.0] * len(trajectories), [{} for _ in trajectories])
        found |= dict(zip(rewards, compute_advantages([group])[0].tolist(), strict=True))
    return [found[row["rollout"]] for row in batch]


CALL: Json = {"prompt_ids": [1], "generated_ids": [2], "log_probs": [-0.5], "finish_reason": "stop"}
"""What a trajectory holds does not matter to its advantage."""


if __name__ == "__main__":
    serve("tinker-cookbook", {"merge": {"merge_calls": merge_calls}, "advantage": {"advantages": advantages}})
