"""The data plane that rollproof needs: three methods, with the names and keywords that NeMo RL uses.

A finalizer that mistakes an outage for a missing row publishes a placeholder and clears intact staging. So a miss is
something that a plane *reports*, by fewer rows or by ``MissingRows``; every other exception, of any type, is an outage.
docs/data-planes.md describes the protocol in full; ``rollproof check-plane`` holds a plane to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, TypeVar, runtime_checkable

from tensordict import TensorDictBase

Method = TypeVar("Method", bound=Callable[..., Any])

_NEW: Final = "answers_are_new"


def new_answers(get_samples: Method) -> Method:
    """Mark a data plane's ``get_samples``: nobody else will ever write to the memory of its answers.

    They are published without a copy then. A method that overrides it is not marked.
    """
    setattr(get_samples, _NEW, True)
    return get_samples


def has_new_answers(client: Any) -> bool:
    """Return whether a data plane's ``get_samples`` is marked. Those of Ray actors are not."""
    return getattr(getattr(client, "get_samples", None), _NEW, False) is True


class MissingRows(KeyError):
    """Raised by a data plane's ``get_samples`` to report that it does not hold all of the rows.

    It is a ``KeyError`` so that readers written for other planes understand it. It survives pickling, and Ray.
    """

    def __init__(self, partition: str, sample_ids: Sequence[str] = ()) -> None:
        self.partition, self.sample_ids = partition, list(sample_ids)
        super().__init__(partition, self.sample_ids)

    def __str__(self) -> str:
        return (
            f"partition {self.partition!r} does not hold all of the rows: {', '.join(self.sample_ids) or 'asked for'}"
        )


@runtime_checkable
class DataPlane(Protocol):
    """A store of rows, addressed by partition and sample id.

    A client may also be a handle to a Ray actor with these methods; see ``rollproof.impl.staging.call_plane``. Any
    exception but ``MissingRows`` is an outage: it says nothing about the rows, and propagates.
    """

    def put_samples(
        self,
        sample_ids: list[str],
        partition_id: str,
        fields: TensorDictBase | None = None,
        tags: list[dict[str, Any]] | None = None,
    ) -> Any:
        """Write one row per sample id: ``fields`` has batch size ``[len(sample_ids)]``, ``tags`` one dict per row.

        Once this returns, all of the rows can be read. After an exception any of them may be there.
        """
        ...

    def get_samples(self, sample_ids: list[str], partition_id: str, select_fields: list[str]) -> TensorDictBase:
        """Return the selected columns of the rows, in the order of ``sample_ids``.

        A row that is not there is left out of the answer, or the call raises ``MissingRows``. A column that some of
        the rows lack is left out of the answer.
        """
        ...

    def clear_samples(self, sample_ids: list[str], partition_id: str) -> Any:
        """Remove rows; ids that are not there are ignored. After an exception any of the rows may still be there."""
        ...
