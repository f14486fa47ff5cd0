"""Values that no rollout ever looked like."""

from __future__ import annotations

from rollproof.properties.strategies.recipes import realize, realize_request

__all__ = ["realize", "realize_request"]
