"""Compiles every variant of every GPU kernel for each kind of GPU, and holds the figures against the committed table.

    python scripts/kernels_check.py [--write]

Fails on a spill, on too much shared memory, and where figures differ from kernels/gpu/RESOURCES.md although the
compiler is the one that the table was made with. Needs no GPU; about a minute.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import click
import triton
from rich.progress import track

from pageport.kernels.gpu.resources import TARGETS, Resources, Target, compile_variant
from pageport.kernels.gpu.variants import all_variants

TABLE = Path(__file__).parents[1] / "kernels" / "gpu" / "RESOURCES.md"


def problems(name: str, target: Target, found: Resources) -> list[str]:
    where = f"{name}, {target.name}"
    faults = []
    if found.spilled_bytes:
        faults.append(f"{where}: {found.spilled_bytes} bytes a thread are spilled")
    if found.shared_bytes > target.shared_bytes:
        faults.append(
            f"{where}: {found.shared_bytes} bytes of shared memory, {target.shared_bytes} are there"
        )
    return faults


def markdown(rows: dict[str, dict[str, Resources]]) -> str:
    names = [target.name for target in TARGETS]
    lines = [
        "# What the GPU kernels take",
        "",
        f"Made by `make kernels-check WRITE=1` with triton {triton.__version__}: registers of each thread / bytes of",
        "shared memory of each program. No variant spills. e4m3 does not exist on sm_80.",
        "",
        "| kernel | " + " | ".join(names) + " |",
        "|---" * (len(names) + 1) + "|",
    ]
    for variant, figures in rows.items():
        cells = [
            f"{figures[name].registers} / {figures[name].shared_bytes:,}" if name in figures else "–"
            for name in names
        ]
        lines.append(f"| {variant} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


@click.command()
@click.option("--write", is_flag=True, help="keep the new figures")
def main(write: bool) -> None:
    """Compile, print, compare."""
    rows: dict[str, dict[str, Resources]] = {}
    faults: list[str] = []
    jobs = [
        (variant, target)
        for variant, target in itertools.product(all_variants(), TARGETS)
        if target.fp8 or not variant.has_fp8
    ]
    for variant, target in track(jobs, description="compiling", disable=not sys.stderr.isatty()):
        found = compile_variant(variant, target)
        rows.setdefault(variant.name, {})[target.name] = found
        faults += problems(variant.name, target, found)
    table = markdown(rows)
    click.echo(table)
    if write:
        TABLE.write_text(table, "utf-8")
    kept = TABLE.read_text("utf-8") if TABLE.is_file() else ""
    if f"triton {triton.__version__}:" in kept and kept != table:
        faults.append(
            f"{TABLE.name} holds other figures; look at the difference, then make kernels-check WRITE=1"
        )
    for fault in faults:
        click.echo(fault, err=True)
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
