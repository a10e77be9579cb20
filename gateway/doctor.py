"""`headwater doctor`: what is installed here, which device would be used, and what would stand in the way of serving."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Literal

import msgspec
from packaging.requirements import Requirement
from rich.table import Table
from rich.text import Text

from engine.errors import StartError
from engine.machine import Machine
from engine.model_store.store import ModelStore

from .config import CacheOptions
from .key_store import DEFAULT_NAME, NO_FILE, KeyStore, KeyStoreError
from .tenants import Tenants

Verdict = Literal["ok", "warn", "fail"]

_GIB = 2**30
_LEAST_PYTHON = (3, 11)
_DEMO_DISK = _GIB // 2  # the downloaded file and the import of the demo model
_DEMO_MEMORY = 2 * _GIB  # engine and gateway with the demo model and a small cache
_FILES = 4096  # two for each connection of the default limit
_PROBE_TIMEOUT = 180.0  # seconds: a first import of torch from a cold disk, and one compilation
_STYLES: dict[Verdict, str] = {"ok": "green", "warn": "yellow", "fail": "bold red"}


@dataclass(frozen=True, slots=True)
class Check:
    """`warn`: it serves, but worse than it could. `fail`: it does not serve. `detail` is one line, with the remedy."""

    name: str
    verdict: Verdict
    detail: str


def examine(
    store: Path, host: str, port: int, *, key_store: Path | None, caching: CacheOptions
) -> list[Check]:
    """All checks, in the order to read them. Blocks for some seconds: torch is loaded, in a process of its own."""
    return [
        python_check(sys.version_info[:3]),
        packages_check(),
        *machine_checks(),
        memory_check(available_memory()),
        disk_check(store),
        model_check(store),
        keys_check(
            None if key_store == NO_FILE else key_store or store / DEFAULT_NAME, named=key_store is not None
        ),
        *cache_checks(caching),
        port_check(host, port),
        files_check(*resource.getrlimit(resource.RLIMIT_NOFILE)),
    ]


def healthy(checks: Iterable[Check]) -> bool:
    return all(check.verdict != "fail" for check in checks)


def render(checks: Iterable[Check]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    for check in checks:
        table.add_row(Text(check.verdict, style=_STYLES[check.verdict]), check.name, Text(check.detail))
    return table


# -- software ------------------------------------------------------------------------------------------------------------


def python_check(found: tuple[int, int, int]) -> Check:
    detail = f"{'.'.join(map(str, found))} on {platform.system()} {platform.machine()}"
    if found[:2] < _LEAST_PYTHON:
        return Check("python", "fail", f"{detail}: 3.11 or newer is needed")
    return Check("python", "ok", detail)


def packages_check(distribution: str = "headwater") -> Check:
    """Whether what the distribution requires is installed, in a version that it was tested with."""
    try:
        own = version(distribution)
        needed = [Requirement(line) for line in requires(distribution) or ()]
    except PackageNotFoundError:
        return Check("packages", "fail", f"{distribution} is not installed here: run make install")
    wrong = [problem for need in needed if (problem := _problem(need)) is not None]
    if wrong:
        return Check("packages", "fail", f"{'; '.join(wrong)}: run make install")
    return Check("packages", "ok", f"{distribution} {own} and all that it needs")


def _problem(need: Requirement) -> str | None:
    if need.marker is not None and not need.marker.evaluate({"extra": ""}):
        return None
    try:
        found = version(need.name)
    except PackageNotFoundError:
        return f"{need.name} is missing"
    if not need.specifier.contains(found, prereleases=True):
        return f"{need.name} {found} is not {need.specifier}"
    return None


# -- the engine's view of the machine ------------------------------------------------------------------------------------


def machine_checks(command: tuple[str, ...] = (sys.executable, "-m", "engine.probe")) -> list[Check]:
    """torch, the device it would use, and the C kernels. The gateway does not load torch, so a child process looks."""
    try:
        done = subprocess.run(command, capture_output=True, check=False, timeout=_PROBE_TIMEOUT)
        machine = msgspec.json.decode(done.stdout, type=Machine)
    except subprocess.TimeoutExpired:
        return [Check("torch", "fail", f"did not load within {_PROBE_TIMEOUT:.0f} s")]
    except msgspec.DecodeError:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or [
            f"exit status {done.returncode}"
        ]
        return [Check("torch", "fail", f"does not load: {last[0]}")]
    checks = [Check("torch", "ok", machine.torch), Check("device", "ok", machine.device)]
    if machine.native_error is None:
        return [*checks, Check("C kernels", "ok", "built and loaded")]
    return [*checks, Check("C kernels", "warn", f"{machine.native_error}; slower on a CPU without them")]


# -- room ----------------------------------------------------------------------------------------------------------------


def available_memory(root: Path = Path("/")) -> int:
    """Bytes: what the kernel says is available, or what the control group leaves if that is less."""
    meminfo = dict(line.split(":", 1) for line in (root / "proc/meminfo").read_text().splitlines())
    available = int(meminfo["MemAvailable"].split()[0]) * 1024
    try:
        limit = (root / "sys/fs/cgroup/memory.max").read_text().strip()
        used = int((root / "sys/fs/cgroup/memory.current").read_text())
    except OSError:  # no control group, or an older kind: the kernel's word stands
        return available
    return available if limit == "max" else min(available, int(limit) - used)


def memory_check(available: int) -> Check:
    detail = f"{available / _GIB:.1f} GiB available"
    if available < _DEMO_MEMORY:
        return Check("memory", "warn", f"{detail}: little even for the demo model")
    return Check("memory", "ok", detail)


def disk_check(store: Path) -> Check:
    """At the store, or where it would be made."""
    place = _existing(store)
    free = shutil.disk_usage(place).free
    detail = f"{free / _GIB:.1f} GiB free at {store}"
    if not place.is_dir() or not os.access(place, os.W_OK):
        return Check(
            "disk", "warn", f"{store} cannot be written: nothing can be pulled or imported (--store)"
        )
    if free < _DEMO_DISK:
        return Check("disk", "warn", f"{detail}: too little to import even the demo model")
    return Check("disk", "ok", detail)


def model_check(store: Path) -> Check:
    model = ModelStore(store).locate(None)
    if model is None:
        return Check(
            "demo model", "warn", "not here yet: the first headwater serve or headwater pull fetches it"
        )
    return Check("demo model", "ok", f"{model.id} in {model.path}")


# -- what lasts ----------------------------------------------------------------------------------------------------------


def keys_check(path: Path | None, *, named: bool, now: float | None = None) -> Check:
    """`named`: the server is told to use this file, there or not."""
    try:
        keys = () if path is None else KeyStore(path).read()
    except KeyStoreError as error:
        return Check("keys", "fail", str(error))
    active = sum(key.status(time.time() if now is None else now) == "active" for key in keys)
    if active:
        return Check("keys", "ok", f"{active} active of {len(keys)} in {path}")
    if path is not None and (keys or named):
        return Check("keys", "warn", f"none is active in {path}: nobody can come in (headwater keys create)")
    return Check("keys", "ok", "none: the server answers this machine only")


def cache_checks(caching: CacheOptions) -> list[Check]:
    """Of what the operator has set: the tenants' file, the memory of the second tier, and places that are to be written."""
    checks = []
    if caching.tenants is not None:
        checks.append(tenants_check(caching.tenants))
    if caching.host_cache is not None:
        checks.append(host_cache_check(caching.host_cache, available_memory()))
    if caching.cache_dir is not None:
        checks.append(place_check("cache directory", caching.cache_dir, caching.disk_cache or 0))
    if caching.ledger is not None:
        whole = caching.ledger_files * caching.ledger_max_bytes
        checks.append(place_check("ledger", caching.ledger.absolute().parent, whole))
    return checks


def tenants_check(path: Path) -> Check:
    try:
        tenants = Tenants.read(path)
    except StartError as error:
        return Check("tenants", "fail", str(error))
    return Check("tenants", "ok", f"{len(tenants.limits)} with limits of their own in {path}")


def host_cache_check(wanted: int, available: int) -> Check:
    detail = f"{wanted / _GIB:.1f} GiB wanted, {available / _GIB:.1f} GiB available"
    return Check("host cache", "ok" if wanted <= available else "fail", detail)


def place_check(name: str, directory: Path, wanted: int) -> Check:
    """Whether a directory, or the place where it would be made, can be written and has room for so many bytes."""
    place = _existing(directory)
    if not place.is_dir() or not os.access(place, os.W_OK):
        return Check(name, "fail", f"{directory} cannot be written")
    free = shutil.disk_usage(place).free
    detail = f"{free / _GIB:.1f} GiB free at {directory}"
    if free < wanted:
        return Check(name, "warn", f"{detail}, {wanted / _GIB:.1f} GiB may be used")
    return Check(name, "ok", detail)


def _existing(path: Path) -> Path:
    """The path, or the closest of its parents that there is."""
    return next(place for place in (path.absolute(), *path.absolute().parents) if place.exists())


# -- the socket ----------------------------------------------------------------------------------------------------------


def port_check(host: str, port: int) -> Check:
    where = f"{host}:{port}"
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, proto) as attempt:
            attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does
            attempt.bind(address)
    except OSError as error:
        return Check("port", "fail", f"{where}: {error.strerror} (--host, --port)")
    return Check("port", "ok", f"{where} is free")


def files_check(soft: int, hard: int) -> Check:
    """The limit on open files, which is a limit on connections."""
    if soft == resource.RLIM_INFINITY:
        return Check("open files", "ok", "no limit")
    if soft < _FILES:
        return Check(
            "open files",
            "warn",
            f"{soft} at most, {_FILES} are wanted for many connections (ulimit -n {hard})",
        )
    return Check("open files", "ok", f"{soft} at most")
