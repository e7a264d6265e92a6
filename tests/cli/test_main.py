"""The command line's entry: lazy, and plain about what goes wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest

from pageport.cli import main as entry
from pageport.cli.lazy_group import LazyGroup
from pageport.core.errors import ConfigError

PAGEPORT = Path(sys.executable).with_name("pageport")


def run_main(monkeypatch: pytest.MonkeyPatch, command: click.Command, *arguments: str) -> int | str | None:
    """The exit code of `pageport generate ARGUMENTS`, with `command` in the place of `generate`."""
    monkeypatch.setattr(LazyGroup, "get_command", lambda *_: command)
    monkeypatch.setattr(sys, "argv", ["pageport", "generate", *arguments])
    with pytest.raises(SystemExit) as exit_:
        entry.main()
    return exit_.value.code


def test_help_names_every_command_and_imports_none() -> None:
    program = (
        "import sys; sys.argv = ['pageport', '--help']\n"
        "from pageport.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print([m for m in sys.modules if m.startswith('pageport.') and m not in "
        "('pageport.cli', 'pageport.cli.main', 'pageport.cli.lazy_group')], 'torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("[] False\n"), done.stdout
    for name in ("generate", "poc", "tgi", "triton"):
        assert f"\n  {name} " in done.stdout


@pytest.mark.parametrize("name", ["generate", "poc", "tgi", "triton"])
def test_every_command_loads(name: str) -> None:
    done = subprocess.run([PAGEPORT, name, "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"Usage: pageport {name}")


@pytest.mark.parametrize("arguments", [["nonsense"], ["--nonsense"]])
def test_wrong_usage_is_two(arguments: list[str]) -> None:
    done = subprocess.run([PAGEPORT, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "nonsense" in done.stderr
    assert "Traceback" not in done.stderr


def test_our_errors_are_one_plain_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @click.command
    def fails() -> None:
        raise ConfigError("block_size: must be more than 0 (given: -1)")

    assert run_main(monkeypatch, fails) == 1
    assert capsys.readouterr().err == "pageport: block_size: must be more than 0 (given: -1)\n"


def test_other_errors_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command
    def breaks() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(LazyGroup, "get_command", lambda *_: breaks)
    monkeypatch.setattr(sys, "argv", ["pageport", "generate"])
    with pytest.raises(ZeroDivisionError):
        entry.main()
