"""The packages of the image, each version and digest: `deploy/requirements/*.txt`, made from pyproject.toml by uv.

usage: pip install uv && python deploy/lock.py [--upgrade]

base.txt    what the server needs but torch
cpu.txt     torch for CPUs, from PyTorch's own index, which has it without CUDA
gpu.txt     torch as PyPI has it, with CUDA, and the libraries it names
build.txt   what builds the wheel

Versions that are locked stay as they are unless pyproject.toml no longer allows them, or with --upgrade.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIRECTORY = ROOT / "deploy" / "requirements"
PYTHON = "3.11"
PLATFORM = "x86_64-manylinux_2_34"
"""What wheels have to run on; Debian bookworm's C library is newer."""

CUDA = ("nvidia-", "cuda-", "triton==")
"""What packages begin with that only torch with CUDA needs. xgrammar names triton too, but loads it on a GPU only, and it would
be a third of an image for CPUs."""
CPU_TORCH = {
    "2.13.0": """\
--index-url https://download.pytorch.org/whl/cpu
torch==2.13.0+cpu \\
    --hash=sha256:6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b
"""
}
"""By version: that index tells no digests to a resolver that cannot reach it, so they are kept here."""


def main() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)
    DIRECTORY.mkdir(exist_ok=True)
    locked = resolve(project["project"]["dependencies"], ("base.txt", "gpu.txt"))
    torch = next(name for name in locked if name.startswith("torch=="))
    on_gpu = {name for name in locked if name == torch or name.startswith(CUDA)}
    write("base.txt", [text for name, text in locked.items() if name not in on_gpu])
    write("gpu.txt", [text for name, text in locked.items() if name in on_gpu])
    write("cpu.txt", [CPU_TORCH[torch.partition("==")[2]]])
    write("build.txt", list(resolve(project["build-system"]["requires"], ("build.txt",)).values()))


def resolve(wanted: list[str], earlier: tuple[str, ...]) -> dict[str, str]:
    """`name==version` to its lines, with the versions of the `earlier` files where they may stay."""
    with tempfile.TemporaryDirectory() as scratch:
        output = Path(scratch) / "locked.txt"
        kept = [path.read_text("utf-8") for name in earlier if (path := DIRECTORY / name).exists()]
        output.write_text("".join(kept), "utf-8")
        command = ["uv", "pip", "compile", "--quiet", "--generate-hashes", "--no-header", "--no-annotate"]
        command += ["--python-version", PYTHON, "--python-platform", PLATFORM, "--only-binary", ":all:"]
        command += ["--output-file", str(output), *sys.argv[1:], "-"]
        subprocess.run(command, input="\n".join(wanted), text=True, check=True)
        blocks = output.read_text("utf-8").replace("\\\n", "\0").splitlines()
    return {block.partition(" ")[0]: block.replace("\0", "\\\n") + "\n" for block in blocks}


def write(name: str, blocks: list[str]) -> None:
    (DIRECTORY / name).write_text("# made by deploy/lock.py\n" + "".join(blocks), "utf-8")


if __name__ == "__main__":
    main()
