"""The folder that stands first on PATH, and the way back."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from pageport.backends.tgi_adapter.shim import COMMAND, ORIGINAL, write_shim


def write_command(folder: Path, says: str) -> Path:
    """A command that says who it is, and its arguments; exits with 3."""
    folder.mkdir(parents=True, exist_ok=True)
    command = folder / COMMAND
    command.write_text(f'#!/bin/sh\nprintf "{says}"\nprintf " <%s>" "$@"\nexit 3\n', "utf-8")
    command.chmod(0o755)
    return folder


@pytest.fixture
def shim(tmp_path: Path) -> Path:
    """A shim whose Python says that it is one."""
    python = tmp_path / "a python's" / "python"
    write_command(python.parent, "ours").joinpath(COMMAND).rename(python)
    return write_shim(tmp_path / "shim", str(python))


def run(*folders: Path | str, pageport: str | None, arguments: tuple[str, ...] = ("serve", "a b", "")) -> str:
    environment = {"PATH": os.pathsep.join([*map(str, folders), "/usr/bin", "/bin"])}
    if pageport is not None:
        environment["PAGEPORT"] = pageport
    done = subprocess.run(
        [COMMAND, *arguments], env=environment, capture_output=True, text=True, check=False, timeout=20
    )
    return f"{done.returncode} {done.stdout}{done.stderr}"


OURS = "3 ours <-P> <-c> <from pageport.cli.tgi_server import main; main()> <serve> <a b> <>"


@pytest.mark.parametrize("pageport", [None, "", "1", "true", "pageport"])
def test_pageport_runs(shim: Path, tmp_path: Path, pageport: str | None) -> None:
    original = write_command(tmp_path / "original", "original")
    assert run(shim, original, pageport=pageport) == OURS


@pytest.mark.parametrize("pageport", [*ORIGINAL, "False", "NO", "Text-Generation-Server"])
def test_the_original_runs(shim: Path, tmp_path: Path, pageport: str) -> None:
    original = write_command(tmp_path / "original", "original")
    assert run(shim, original, pageport=pageport) == "3 original <serve> <a b> <>"


def test_the_next_one_is_the_next_after_the_shim(shim: Path, tmp_path: Path) -> None:
    """Also where the folder stands on PATH twice, once through a link; what stands before it is not asked again."""
    link = tmp_path / "link"
    link.symlink_to(shim)
    broken = tmp_path / "broken"
    (broken / COMMAND).mkdir(parents=True)
    original = write_command(tmp_path / "original", "original")
    other = write_command(tmp_path / "other", "other")
    assert run(shim, "/nowhere", link, broken, original, other, pageport="0").startswith("3 original")


def test_two_shims_do_not_call_each_other_for_ever(shim: Path, tmp_path: Path) -> None:
    second = write_shim(tmp_path / "second", "/nowhere/python")
    original = write_command(tmp_path / "original", "original")
    assert run(shim, second, original, pageport="0").startswith("3 original")
    assert run(shim, second, pageport="0").startswith("127 ")


def test_a_missing_original_is_a_clear_error(shim: Path) -> None:
    answer = run(shim, pageport="0")
    assert answer == (
        f"127 PAGEPORT=0 asks for the original {COMMAND}, but PATH has none after {shim.resolve()}\n"
    )


def test_a_second_writing_changes_nothing(shim: Path, tmp_path: Path) -> None:
    script = shim / COMMAND
    before = script.stat().st_mtime_ns
    text = script.read_text("utf-8")
    write_shim(shim, str(tmp_path / "a python's" / "python"))
    assert script.stat().st_mtime_ns == before
    write_shim(shim, "/other/python")
    assert script.read_text("utf-8") != text
    assert [path.name for path in shim.iterdir()] == [COMMAND]
