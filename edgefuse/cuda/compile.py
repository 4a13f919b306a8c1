"""Generated kernels compiled for a GPU that need not be there, and what the machine code shows.

Triton brings its own assembler and disassembler, so the quality of the code is known on a CPU:
registers, spills to memory, 128-bit loads and stores, tensor-core instructions. Code is kept by
the digest of all that the compiler sees, its own version included.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from edgefuse.cuda.architecture import ARCHITECTURES, MOST_REGISTERS
from edgefuse.cuda.codegen.machine import GPU
from edgefuse.cuda.codegen.source import Source, generate
from edgefuse.cuda.loading import load
from edgefuse.cuda.program import Program
from edgefuse.cuda.run_interp import require_triton
from edgefuse.errors import StageError, ToolError

_VERSION = 1
_TIMEOUT_S = 120.0
_INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]+)", re.M)
_USAGE = re.compile(r"REG:(\d+) STACK:(\d+)")
# Of Ampere, Hopper (warp groups), Blackwell (tensor memory); F for floats, I for integers.
_TENSOR_CORE = re.compile(r"(?:H|I|Q|HG|IG|QG|UTCH|UTCI|UTCQ)MMA\b")


@dataclass(frozen=True)
class Facts:
    """What the machine code of one kernel shows.

    Attributes:
        registers: of a thread.
        spills: loads and stores of registers that did not fit.
        shared_bytes: of a block.
        tensor_core: kinds of tensor-core instructions: ``HMMA``.
        loads, stores: of global memory; ``*_128`` those of 16 bytes a thread.
        code_bytes: of the cubin.
    """

    registers: int
    spills: int
    shared_bytes: int
    tensor_core: tuple[str, ...]
    loads: int
    loads_128: int
    stores: int
    stores_128: int
    code_bytes: int


@dataclass(frozen=True)
class Cubin:
    """A kernel's machine code.

    Attributes:
        name: the symbol.
        architecture: number.
        threads: of a block.
    """

    name: str
    architecture: int
    threads: int
    facts: Facts
    data: bytes = field(repr=False)


def sources(program: Program) -> list[Source]:
    """The kernel of each launch, in order; equal ones are equal."""
    return [generate(program, launch, GPU) for launch in program.launches]


def compiled(source: Source, architecture: int, folder: Path) -> Cubin:
    """A kernel's machine code, compiled or taken from ``folder``.

    Raises:
        StageError: there is no such architecture.
        ToolError: the compiler fails, or Triton is not installed.
    """
    if architecture not in ARCHITECTURES:
        known = ", ".join(a.name for a in ARCHITECTURES.values())
        raise StageError(f"no code is made for sm_{architecture}", hint=f"there are {known}")
    require_triton()
    seen = (_VERSION, source.digest, source.name, architecture, _triton_version())
    key = hashlib.sha256(repr(seen).encode()).hexdigest()
    code, told = folder / f"{key}.cubin", folder / f"{key}.json"
    if told.is_file():
        row = json.loads(told.read_text("utf-8"))
        data = code.read_bytes() if code.is_file() else b""
        if hashlib.sha256(data).hexdigest() == row.pop("sha256"):
            facts = Facts(**{**row, "tensor_core": tuple(row["tensor_core"])})
            return Cubin(source.name, architecture, source.warps * 32, facts, data)
    data, shared_bytes = _compile(source, architecture, folder)
    facts = examined(data, shared_bytes)
    folder.mkdir(parents=True, exist_ok=True)
    row = {**asdict(facts), "sha256": hashlib.sha256(data).hexdigest()}
    for path, content in ((code, data), (told, json.dumps(row, sort_keys=True).encode())):
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as part:
            part.write(content)
        Path(part.name).replace(path)
    return Cubin(source.name, architecture, source.warps * 32, facts, data)


def shortcomings(source: Source, cubin: Cubin) -> Iterator[str]:
    """What is wrong with machine code, in words: what a GPU refuses, and what makes it slow."""
    facts, most = cubin.facts, ARCHITECTURES[cubin.architecture].shared_bytes
    where = f"{source.name} for sm_{cubin.architecture}"
    if facts.spills:
        yield f"{where} spills registers: {facts.spills} instructions"
    if facts.registers > MOST_REGISTERS or facts.registers * cubin.threads > 65536:
        yield f"{where} needs {facts.registers} registers in {cubin.threads} threads"
    if facts.shared_bytes > most:
        yield f"{where} needs {facts.shared_bytes} bytes of shared memory, there are {most}"
    if source.dot and not facts.tensor_core:
        yield f"{where} multiplies matrices without tensor cores"


def _compile(source: Source, architecture: int, folder: Path) -> tuple[bytes, int]:
    """Machine code and the bytes of shared memory that it asks for."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    if triton.knobs.runtime.interpret:
        raise ToolError("Triton interprets in this process", hint="unset TRITON_INTERPRET")
    names = [f"a{place}" for place in range(len(source.types))]
    wanted = ASTSource(
        load(source, folder / "sources"),
        signature=dict(zip(names, source.types, strict=True)),
        attrs={(place,): [["tt.divisibility", 16]] for place in range(len(names))},
    )
    options = {
        "num_warps": source.warps,
        "num_stages": source.stages,
        "enable_fp_fusion": not source.exact,
    }
    with (
        tempfile.TemporaryDirectory(prefix="edgefuse-triton-") as scratch,
        triton.knobs.cache.scope(),
        triton.knobs.compilation.scope(),
    ):
        triton.knobs.cache.dir = scratch
        triton.knobs.compilation.always_compile = True
        triton.knobs.compilation.disable_line_info = True
        try:
            made = triton.compile(
                wanted, target=GPUTarget("cuda", architecture, 32), options=options
            )
        except Exception as error:
            raise ToolError(
                f"Triton cannot compile {source.name} for sm_{architecture}: {str(error)[-300:]}",
                where=str(folder / "sources" / f"{source.name}.py"),
            ) from error
        if made.metadata.global_scratch_size or made.metadata.profile_scratch_size:
            raise ToolError(f"{source.name} asks for scratch memory, which no plan gives it")
        return bytes(made.asm["cubin"]), int(made.metadata.shared)


def examined(data: bytes, shared_bytes: int) -> Facts:
    """Disassemble.

    Raises:
        ToolError: it is no machine code of one kernel.
    """
    import triton

    tool = triton.knobs.nvidia.cuobjdump.path
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(data)
        file.flush()
        done = subprocess.run(
            [tool, "-sass", "-res-usage", file.name],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    usage = _USAGE.findall(done.stdout)
    names = _INSTRUCTION.findall(done.stdout)
    if done.returncode or len(usage) != 1 or not names:
        raise ToolError(f"cuobjdump cannot read the code: {done.stderr.strip()[:200]}")
    kinds = [name.split(".") for name in names]
    loads = [k for k in kinds if k[0] in ("LDG", "LDGSTS")]
    stores = [k for k in kinds if k[0] == "STG"]
    tensor = {k[0] for k in kinds if _TENSOR_CORE.fullmatch(k[0])}
    return Facts(
        registers=int(usage[0][0]),
        spills=sum(k[0] in ("LDL", "STL") for k in kinds),
        shared_bytes=shared_bytes,
        tensor_core=tuple(sorted(tensor)),
        loads=len(loads),
        loads_128=sum("128" in k for k in loads),
        stores=len(stores),
        stores_128=sum("128" in k for k in stores),
        code_bytes=len(data),
    )


def _triton_version() -> str:
    from importlib.metadata import version

    return version("triton")
