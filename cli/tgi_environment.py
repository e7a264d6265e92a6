"""What TGI's launcher reads of its environment beside its flags, and what `--env` says."""

from __future__ import annotations

import importlib.metadata
import logging
import os
import platform
import shutil
import subprocess

_log = logging.getLogger("pageport.tgi")

_LEVELS = {
    "trace": "debug",
    "debug": "debug",
    "info": "info",
    "warn": "warning",
    "warning": "warning",
    "error": "error",
    "off": "critical",
}


def log_level(text: str | None) -> str:
    """The level that LOG_LEVEL asks for: a name, or TGI's `target=level,target=level`; info where there is none."""
    level = "info"
    for directive in (text or "").lower().split(","):
        target, _, name = directive.strip().rpartition("=")
        if name in _LEVELS and target in ("", "text_generation_router"):
            level = _LEVELS[name]
    return level


def log_environment() -> None:
    """One line for each part of what the server runs on."""
    _log.info("machine: %s, %s cores", platform.platform(), os.cpu_count())
    _log.info("Python: %s", platform.python_version())
    for package in ("pageport", "torch", "transformers", "tokenizers", "triton", "numba"):
        try:
            _log.info("%s: %s", package, importlib.metadata.version(package))
        except importlib.metadata.PackageNotFoundError:
            _log.info("%s: not installed", package)
    for gpu in _gpus():
        _log.info("GPU: %s", gpu)


def _gpus() -> list[str]:
    if shutil.which("nvidia-smi") is None:
        return []
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return done.stdout.splitlines()
