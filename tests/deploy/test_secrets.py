"""`deploy/secrets.sh` makes the secrets that the compose file names, and leaves alone those that are there."""

from __future__ import annotations

import stat
import subprocess
from pathlib import Path

from tests.deploy import compose_file


def make(directory: Path) -> None:
    script = compose_file.ROOT / "deploy" / "secrets.sh"
    subprocess.run(["/bin/sh", str(script), str(directory)], check=True, timeout=10)


def test_every_secret_is_made_and_kept(tmp_path: Path) -> None:
    directory = tmp_path / "secrets"
    make(directory)
    made = {path.name: path.read_text() for path in directory.iterdir()}
    named = compose_file.read({"HEADWATER_SECRETS": str(directory)})["secrets"]
    assert {str(directory / name) for name in made} == {secret["file"] for secret in named.values()}
    assert made.pop("hf_token") == ""
    assert all(len(secret) == 64 and int(secret, 16) for secret in made.values())
    assert len(set(made.values())) == len(made)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()} == {0o444}
    (directory / "admin_key").unlink()
    make(directory)
    again = {path.name: path.read_text() for path in directory.iterdir() if path.name in made}
    assert {name for name in made if made[name] != again[name]} == {"admin_key"}


def test_git_and_the_builder_do_not_see_them() -> None:
    assert "secrets/" in (compose_file.ROOT / ".gitignore").read_text("utf-8").splitlines()
    assert (compose_file.ROOT / ".dockerignore").read_text("utf-8").splitlines()[1] == "*"
