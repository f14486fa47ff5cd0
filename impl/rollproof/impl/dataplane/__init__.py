"""What rollproof needs of a data plane: three methods, by the names and keywords that NeMo RL uses."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from tensordict import TensorDictBase


@runtime_checkable
class DataPlane(Protocol):
    """A store of rows, addressed by partition and sample id.

    A client may also be a handle to a Ray actor with these methods; see ``rollproof.impl.staging.call_plane``.
    """

    def put_samples(
        self,
        sample_ids: list[str],
        partition_id: str,
        fields: TensorDictBase | None = None,
        tags: list[dict[str, Any]] | None = None,
    ) -> Any:
        """Write one row per sample id: ``fields`` has batch size ``[len(sample_ids)]``, ``tags`` one dict per row."""
        ...

    def get_samples(self, sample_ids: list[str], partition_id: str, select_fields: list[str]) -> TensorDictBase:
        """The selected columns of the rows, in the order of ``sample_ids``.

        A row that is not there is missing from the answer, or the call raises ``KeyError`` or ``ValueError``. Any
        other error is an outage.
        """
        ...

    def clear_samples(self, sample_ids: list[str], partition_id: str) -> Any:
        """Remove rows; ids that are not there are ignored."""
        ...
