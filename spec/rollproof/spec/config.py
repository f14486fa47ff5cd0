"""The configuration of a reassembler (section 8). Its defaults are this project's.

It is the caller's own, so it refuses what contradicts itself.
"""

from __future__ import annotations

from typing import Final

from attrs import field, frozen

from rollproof.spec.constants import ROUTE_BOUNDARY_CHOICES

CAPABILITY: Final = {"capability": True}
"""Metadata of a field that belongs to a capability: with its default it means nothing, and is left out in JSON."""


@frozen
class ReassemblerConfig:
    """The constructor arguments of a reassembler (section 8), by the names of its reference page."""

    partition_id: str = "train"
    staging_partition: str = "staging"
    pad_token_id: int = 0
    max_seq_len: int = 4096
    router_replay_enabled: bool = False
    defer_routed_experts_to_policy: bool = field(default=False)
    capture_media: bool = False
    routed_dims: tuple[int, int] | None = None
    num_experts: int | None = None
    vocab_size: int | None = None
    allow_repeated_experts: bool = False
    patches_per_embedding: int | None = None
    """The merge factor of images, where it is known (decision D37)."""
    publish_group_key: bool = False
    """Whether rows have the column ``group_key`` (decision D39)."""
    least_plausible_logprob: float = -60.0
    """Log-probabilities below it, as float32, are counted by the advisory ``implausible_logprobs``."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end a generation, where they are known, for the advisory ``stop_token_not_trained``."""
    route_boundary: str | None = field(default=None, metadata=CAPABILITY)
    """Reads boundary sidecars, and says what becomes of boundary tokens without one (D28); None refuses sidecars."""

    top_logprobs: int = field(default=0, metadata=CAPABILITY)
    """How many candidates per generated token the sampler columns have (section 12); 0 reads and publishes none."""

    @top_logprobs.validator
    def _is_count(self, _: object, value: int) -> None:
        if type(value) is not int or value < 0:
            raise ValueError(f"top_logprobs: got {value!r}, expected a number of candidates, or 0")

    @route_boundary.validator
    def _is_choice(self, _: object, value: str | None) -> None:
        if value is not None and value not in ROUTE_BOUNDARY_CHOICES:
            choices = ", ".join(ROUTE_BOUNDARY_CHOICES)
            raise ValueError(f"route_boundary: got {value!r}, expected None or one of {choices}")

    @defer_routed_experts_to_policy.validator
    def _has_routes_to_defer(self, _: object, value: bool) -> None:
        if value and not self.router_replay_enabled:
            raise ValueError("defer_routed_experts_to_policy: true, but router_replay_enabled is false")

    @property
    def direct_routes(self) -> bool:
        """Whether routes are assembled before publication (section 6)."""
        return self.router_replay_enabled and not self.defer_routed_experts_to_policy
