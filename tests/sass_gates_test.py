"""Gates on the machine code of the CUDA back end: no kernel has a stack frame or local memory (a spill is both), and the
tensor instructions that the tiles are made for are there.

    sass_gates_test.py LIBRARY          libwarpline_cuda.so of a build

Needs the pinned cuobjdump and nvdisasm of tests/requirements.txt; ends with 77 where the library was not built.
"""

import os
import pathlib
import re
import subprocess
import sys

# Kernels that may keep small arrays: those that run the decoders of the host, for embeddings, and the one that computes
# rare tokens again and calls a function for each type.
SLOW = ("decode_rows", "exact_experts")
TOOLS = pathlib.Path(sys.prefix) / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages" / "nvidia" / "cu13" / "bin"
# One kernel of each family, whose disassembly must show these instructions.
INSTRUCTIONS = [("WgmmaTile", "HGMMA"), ("MmaTileKernel", "HMMA"), ("FewRows", "HMMA"), ("WmmaTile", "HMMA")]


def cuobjdump(*arguments: str) -> str:
    environment = dict(os.environ, PATH=f"{TOOLS}:{os.environ['PATH']}")
    program = TOOLS / "cuobjdump"
    program.chmod(0o755)
    (TOOLS / "nvdisasm").chmod(0o755)
    return subprocess.run([str(program), *arguments], env=environment, check=True, capture_output=True, text=True).stdout


def resources(library: str) -> dict[str, dict[str, int]]:
    """Registers, stack and local bytes of each kernel, by its mangled name."""
    kernels = {}
    name = None
    for line in cuobjdump("-res-usage", library).splitlines():
        if match := re.search(r"Function (\S+):", line):
            name = match[1]
        elif name and "REG:" in line:
            kernels[name] = {key: int(value) for key, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", line)}
            name = None
    return kernels


def main() -> int:
    library = sys.argv[1]
    if not pathlib.Path(library).exists():
        print(f"skipped: {library} was not built")
        return 77
    kernels = resources(library)
    if not kernels:
        print("FAIL: the library holds no kernel")
        return 1
    failures = [f"{name}: {usage}" for name, usage in kernels.items()
                if (usage["STACK"] or usage["LOCAL"]) and not any(part in name for part in SLOW)]
    for family, instruction in INSTRUCTIONS:
        members = [name for name in kernels if family in name]
        if not members:
            failures.append(f"no kernel is called {family}")
            continue
        if instruction not in cuobjdump("-sass", "-fun", members[0], library):
            failures.append(f"{members[0]} has no {instruction}")
    for failure in failures:
        print("FAIL:", failure)
    most = max(usage["REG"] for usage in kernels.values())
    print(f"{len(kernels)} kernels, at most {most} registers, {len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
