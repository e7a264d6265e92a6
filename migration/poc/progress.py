"""What is going on, for people who watch."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress


class Progress:
    """A line for each stage that is done, and a moving bar while tokens come.

    Redraws twice a second: the machine is busy with the measurement.
    """

    def __init__(self, console: Console) -> None:
        self._console = console

    @contextlib.contextmanager
    def stage(self, title: str) -> Iterator[None]:
        """Name what is being done; print it with its time when it is done."""
        start = time.perf_counter()
        with self._console.status(title, refresh_per_second=2):
            yield
        self._done(title, start)

    @contextlib.contextmanager
    def bar(self, title: str, total: int) -> Iterator[Callable[[int], None]]:
        """Gives a function that is told of tokens that have arrived."""
        start = time.perf_counter()
        columns = (
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("tokens"),
            TimeElapsedColumn(),
        )  # fmt: skip
        with RichProgress(
            *columns,
            console=self._console,
            refresh_per_second=2,
            transient=True,
            disable=not self._console.is_terminal,
        ) as bar:
            task = bar.add_task(title, total=total)
            yield lambda tokens: bar.advance(task, tokens)
        self._done(f"{title}: {total:,} tokens", start)

    def _done(self, title: str, start: float) -> None:
        self._console.print(
            f"[green]✓[/] {title} [dim]{time.perf_counter() - start:.1f} s[/]", highlight=False
        )
