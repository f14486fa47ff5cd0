"""Right variants that answer otherwise: other classes for results and errors, other words, numbers of their own."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any, Final

from rollproof.impl.reassembler import CleanupError, PublishError, RolloutReassembler
from rollproof.properties.right.variant import Right
from rollproof.spec.judge.latitude import LATER_ADVISORIES, REJECTION_METRICS
from rollproof.spec.rejections import Code

WITH_SUBJECT: Final = (Code.REBUILD_FAILED.code, Code.ROUTE_ASSEMBLY.code)
"""Codes whose subject is normative, and a code itself."""


class PlainObjects(RolloutReassembler):
    """Results are objects with attributes, and their lists are tuples."""

    def finalize_rollout(self, rollout_id: str, receipt: Any, *, reward: Any) -> Any:
        """Finalize."""
        return plain_object(super().finalize_rollout(rollout_id, receipt, reward=reward))

    def finalize_group(self, *arguments: Any, **named: Any) -> Any:
        """Finalize."""
        group = plain_object(super().finalize_group(*arguments, **named))
        group.meta = group.meta and SimpleNamespace(**{name: tupled(value) for name, value in vars(group.meta).items()})
        return group


def plain_object(result: Any) -> Any:
    """Return the fields of a result as attributes of an object without a class of its own."""
    fields = dataclasses.fields(result)
    return SimpleNamespace(**{field.name: tupled(getattr(result, field.name)) for field in fields})


def tupled(value: Any) -> Any:
    """Return a list as a tuple, anything else as it is."""
    return tuple(value) if isinstance(value, list) else value


class OtherWords(RolloutReassembler):
    """The free text after a code is another one, and so is why a group was dropped."""

    def finalize_rollout(self, rollout_id: str, receipt: Any, *, reward: Any) -> Any:
        """Finalize."""
        found = super().finalize_rollout(rollout_id, receipt, reward=reward)
        return dataclasses.replace(found, rejection_reason=reworded(found.rejection_reason))

    def finalize_group(self, *arguments: Any, **named: Any) -> Any:
        """Finalize."""
        group = super().finalize_group(*arguments, **named)
        return dataclasses.replace(group, drop_reason="nothing to publish") if group.dropped else group


def reworded(reason: str | None) -> str | None:
    """Return a reason with its normative part kept and the rest in other words."""
    if reason is None:
        return None
    code, _, rest = reason.partition(":")
    if code == Code.ROLLOUT_FAILED.code:
        return f"{reason}: as its receipt says"
    subject = f":{rest.partition(':')[0]}" if code in WITH_SUBJECT else ""
    return f"{code}{subject}: in other words"


class MoreMetrics(RolloutReassembler):
    """A group reports numbers under names of its own."""

    def finalize_group(self, *arguments: Any, **named: Any) -> Any:
        """Finalize."""
        group = super().finalize_group(*arguments, **named)
        return dataclasses.replace(group, metrics={**group.metrics, "own/groups": 1.0, "row_assembly/wait_ms": 0.5})


class OlderMetrics(RolloutReassembler):
    """A group counts neither rejections by code nor the newer advisories, as before there were any."""

    def finalize_group(self, *arguments: Any, **named: Any) -> Any:
        """Finalize."""
        group = super().finalize_group(*arguments, **named)
        newer = (*REJECTION_METRICS, *LATER_ADVISORIES)
        kept = {name: value for name, value in group.metrics.items() if not name.startswith(newer)}
        return dataclasses.replace(group, metrics=kept)


class WholeNumbers(RolloutReassembler):
    """Metrics that are whole numbers are ints."""

    def finalize_group(self, *arguments: Any, **named: Any) -> Any:
        """Finalize."""
        group = super().finalize_group(*arguments, **named)
        whole = {name: int(value) if value == int(value) else value for name, value in group.metrics.items()}
        return dataclasses.replace(group, metrics=whole)


class ContradictoryArguments(ValueError):
    """The caller's arguments contradict each other."""


class NoRoutes(RuntimeError):
    """Router replay is on, and nothing says what shape routes have."""


class GroupError(Exception):
    """A write failed; the message names partition and keys."""


class OwnErrors(RolloutReassembler):
    """Errors are of classes of the implementation's own."""

    def finalize_group(self, *arguments: Any, **named: Any) -> Any:
        """Finalize."""
        try:
            return super().finalize_group(*arguments, **named)
        except (PublishError, CleanupError) as error:
            raise GroupError(str(error)) from error
        except ValueError as error:
            raise ContradictoryArguments(*error.args) from error
        except RuntimeError as error:
            if type(error) is RuntimeError and "router replay" in str(error):
                raise NoRoutes(str(error)) from error
            raise


RIGHT: Final = (
    Right("plain-objects", "Results are objects without a class of their own, with tuples for lists.", PlainObjects),
    Right("other-free-text", "Other words follow a rejection code.", OtherWords),
    Right("own-metrics", "A group reports metrics beside the contract's.", MoreMetrics),
    Right("older-metrics", "Neither rejections by code nor the newer advisories are counted.", OlderMetrics),
    Right("whole-number-metrics", "Metrics that are whole numbers are ints.", WholeNumbers),
    Right("own-errors", "Errors are of subclasses of those that the contract names.", OwnErrors),
)
