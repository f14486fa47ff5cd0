"""ms-swift: the advantages of rollouts that may be several rows each.

``SWIFT_ESTIMATOR`` chooses the estimator, ``grpo`` where it is not set.
"""

from __future__ import annotations

import os
from typing import Any

from absent import absent
from serving import serve

absent("accelerate", "datasets", "peft")

import torch  # noqa: E402
from swift.rl_core.advantage import compute_advantages_dynamic  # noqa: E402

ESTIMATOR = os.environ.get("SWIFT_ESTIMATOR", "grpo")


def advantages(first: list[dict[str, Any]], second: list[dict[str, Any]]) -> dict[str, list[float]]:
    """Compute the advantages of two batches, one after the other."""
    return {"first": scored(first), "second": scored(second)}


def scored(items: list[dict[str, Any]]) -> list[float]:
    """Compute the advantages of one batch: a group is a prompt id, a rollout a request id."""
    if not items:
        return []
    found, _ = compute_advantages_dynamic(
        rewards_per_func=torch.tensor([[item["reward"]] for item in items]),
        reward_weights=torch.ones(1),
        prompt_ids=[item["group"] for item in items],
        request_ids=[item["rollout"] for item in items],
        advantage_estimator=ESTIMATOR,
    )
    return [float(value) for value in found.tolist()]


if __name__ == "__main__":
    serve("ms-swift", {"advantage": {"advantages": advantages}})
