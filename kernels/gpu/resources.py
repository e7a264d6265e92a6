"""What a kernel variant takes of a GPU, found by compiling it: registers, shared memory, spills. Needs no GPU."""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from pageport.kernels.gpu.variants import Variant

_TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


@dataclass(frozen=True, slots=True)
class Target:
    """A kind of GPU.

    Attributes:
        shared_bytes: shared memory that one program may have.
        fp8: whether it has the e4m3 type.
    """

    name: str
    gpu: GPUTarget
    shared_bytes: int
    fp8: bool = True


# Shared memory a thread block may opt into: CUDA C++ programming guide, compute capabilities; CDNA3 ISA guide.
TARGETS = (
    Target("sm_80", GPUTarget("cuda", 80, 32), 163 * 1024, fp8=False),
    Target("sm_90", GPUTarget("cuda", 90, 32), 227 * 1024),
    Target("sm_100", GPUTarget("cuda", 100, 32), 227 * 1024),
    Target("gfx942", GPUTarget("hip", "gfx942", 64), 64 * 1024),
)


@dataclass(frozen=True, slots=True)
class Resources:
    """registers: 32-bit ones of each thread; shared_bytes: of each program; spilled_bytes: of each thread."""

    registers: int
    shared_bytes: int
    spilled_bytes: int


def compile_variant(variant: Variant, target: Target) -> Resources:
    """Compile one variant for one target.

    Raises:
        triton.CompilationError: the kernel is wrong for this target.
        RuntimeError: the assembler's report cannot be read.
    """
    order = variant.kernel.arg_names
    types = variant.types | dict.fromkeys(variant.constants, "constexpr")
    source = ASTSource(
        variant.kernel,
        signature={name: types[name] for name in order},
        constexprs={(order.index(name),): value for name, value in variant.constants.items()},
        attrs={(order.index(name),): [["tt.divisibility", 16]] for name in variant.divisible},
    )
    options = {"num_warps": variant.warps, "num_stages": variant.stages}
    compiled = triton.compile(source, target=target.gpu, options=options)
    shared = compiled.metadata.shared
    if target.gpu.backend == "cuda":
        return _nvidia(compiled.asm["ptx"], target.gpu.arch, shared)
    return _amd(compiled.asm["amdgcn"], shared)


def _nvidia(ptx: str, arch: int, shared: int) -> Resources:
    """Assembles once more, for the report that Triton does not keep."""
    tool = _TOOLS / ("ptxas-blackwell" if arch >= 100 else "ptxas")
    (name,) = set(re.findall(r"^\.target (\w+)", ptx, re.MULTILINE))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.ptx"
        file.write_text(ptx)
        command: list[str | Path] = [
            tool,
            "-v",
            f"--gpu-name={name}",
            file,
            "-o",
            Path(folder) / "kernel.cubin",
        ]
        report = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    spills = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", report)
    registers = re.search(r"Used (\d+) registers", report)
    if spills is None or registers is None:
        raise RuntimeError(f"cannot read the assembler's report: {report}")
    return Resources(int(registers[1]), shared, max(int(spills[1]), int(spills[2])))


def _amd(assembly: str, shared: int) -> Resources:
    """Scalar registers that do not fit go to vector registers and cost no memory; only vector spills count."""
    figures = dict(re.findall(r"^\s*\.(vgpr_count|vgpr_spill_count):\s+(\d+)", assembly, re.MULTILINE))
    if len(figures) != 2:
        raise RuntimeError("cannot read the assembler's report")
    return Resources(int(figures["vgpr_count"]), shared, 4 * int(figures["vgpr_spill_count"]))
