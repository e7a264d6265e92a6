"""The outcome on the terminal."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table

from pageport.migration.poc.formatting import NOTHING, bytes_text, milliseconds, percent
from pageport.migration.poc.measure import Measurement
from pageport.migration.poc.parity import Parity
from pageport.migration.poc.run import Outcome
from pageport.migration.poc.statistics import Percentiles


def print_outcome(outcome: Outcome, console: Console) -> None:
    """The table, what the answers' comparison showed, and the notes without which the table misleads."""
    console.print(_table(outcome))
    console.print(
        "Before, a client gets its whole answer at once: the first token comes with the last, and there is "
        "no time between tokens to see.\nKV sizes are averages over the load: kept for running requests, "
        "and holding a token of theirs.",
        style="dim",
    )
    for parity in outcome.parity:
        console.print(parity_line(parity), highlight=False)
    for parity in outcome.parity:
        _print_differences(parity, console)


def parity_line(parity: Parity) -> str:
    return (
        f"Greedy answers, {parity.dtype}: {parity.equal} of {parity.compared} equal from the first token to "
        f"the last; {parity.tokens_equal:,} of {parity.tokens_compared:,} tokens before a first difference"
    )


def _table(outcome: Outcome) -> Table:
    """A column for each variant: this way it fits into 80 characters."""
    tokens = sum(request.output_tokens for request in outcome.load)
    table = Table(
        box=box.SIMPLE_HEAD,
        title=f"{len(outcome.load)} requests, {tokens:,} output tokens, {outcome.plan.concurrency} streams, "
        f"{outcome.plan.dtype}",
    )
    table.add_column("")
    for measurement in outcome.measurements:
        title = measurement.variant.title.replace(", ", "\n")
        table.add_column(f"{measurement.variant.entry}\n[dim]{title}[/]", justify="right")
    columns = [_cells(measurement) for measurement in outcome.measurements]
    for label in columns[0]:
        table.add_row(label, *(cells[label] for cells in columns))
    return table


def _cells(measurement: Measurement) -> dict[str, str]:
    result, kv = measurement.result, measurement.kv
    return {
        "output tokens/s": f"{result.output_tokens_per_s:.1f}",
        "TTFT p50 / p95, ms": _pair(result.ttft),
        "ITL p50 / p95, ms": _pair(result.itl),
        "peak concurrent requests": str(kv.peak_running),
        "KV reserved": bytes_text(kv.mean_reserved),
        "KV used": bytes_text(kv.mean_used),
        "KV waste": percent(kv.waste_ratio),
    }


def _pair(values: Percentiles | None) -> str:
    return NOTHING if values is None else f"{milliseconds(values.p50)} / {milliseconds(values.p95)}"


def _print_differences(parity: Parity, console: Console) -> None:
    judged = [difference for difference in parity.first_differences if difference.logits]
    if not judged:
        return
    table = Table(box=box.SIMPLE_HEAD, title=f"First differences, {parity.dtype}: logits of both candidates")
    for header in ("request", "token", "before", "after"):
        table.add_column(header, justify="right")
    for dtype in judged[0].logits:
        table.add_column(f"logits, {dtype}", justify="right")
    for difference in judged:
        logits = [f"{left:.4f} / {right:.4f}" for left, right in difference.logits.values()]
        cells = (difference.request, difference.position, difference.before_token, difference.after_token)
        table.add_row(*map(str, cells), *logits)
    console.print(table)
