"""`pageport triton`: write model repositories, and serve them with the embedded server."""

from __future__ import annotations

import signal
from pathlib import Path
from types import FrameType

import click

from pageport.backends.triton_python.contract import ContractName
from pageport.backends.triton_python.repository import Layout, write_entry
from pageport.backends.triton_python.server import Ports, TritonServer
from pageport.cli.engine_options import engine_options, given


@click.group()
def triton() -> None:
    """Pageport behind NVIDIA's Triton Inference Server."""


@triton.command()
@click.argument("repository", type=click.Path(path_type=Path))
@click.option("--model", default="demo", show_default=True, help="a model folder, a .gguf file, or 'demo'")
@click.option(
    "--contract",
    type=click.Choice([choice.value for choice in ContractName]),
    default="vllm",
    show_default=True,
)
@click.option("--name", default=None, help="what clients call the model; the contract's name if not given")
@click.option(
    "--layout", type=click.Choice([choice.value for choice in Layout]), default="python", show_default=True
)
@click.option("--max-output-length", default=None, help="contract hf: tokens of prompt and answer together")
@engine_options
def init(
    repository: Path,
    model: str,
    contract: str,
    name: str | None,
    layout: str,
    max_output_length: str | None,
    **engine: str | None,
) -> None:
    """Add a model entry to REPOSITORY, which is made where there is none."""
    parameters = {} if max_output_length is None else {"max_output_length": max_output_length}
    entry = write_entry(
        repository,
        name or contract,
        model,
        ContractName(contract),
        layout=Layout(layout),
        engine=given(engine),
        parameters=parameters,
    )
    click.echo(f"wrote {entry}; serve it with: pageport triton serve {repository}")


@triton.command()
@click.argument("repository", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option(
    "--http-port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0: a free one"
)
@click.option(
    "--grpc-port", type=click.IntRange(0, 65535), default=8001, show_default=True, help="0: a free one"
)
@click.option(
    "--metrics-port", type=click.IntRange(0, 65535), default=8002, show_default=True, help="0: a free one"
)
@click.option("--log-file", type=click.Path(path_type=Path, dir_okay=False), help="instead of the terminal")
@click.option(
    "--ready-timeout", default=300.0, show_default=True, help="seconds until all models must be ready"
)
def serve(
    repository: Path,
    host: str,
    http_port: int,
    grpc_port: int,
    metrics_port: int,
    log_file: Path | None,
    ready_timeout: float,
) -> None:
    """Serve REPOSITORY with the embedded Triton server until SIGTERM or Ctrl-C."""
    server = TritonServer(
        repository,
        host=host,
        ports=Ports(http_port, grpc_port, metrics_port),
        log_file=log_file,
        on_line=None if log_file else lambda line: click.echo(line, err=True),
        ready_timeout=ready_timeout,
    )
    # From before the start on: a signal while the models load must end the server's processes, too.
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        with server:
            click.echo(f"ready: http {server.http_url}, grpc {server.grpc_url}, metrics {server.metrics_url}")
            server.wait()
            raise click.ClickException("the server has ended on its own")
    except KeyboardInterrupt:
        click.echo("stopped")


def _interrupt(_signum: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
