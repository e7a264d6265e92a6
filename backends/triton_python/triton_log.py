"""Python's log records in the server's own log, with its time stamps and levels."""

from __future__ import annotations

import logging

import triton_python_backend_utils as pb_utils


class TritonLogHandler(logging.Handler):
    """Hands each record to the server."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = self.format(record)
            if record.levelno >= logging.ERROR:
                pb_utils.Logger.log_error(text)
            elif record.levelno >= logging.WARNING:
                pb_utils.Logger.log_warn(text)
            else:
                pb_utils.Logger.log_info(text)
        except Exception:
            self.handleError(record)
