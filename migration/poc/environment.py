"""What a figure was measured on."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

_PACKAGES = ("pageport", "torch", "transformers", "numba", "tokenizers", "tritonclient", "numpy")


def describe_environment() -> dict[str, str | int]:
    """CPU, cores, memory, versions, date, and the commit where the code comes from a checkout."""
    environment: dict[str, str | int] = {
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "system": platform.platform(),
        "python": platform.python_version(),
        "omp_wait_policy": os.environ.get("OMP_WAIT_POLICY", "not set"),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    for package in _PACKAGES:
        try:
            environment[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            environment[package] = "not installed"
    commit = _commit()
    if commit:
        environment["commit"] = commit
    return environment


def load_average() -> float:
    """Processes that wanted to run, averaged over the last minute; shows who else was at work."""
    return os.getloadavg()[0]


def fast_cpu_dtype() -> str:
    """The dtype that Pageport's `auto` picks on a CPU: bfloat16 only where it is computed in hardware."""
    import torch

    capabilities = torch.cpu.get_capabilities()
    hardware = any(capabilities.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))
    return "bfloat16" if hardware else "float32"


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text("utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _commit() -> str | None:
    """Short hash of the checkout that this file lies in; marked where there are local changes."""
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            cwd=Path(__file__).resolve().parent,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return described.stdout.strip()
