"""`pageport tgi shim-dir`: the folder to put first on PATH, so that TGI's launcher starts Pageport."""

from __future__ import annotations

import sys
from pathlib import Path

import click
from platformdirs import user_data_path

from pageport.backends.tgi_adapter.shim import write_shim


def default_shim_folder() -> Path:
    return user_data_path("pageport") / "tgi-shim"


@click.command()
@click.argument("folder", required=False, type=click.Path(path_type=Path, file_okay=False))
def shim_dir(folder: Path | None) -> None:
    """Make the folder and print it: PATH="$(pageport tgi shim-dir):$PATH" text-generation-launcher …

    With PAGEPORT=0 its text-generation-server hands over to the next one on PATH.
    """
    click.echo(write_shim((folder or default_shim_folder()).absolute(), sys.executable))
