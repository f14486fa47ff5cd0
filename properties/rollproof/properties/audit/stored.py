"""Tensors in an audit line or in its shard, as values of the spec. See ``columns`` for the notation."""

from __future__ import annotations

import re
from binascii import a2b_base64
from collections.abc import Callable, Mapping
from os import SEEK_END
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeAlias

from rollproof.properties.audit import SHARDS_SUFFIX
from rollproof.properties.wire.bounds import parse_json
from rollproof.spec.tensor import ITEM_SIZES, Tensor

Fetch: TypeAlias = Callable[[str], bytes]
"""The data of one tensor in the line's shard."""

HEADER_BYTES: Final = 8
METADATA: Final = "__metadata__"
"""The one entry of a shard's header that is not a tensor."""


class LineError(ValueError):
    """A line that cannot be read or judged; the message says why."""


def column_rows(column: Mapping[str, Any], count: int, fetch: Fetch, *, batch_of_one: bool = False) -> list[Tensor]:
    """Return the rows of a batched column; a staged row keeps a batch dimension of one (section 9)."""
    if "other" in column:
        return [Tensor("uint8", (0,), b"")] * count
    front = (1,) if batch_of_one else ()
    if "rows" in column:
        rows = [read_tensor(row, fetch) for row in column["rows"]]
        rows = [Tensor(row.dtype, (*front, *row.shape), row.data) for row in rows] if front else rows
    else:
        dtype, shape, data = column["dtype"], tuple(column["shape"]), read_data(column["data"], fetch)
        size = ITEM_SIZES[dtype]
        for dimension in shape:
            size *= dimension
        if "lengths" in column:
            rows, start = [], 0
            for length in column["lengths"]:
                rows.append(Tensor(dtype, (*front, length, *shape), data[start : start + length * size]))
                start += length * size
        else:
            rows = [Tensor(dtype, front + shape, data[index * size : (index + 1) * size]) for index in range(count)]
            start = count * size
        if start != len(data):
            raise LineError(f"a column has {len(data)} bytes, expected {start}")
    if len(rows) != count:
        raise LineError(f"a column has {len(rows)} rows, expected {count}")
    return rows


def read_tensor(content: Mapping[str, Any], fetch: Fetch) -> Tensor:
    """Read one tensor."""
    return Tensor(content["dtype"], tuple(content["shape"]), read_data(content["data"], fetch))


def read_data(content: Any, fetch: Fetch) -> bytes:
    """Read the bytes of a tensor: inline, or in the shard."""
    if type(content) is str:
        return a2b_base64(content, strict_mode=True)
    return fetch(content["tensor"])


def shard_reader(content: Mapping[str, Any], file: Path) -> Fetch:
    """Return access to the tensors of a line's shard, which is in the folder beside the audit file."""
    name = content.get("shard")

    def no_shard(tensor: str) -> bytes:
        raise LineError(f"tensor {tensor!r} is in a shard, but the line names none")

    if name is None:
        return no_shard
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise LineError(f"shard {name!r} is not a plain file name")
    plain = file.with_suffix("") if file.suffix == ".gz" else file
    path = plain.with_name(plain.name + SHARDS_SUFFIX) / name
    return _Shard(path)


class _Shard:
    """The tensors of one safetensors file: eight bytes of length, so many bytes of JSON, and the data."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._places: dict[str, tuple[int, int]] | None = None

    def __call__(self, tensor: str) -> bytes:
        try:
            with self._path.open("rb") as file:
                if self._places is None:
                    self._places = places(file)
                start, end = self._places[tensor]
                file.seek(start)
                return file.read(end - start)
        except KeyError:
            raise LineError(f"shard {self._path.name}: no tensor {tensor!r}") from None
        except Exception as error:
            raise LineError(f"shard {self._path.name}: {error}") from None


def places(file: BinaryIO) -> dict[str, tuple[int, int]]:
    """Return where the data of every tensor of a shard starts and ends. Raises ``ValueError``."""
    size = file.seek(0, SEEK_END)
    file.seek(0)
    length = int.from_bytes(file.read(HEADER_BYTES), "little")
    data = HEADER_BYTES + length
    if data > size:
        raise ValueError(f"{size} bytes, expected a header of {HEADER_BYTES} bytes and of the length in it")
    found = {}
    for name, entry in parse_json(file.read(length)).items():
        if name != METADATA:
            start, end = (data + offset for offset in entry["data_offsets"])
            if not data <= start <= end <= size:
                raise ValueError(f"tensor {name!r} is outside of the file")
            found[name] = (start, end)
    return found
