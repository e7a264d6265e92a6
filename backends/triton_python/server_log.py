"""The server's output on its way to a file: read by a thread, which remembers what went wrong."""

from __future__ import annotations

import contextlib
import re
import subprocess
import textwrap
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

# Triton marks errors with an E and the date at the start of a line, or with `error:`; Python ends a traceback
# with the exception's name.
_TELLING = re.compile(r"^E\d{4} |^error:|\b\w*(Error|Exception)\b|failed to load|in use", re.IGNORECASE)
# What a machine without a GPU always logs.
_NOISE = re.compile(r"CUDA|NVML|DCGM|pinned|cudaGetDevice", re.IGNORECASE)


MAX_LINE = 600


class ServerLog:
    """Copies a process's output to a file, line by line, until it ends."""

    def __init__(
        self, process: subprocess.Popen[bytes], path: Path, on_line: Callable[[str], None] | None
    ) -> None:
        self.path = path
        self._process = process
        self._on_line = on_line
        self._last: deque[str] = deque(maxlen=30)
        self._telling: deque[str] = deque(maxlen=30)
        self._file = path.open("wb")
        self._thread = threading.Thread(target=self._copy, name="triton-log", daemon=True)
        self._thread.start()

    def explanation(self) -> str:
        """The lines that say what went wrong; the last ones where none stands out."""
        return "\n".join(textwrap.shorten(line, MAX_LINE) for line in self._telling or self._last)

    def close(self) -> None:
        """Wait for the rest of the output and close the file."""
        self._thread.join(10.0)
        self._file.close()

    def _copy(self) -> None:
        assert self._process.stdout is not None
        with contextlib.closing(self._process.stdout) as stream:
            for raw in stream:
                self._file.write(raw)
                self._file.flush()
                line = raw.decode("utf-8", "replace").rstrip()
                self._last.append(line)
                if _TELLING.search(line) and not _NOISE.search(line):
                    self._telling.append(line)
                if self._on_line is not None:
                    self._on_line(line)
