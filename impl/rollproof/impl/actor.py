"""``RolloutReassemblerActor``: the Ray actor that NeMo RL's callers create, with the request that they send it.

Only metadata crosses the boundary: a request holds receipts, which are free of tokens, and a result says where the
rows are. Needs Ray.
"""

from __future__ import annotations

import dataclasses
import gc
import importlib.util
from typing import Any, TypeAlias

import ray

from rollproof.impl.arguments import as_plane
from rollproof.impl.dataplane.memory import MemoryDataPlane
from rollproof.impl.outcomes import FinalizedGroup
from rollproof.impl.reassembler import RolloutReassembler
from rollproof.impl.recovery import Recovery
from rollproof.spec.records import GroupRequest


@dataclasses.dataclass(frozen=True)
class ReassemblyRequest:
    """One group to finalize, with NeMo RL's field names in its order."""

    group_id: str
    rollout_ids: tuple[str, ...]
    canonical_sample_ids: tuple[str, ...] | None
    receipts: tuple[dict[str, Any] | None, ...]
    rewards: tuple[float, ...]
    fallback_weight_version: int
    prompt_idx: int
    mask_sample: tuple[bool, ...]
    loss_multiplier: float = 1.0
    group_labels: Any = None
    """Under which scopes ``result_stats`` are reported; see ``rollproof.impl.metrics.handed_through``."""
    result_stats: Any = None
    current_weight_version: int | None = None


Request: TypeAlias = ReassemblyRequest | GroupRequest
"""The requests that an actor accepts: any object with these attributes."""


@dataclasses.dataclass(frozen=True)
class RolloutReassemblerActorConfig:
    """The keyword arguments of ``RolloutReassembler``, with NeMo RL's field names first and in its order.

    Raises what ``RolloutReassembler`` raises for them, here and not in the actors' processes.
    """

    partition_id: str
    staging_partition: str
    pad_token_id: int
    router_replay_enabled: bool
    defer_routed_experts_to_policy: bool
    max_seq_len: int
    capture_media: bool = False
    routed_dims: tuple[int, int] | None = None
    num_experts: int | None = None
    vocab_size: int | None = None
    allow_repeated_experts: bool = False
    patches_per_embedding: int | None = None
    publish_group_key: bool = False
    least_plausible_logprob: float = -60.0
    stop_token_ids: tuple[int, ...] = ()
    route_boundary: str | None = None
    top_logprobs: int = 0
    reads: str = "rollout"

    def __post_init__(self) -> None:
        RolloutReassembler(MemoryDataPlane(), **vars(self))


class LocalReassembler:
    """The actor's methods, in this process.

    ``dp_client`` is a data plane that can be pickled, a Ray handle to one, a function that makes one in the actor, or
    NeMo RL's ``DataPlaneConfig`` where that is installed. ``config`` is a dataclass of keyword arguments of
    ``RolloutReassembler``: ours, or NeMo RL's own.
    """

    def __init__(self, dp_client: Any, config: Any) -> None:
        arguments = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
        client = client_of(dp_client)
        self._reassembler = RolloutReassembler(client, **arguments)
        names = config.partition_id, config.staging_partition
        self._recovery = Recovery(client, *names, deferred=config.defer_routed_experts_to_policy)

    def check_dependencies(self) -> None:
        """Return once the actor has started, as NeMo RL's callers wait for it. Nothing is imported later."""

    def finalize(self, request: Request) -> FinalizedGroup:
        """Finalize a group for the first time. Raises what ``RolloutReassembler.finalize_group`` raises."""
        return self._reassembler.finalize_group(**arguments_of(request))

    def recover(self, request: Request) -> FinalizedGroup:
        """Finish or run a group whose fate is unknown. Raises what ``Recovery.recover`` raises."""
        return self._recovery.recover(group_request(request), self._reassembler)


class _Finalizer(LocalReassembler):
    """The only thing in its process."""

    def __init__(self, dp_client: Any, config: Any) -> None:
        super().__init__(dp_client, config)
        settle()


RolloutReassemblerActor: Any = ray.remote(num_cpus=1, num_gpus=0, max_restarts=0, max_task_retries=0)(_Finalizer)
"""``LocalReassembler`` as a Ray actor that is never restarted: a group whose actor died is for ``Recovery``."""


def settle() -> None:
    """Take what is loaded out of the garbage collector's sight, in a process that finalizes and does nothing else.

    It would look through all modules of torch, tensordict and Ray every few groups, which takes as long as several.
    """
    gc.collect()
    gc.freeze()


def create_rollout_reassembler_actors(dp_client: Any, config: Any, *, num_workers: int) -> list[Any]:
    """Start ``num_workers`` actors and wait until all of them can finalize; none is left behind where one cannot."""
    if num_workers < 1:
        raise ValueError(f"num_workers: got {num_workers}, expected at least 1")
    actors = [RolloutReassemblerActor.remote(dp_client, config) for _ in range(num_workers)]
    try:
        ray.get([actor.check_dependencies.remote() for actor in actors])
    except Exception:
        for actor in actors:
            ray.kill(actor)
        raise
    return actors


def arguments_of(request: Request) -> dict[str, Any]:
    """Return a request as keyword arguments of ``finalize_group``, in the types that it takes."""
    arguments = {
        name: getattr(request, name)
        for name in ("group_id", "fallback_weight_version", "prompt_idx", "loss_multiplier")
    }
    arguments |= {name: list(getattr(request, name)) for name in ("rollout_ids", "receipts", "rewards", "mask_sample")}
    canonical = request.canonical_sample_ids
    arguments["canonical_sample_ids"] = None if canonical is None else list(canonical)
    for name in ("group_labels", "result_stats", "current_weight_version"):
        if getattr(request, name, None) is not None:
            arguments[name] = getattr(request, name)
    return arguments


def group_request(request: Request) -> GroupRequest:
    """Return a request as recovery takes it."""
    if isinstance(request, GroupRequest):
        return request
    names = ("rollout_ids", "receipts", "rewards", "mask_sample")
    canonical = request.canonical_sample_ids
    return GroupRequest(
        group_id=request.group_id,
        **{name: tuple(getattr(request, name)) for name in names},
        fallback_weight_version=request.fallback_weight_version,
        prompt_idx=request.prompt_idx,
        loss_multiplier=request.loss_multiplier,
        canonical_sample_ids=None if canonical is None else tuple(canonical),
        current_weight_version=getattr(request, "current_weight_version", None),
    )


def as_client(name: str, value: Any) -> Any:
    """Return a data plane, or what an actor can make one from. Raises ``ValueError`` for anything else."""
    if is_plane(value):
        return as_plane(name, value)
    if callable(value) or importlib.util.find_spec("nemo_rl") is not None:
        return value
    raise ValueError(f"{name}: got {value!r:.80}, expected a data plane, or a function that returns one")


def is_plane(value: Any) -> bool:
    """Return whether a value is to be used as a data plane; a class is a function that returns one."""
    return hasattr(value, "get_samples") and not isinstance(value, type)


def client_of(dp_client: Any) -> Any:
    """Return the data plane that an actor got, or that it makes from what it got."""
    if is_plane(dp_client):
        return dp_client
    if callable(dp_client):
        return dp_client()
    from nemo_rl.data_plane import build_data_plane_client

    return build_data_plane_client(dp_client, bootstrap=False)
