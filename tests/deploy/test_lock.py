"""The packages of the image are the ones that pyproject.toml asks for, and whatever those ask for."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.deploy import compose_file

DIRECTORY = compose_file.ROOT / "deploy" / "requirements"
PROJECT = tomllib.loads((compose_file.ROOT / "pyproject.toml").read_text("utf-8"))
_IMAGE = {
    "python_version": "3.11",
    "python_full_version": "3.11.15",
    "sys_platform": "linux",
    "platform_system": "Linux",
    "platform_machine": "x86_64",
    "os_name": "posix",
    "implementation_name": "cpython",
    "platform_python_implementation": "CPython",
    "extra": "",
}


def locked(*names: str) -> dict[str, Version]:
    text = "".join((DIRECTORY / f"{name}.txt").read_text("utf-8") for name in names)
    pairs = re.findall(r"^([a-z0-9._-]+)==(\S+)", text, re.MULTILINE)
    assert len(pairs) == len(dict(pairs)), "a package is locked twice"
    return {canonicalize_name(name): Version(version) for name, version in pairs}


ONLY_ON_A_GPU = {"triton"}
"""Which xgrammar asks for everywhere, and loads there."""


def unmet(wanted: list[str], versions: dict[str, Version]) -> list[str]:
    """Requirements that what is locked does not meet."""
    lacking = []
    for text in wanted:
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate(dict(_IMAGE)):
            continue
        version = versions.get(canonicalize_name(requirement.name))
        if version is None or not requirement.specifier.contains(version, prereleases=True):
            lacking.append(text)
    return lacking


@pytest.mark.parametrize("flavour", ["cpu", "gpu"])
def test_it_has_what_is_asked_for(flavour: str) -> None:
    versions = locked("base", flavour)
    assert unmet(PROJECT["project"]["dependencies"], versions) == [], "run deploy/lock.py"


@pytest.mark.parametrize("flavour", ["cpu", "gpu"])
def test_it_has_what_those_ask_for(flavour: str) -> None:
    """As far as the very versions are installed here to ask."""
    versions = locked("base", flavour)
    asked = 0
    for name, version in versions.items():
        try:
            here = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        if Version(here.version) == version and "+cpu" not in here.version:
            asked += 1
            lacking = {Requirement(text).name for text in unmet(here.requires or [], versions)}
            assert lacking <= (ONLY_ON_A_GPU if flavour == "cpu" else set()), name
    assert asked > 5


def test_what_is_lacking_is_found() -> None:
    versions = locked("base", "cpu")
    wanted = ["aiohttp<3", "no-such-package", "tomli; python_version < '3.11'", "click>=8", "torch==2.13.0"]
    assert unmet(wanted, versions) == ["aiohttp<3", "no-such-package"]


def test_it_has_what_builds_the_wheel() -> None:
    assert unmet(PROJECT["build-system"]["requires"], locked("build")) == [], "run deploy/lock.py"


@pytest.mark.parametrize("name", ["base", "cpu", "gpu", "build"])
def test_every_package_has_a_digest(name: str) -> None:
    lines = (DIRECTORY / f"{name}.txt").read_text("utf-8").replace("\\\n", " ").splitlines()
    packages = [line for line in lines if line and not line.startswith(("#", "--index-url"))]
    assert packages
    assert [
        line for line in packages if not re.fullmatch(r"\S+==\S+( +--hash=sha256:[0-9a-f]{64})+ *", line)
    ] == []
