"""Both codecs, the standard library's and pybase64: one text per value, everything else refused."""

from __future__ import annotations

import base64 as stdlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollproof.impl import base64

pybase64 = pytest.importorskip("pybase64")
CODECS = pytest.mark.parametrize("codec", [None, pybase64], ids=["stdlib", "pybase64"])
SETTINGS = settings(max_examples=60, derandomize=True, deadline=None, database=None)


@pytest.fixture(autouse=True)
def _codec(request, monkeypatch):
    monkeypatch.setattr(base64, "_FAST", request.getfixturevalue("codec"))


@CODECS
@pytest.mark.parametrize("size", [*range(1, 9), 100_000])
def test_base64_goes_there_and_back(codec, size):
    data = bytes(index * 37 % 256 for index in range(size))
    encoded = base64.encode(memoryview(data))
    assert encoded == stdlib.b64encode(data)
    assert base64.decode(encoded.decode(), size) == data
    assert len(encoded) == base64.encoded_length(size)


@CODECS
@SETTINGS
@given(text=st.text("AB+/-_=\n\x00é", max_size=12), size=st.integers(0, 10))
def test_decoding_reads_only_what_encoding_would_write(codec, text, size):
    try:
        data = base64.decode(text, size)
    except ValueError:
        wanted = text.isascii() and any(
            stdlib.b64encode(decoded) == text.encode() for decoded in possible(text) if len(decoded) == size
        )
        assert not wanted
    else:
        assert len(data) == size
        assert stdlib.b64encode(data).decode() == text


def possible(text):
    try:
        return [stdlib.b64decode(text)]
    except ValueError:
        return []


@CODECS
@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("AA==", 2),
        ("AB==", 1),
        ("AAB=", 2),
        ("A===", 1),
        ("AA=A", 2),
        ("=AAA", 2),
        ("AAA", 2),
        ("AA==AAAA", 5),
        ("-AAA", 3),
    ],
)
def test_decoding_refuses_what_is_not_base64(codec, text, size):
    with pytest.raises(ValueError, match=r"\w"):
        base64.decode(text, size)


@CODECS
def test_decoding_nothing_gives_nothing(codec):
    assert (base64.decode("", 0), base64.encode(b"")) == (b"", b"")
