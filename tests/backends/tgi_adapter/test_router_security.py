"""The api key beyond the recorded cases: keys and headers of any bytes."""

from __future__ import annotations

from typing import Any

import pytest

from pageport.backends.tgi_adapter.router.security import ApiKey


def scope(*headers: tuple[bytes, bytes]) -> dict[str, Any]:
    return {"type": "http", "headers": list(headers)}


@pytest.mark.parametrize(
    ("key", "given", "admitted"),
    [
        ("Schlüssel", "Bearer schlüssel".encode(), True),
        ("Schlüssel", "Bearer Schlüssel".encode("latin-1"), False),
        ("key", b"Bearer key ", False),
        ("key", b"", False),
        ("key", b"\xff\xfe", False),
        ("", b"Bearer ", True),
    ],
)
def test_api_key(key: str, given: bytes, admitted: bool) -> None:
    assert ApiKey(key).admits(scope((b"authorization", given))) is admitted


def test_no_header_and_no_key() -> None:
    assert not ApiKey("key").admits(scope())
    assert ApiKey(None).admits(scope())
