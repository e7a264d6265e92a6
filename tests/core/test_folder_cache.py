"""Cached folders: complete or absent."""

from __future__ import annotations

from pathlib import Path

import pytest

from pageport.core.errors import PageportError
from pageport.core.folder_cache import cache_dir, cached_folder


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "a cache"
    monkeypatch.setenv("PAGEPORT_CACHE_DIR", str(folder))
    return folder


class Filler:
    """Writes two files and counts how often it was asked."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, folder: Path) -> None:
        self.calls += 1
        (folder / "sub").mkdir()
        (folder / "sub" / "data").write_text("0123456789")
        (folder / "note").write_text("n")


def test_the_variable_names_the_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache_dir() == cache
    monkeypatch.setenv("PAGEPORT_CACHE_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache / "xdg"))
    assert cache_dir() == cache / "xdg" / "pageport"


def test_a_folder_is_filled_once(cache: Path) -> None:
    fill = Filler()
    first = cached_folder("kind/thing", fill)
    assert first == cache / "kind" / "thing"
    assert (first / "sub" / "data").read_text() == "0123456789"
    assert cached_folder("kind/thing", fill) == first
    assert fill.calls == 1


def test_a_file_that_came_later_does_no_harm() -> None:
    fill = Filler()
    folder = cached_folder("thing", fill)
    (folder / "sub" / "__pycache__").mkdir()
    (folder / "sub" / "__pycache__" / "x.pyc").write_bytes(b"x")
    cached_folder("thing", fill)
    assert fill.calls == 1


@pytest.mark.parametrize(
    "damage", ["truncated", "deleted", "no stamp", "broken stamp", "stamp of another kind"]
)
def test_a_damaged_folder_is_made_anew(damage: str) -> None:
    fill = Filler()
    folder = cached_folder("thing", fill)
    stamp = folder / ".complete.json"
    match damage:
        case "truncated":
            (folder / "sub" / "data").write_text("01234")
        case "deleted":
            (folder / "sub" / "data").unlink()
        case "no stamp":
            stamp.unlink()
        case "broken stamp":
            stamp.write_text(stamp.read_text()[:-5])
        case "stamp of another kind":
            stamp.write_text("[]")
    assert cached_folder("thing", fill) == folder
    assert fill.calls == 2
    assert (folder / "sub" / "data").read_text() == "0123456789"


def test_a_filler_that_fails_leaves_nothing(cache: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").write_text("h")
        raise PageportError("no network")

    with pytest.raises(PageportError, match="no network"):
        cached_folder("thing", fail)
    assert [path.name for path in cache.iterdir()] == ["thing.lock"]
    fill = Filler()
    cached_folder("thing", fill)
    assert fill.calls == 1


def test_a_cache_that_cannot_be_written_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("PAGEPORT_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.raises(PageportError, match="PAGEPORT_CACHE_DIR"):
        cached_folder("thing", Filler())
