"""`pageport poc`: before and after, side by side behind one real Triton server."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import tempfile
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

from pageport.backends.triton_python.contract import ContractName
from pageport.backends.triton_python.repository import write_entry
from pageport.backends.triton_python.server import TritonServer
from pageport.core import PageportError, resolve_model

if TYPE_CHECKING:
    from pageport.migration.poc.run import Plan


@click.command()
@click.option("--model", default="demo", show_default=True, help="a Hugging Face model folder, or 'demo'")
@click.option("--requests", default=48, show_default=True, type=click.IntRange(1), help="of the load")
@click.option("--concurrency", default=16, show_default=True, type=click.IntRange(1), help="streams at once")
@click.option("--seed", default=1234, show_default=True, help="of the lengths and prompts")
@click.option(
    "--reports",
    default=Path("reports"),
    show_default=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="folder for poc.json and poc.html",
)
def poc(model: str, requests: int, concurrency: int, seed: int, reports: Path) -> None:
    """Measure the transformers tutorial model and Pageport under one load, and write a report."""
    # Before torch loads, here and in the server's processes: spinning threads stall beside any other work.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # Imported here: they bring matplotlib and the Triton client, which come with an extra.
    from rich.console import Console

    from pageport.migration.poc.environment import fast_cpu_dtype
    from pageport.migration.poc.measure import Endpoints
    from pageport.migration.poc.progress import Progress
    from pageport.migration.poc.report import write_reports
    from pageport.migration.poc.run import Plan, run
    from pageport.migration.poc.table import print_outcome

    # The server's processes are a session of their own: a SIGTERM must end them, too.
    signal.signal(signal.SIGTERM, _interrupt)
    console = Console()
    progress = Progress(console)
    with progress.stage("Getting the model"):
        folder = resolve_model(model)
    plan = Plan(folder, fast_cpu_dtype(), requests=requests, concurrency=concurrency, seed=seed)
    with tempfile.TemporaryDirectory(prefix="pageport-poc-") as scratch:
        repository = Path(scratch) / "models"
        _write_repository(repository, plan)
        server = TritonServer(repository, extra_arguments=("--model-control-mode=explicit",))
        with contextlib.ExitStack() as stack:
            with progress.stage("Starting the Triton server"):
                stack.enter_context(server)
            try:
                outcome = asyncio.run(run(plan, Endpoints(server.grpc_url, server.metrics_url), progress))
            except RuntimeError as error:
                raise PageportError(
                    f"{error}\nThe server's log ends with:\n{_tail(server.log_path)}"
                ) from None
    paths = write_reports(outcome, reports)
    print_outcome(outcome, console)
    for path in paths:
        console.print(f"wrote {path}", highlight=False)


def _write_repository(repository: Path, plan: Plan) -> None:
    from pageport.migration.poc.repository import write_before_entry

    for entry in plan.before_entries():
        write_before_entry(repository, entry, plan.model)
    for name, dtype in plan.after_entries().items():
        engine = {"dtype": dtype, "device": "cpu", "kv_cache_memory_bytes": plan.kv_cache_bytes}
        write_entry(repository, name, str(plan.model), ContractName.VLLM, engine=engine)


def _interrupt(_signum: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _tail(log: Path, lines: int = 15) -> str:
    return "\n".join(log.read_text("utf-8", "replace").splitlines()[-lines:])
