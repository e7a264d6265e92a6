"""`pageport`: the command line. Each subcommand lives in a module that is imported when it is called."""

from __future__ import annotations

import importlib
import sys

import click

# name -> (module, attribute, help line): `pageport --help` imports none of the modules.
_COMMANDS = {
    "generate": ("pageport.cli.generate", "generate", "Answer one prompt on the command line."),
    "poc": ("pageport.cli.poc", "poc", "Compare before and after behind one real Triton server."),
    "triton": ("pageport.cli.triton", "triton", "Write and serve Triton model repositories."),
}


class _LazyGroup(click.Group):
    """A group that knows its commands by name and imports one only to run it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, attribute, _ = _COMMANDS[cmd_name]
        command = getattr(importlib.import_module(module), attribute)
        if not isinstance(command, click.Command):
            raise TypeError(f"{module}.{attribute} is not a click command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, _COMMANDS[name][2]) for name in self.list_commands(ctx)])


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="pageport")
def cli() -> None:
    """Paged LLM serving behind the server you already run."""


def main() -> None:
    """Run the command line. Exit codes: 0 done, 1 the work failed, 2 wrong usage."""
    try:
        cli.main(prog_name="pageport", standalone_mode=True)
    except Exception as error:
        # Imported only now: errors are rare, and `--help` shall not pay for the core.
        from pageport.core.errors import PageportError

        if not isinstance(error, PageportError):
            raise
        click.echo(f"pageport: {error}", err=True)
        sys.exit(1)
