"""`pageport`: the command line. Each subcommand lives in a module that is imported when it is called."""

from __future__ import annotations

import sys

import click

from pageport.cli.lazy_group import LazyCommand, LazyGroup

_COMMANDS = {
    "generate": LazyCommand("pageport.cli.generate", "generate", "Answer one prompt on the command line."),
    "poc": LazyCommand("pageport.cli.poc", "poc", "Compare before and after behind one real Triton server."),
    "tgi": LazyCommand("pageport.cli.tgi", "tgi", "Serve in the place of Text Generation Inference."),
    "triton": LazyCommand("pageport.cli.triton", "triton", "Write and serve Triton model repositories."),
}


@click.group(cls=LazyGroup, lazy=_COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
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
