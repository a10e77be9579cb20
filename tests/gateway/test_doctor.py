"""Doctor: every verdict can be reached, and the gateway stays without torch while it looks."""

from __future__ import annotations

import io
import resource
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from engine.model_store.store import LocalModel, ModelStore
from gateway import doctor
from gateway.config import CacheOptions
from gateway.doctor import (
    Check,
    available_memory,
    cache_checks,
    disk_check,
    examine,
    files_check,
    healthy,
    host_cache_check,
    keys_check,
    machine_checks,
    memory_check,
    model_check,
    packages_check,
    place_check,
    port_check,
    python_check,
    render,
    tenants_check,
)
from gateway.key_store import KeyStore


def test_python() -> None:
    assert python_check((3, 11, 0)).verdict == "ok"
    assert python_check((3, 10, 14)).verdict == "fail"


def test_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    assert packages_check("pytest").verdict == "ok"
    assert packages_check("no-such-distribution").verdict == "fail"
    needs = ["pytest>=9999", "no-such-distribution", 'never-asked-for; extra == "dev"', "rich"]
    monkeypatch.setattr(doctor, "requires", lambda _: needs)
    check = packages_check("pytest")
    assert check.verdict == "fail"
    assert "is not >=9999; no-such-distribution is missing: " in check.detail


def test_the_machine_is_looked_at_without_loading_torch_here() -> None:
    code = (
        "import sys; from gateway.doctor import machine_checks; print(machine_checks());"
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for name in ("torch", "device", "C kernels"):
        assert f"name='{name}'" in done.stdout


@pytest.mark.parametrize(
    ("code", "verdicts", "detail"),
    [
        (
            'print(\'{"torch": "2", "device": "CPU", "native_error": null}\')',
            ["ok", "ok", "ok"],
            "built and loaded",
        ),
        (
            'print(\'{"torch": "2", "device": "CPU", "native_error": "no cc"}\')',
            ["ok", "ok", "warn"],
            "no cc; slower",
        ),
        ("import no_such_module", ["fail"], "No module named 'no_such_module'"),
        ("import sys; sys.exit(7)", ["fail"], "exit status 7"),
        ("import time; time.sleep(60)", ["fail"], "did not load within"),
    ],
)
def test_whatever_the_probe_does_is_a_verdict(
    code: str, verdicts: list[str], detail: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_PROBE_TIMEOUT", 2.0)
    checks = machine_checks((sys.executable, "-c", code))
    assert [check.verdict for check in checks] == verdicts
    assert detail in checks[-1].detail


def test_memory_is_what_the_control_group_leaves(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9000 kB\nMemAvailable:    8000 kB\n")
    assert available_memory(tmp_path) == 8000 * 1024
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "memory.current").write_text("1000\n")
    for limit, expected in [("max\n", 8000 * 1024), ("5000\n", 4000), (f"{10**12}\n", 8000 * 1024)]:
        (group / "memory.max").write_text(limit)
        assert available_memory(tmp_path) == expected
    assert available_memory() > 0
    assert memory_check(2**40).verdict == "ok"
    assert memory_check(2**20).verdict == "warn"


def test_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert disk_check(tmp_path / "not" / "there" / "yet").verdict == "ok"
    (tmp_path / "file").touch()
    assert "cannot be written" in disk_check(tmp_path / "file" / "store").detail
    usage = doctor.shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: usage)
    assert "too little" in disk_check(tmp_path).detail


def test_demo_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert model_check(tmp_path).verdict == "warn"
    model = LocalModel("demo", tmp_path, "here", {}, 0)
    monkeypatch.setattr(ModelStore, "locate", lambda *_: model)
    assert model_check(tmp_path) == Check("demo model", "ok", f"demo in {tmp_path}")


def test_keys(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    assert keys_check(path, named=False) == Check("keys", "ok", "none: the server answers this machine only")
    assert keys_check(path, named=True).verdict == "warn"
    assert keys_check(None, named=True).verdict == "ok"
    keys = KeyStore(path)
    keys.create("a", "a")
    keys.create("b", "b")
    keys.revoke("a")
    assert keys_check(path, named=False) == Check("keys", "ok", f"1 active of 2 in {path}")
    keys.revoke("b")
    assert "nobody can come in" in keys_check(path, named=False).detail
    path.write_text("{")
    assert keys_check(path, named=False).verdict == "fail"


def test_what_the_cache_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "available_memory", lambda: 2**30)
    tenants = tmp_path / "tenants.yaml"
    tenants.write_text("tenants: {a: {quota: 10%}}")
    asked = {"tenants": tenants, "host_cache": 2**29, "cache_dir": tmp_path / "c", "ledger": tmp_path / "l"}
    checks = cache_checks(CacheOptions(**asked))
    assert [check.name for check in checks] == ["tenants", "host cache", "cache directory", "ledger"]
    assert {check.verdict for check in checks} == {"ok"}
    assert cache_checks(CacheOptions()) == []
    assert host_cache_check(2**31, 2**30).verdict == "fail"
    tenants.write_text("tenants: {a: {quota: 110%}}")
    assert "tenants.a.quota" in tenants_check(tenants).detail
    (tmp_path / "file").touch()
    assert place_check("ledger", tmp_path / "file" / "x", 0).verdict == "fail"
    assert place_check("ledger", tmp_path / "not" / "there", 2**60).verdict == "warn"


def test_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        check = port_check("127.0.0.1", port)
        assert check.verdict == "fail"
        assert "in use" in check.detail
    assert port_check("127.0.0.1", port).verdict == "ok"
    assert port_check("no.such.host.invalid", 80).verdict == "fail"


def test_open_files() -> None:
    assert files_check(256, 4096).verdict == "warn"
    assert files_check(65536, 65536).verdict == "ok"
    assert files_check(resource.RLIM_INFINITY, resource.RLIM_INFINITY).verdict == "ok"


def test_all_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "machine_checks", lambda: [Check("torch", "ok", "2")])
    checks = examine(tmp_path, "127.0.0.1", 0, key_store=None, caching=CacheOptions())
    assert [check.name for check in checks] == [
        "python", "packages", "torch", "memory", "disk", "demo model", "keys", "port", "open files",
    ]  # fmt: skip
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(render(checks))
    text = console.export_text()
    assert all(check.detail in text for check in checks)
    assert healthy([Check("a", "warn", "")])
    assert not healthy([Check("a", "ok", ""), Check("b", "fail", "")])
