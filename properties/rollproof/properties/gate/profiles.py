"""How many examples a check runs."""

from __future__ import annotations

from typing import Final

from attrs import frozen


@frozen
class Profile:
    """``per_stream`` examples for a stream of weight 1, and for each stream that drives one rejection code."""

    name: str
    per_stream: int
    per_code: int

    def examples(self, weight: float, *, drives_code: bool, limit: int | None = None) -> int:
        """Return the number of examples for one stream; ``limit`` caps it."""
        count = self.per_code if drives_code else max(1, round(self.per_stream * weight))
        return count if limit is None else min(count, limit)


PROFILES: Final = {
    profile.name: profile
    for profile in (
        Profile("quick", per_stream=25, per_code=5),
        Profile("ci", per_stream=75, per_code=25),
        Profile("deep", per_stream=4000, per_code=250),
    )
}
