"""The start plan says what every tier may hold, who may come in, and where things are written."""

from __future__ import annotations

from pathlib import Path

from msgspec import structs

from gateway.config import CacheOptions, Http, StoreOptions
from gateway.start_plan import Standing, start_plan
from tests.fakes import FakeEngine

INFO = structs.replace(FakeEngine()._info, page_bytes=1024)


def rows(
    info: object = INFO,
    http: Http | None = None,
    tenants: int = 0,
    keeping: StoreOptions | None = None,
    **caching: object,
) -> dict[str, str]:
    plan = start_plan(
        info, Standing(http or Http(), CacheOptions(**caching), tenants, keeping or StoreOptions())
    )  # type: ignore[arg-type]
    return {line[2:12].strip(): line[13:] for line in plan.splitlines()}


def test_tiers_that_are_off_are_not_shown() -> None:
    assert list(rows()) == [
        "device",
        "weights",
        "KV cache",
        "context",
        "batch",
        "answers",
        "callers",
        "sessions",
    ]


def test_every_tier_is_shown_with_what_it_may_hold() -> None:
    info = structs.replace(INFO, host_bytes=3 * 2**20, disk_bytes=2**30)
    shown = rows(info, cache_dir=Path("/var/cache/hw"))
    assert shown["KV cache"].startswith("1.0 MiB: 1,024 pages")
    assert shown["host cache"] == "3.0 MiB in memory = 49,152 tokens"
    assert shown["disk cache"] == "1.0 GiB in /var/cache/hw = 16,777,216 tokens"


def test_callers_and_the_ledger() -> None:
    assert rows()["callers"] == "this machine only, without a key"
    http = Http(api_keys=("a", "b"), key_store=Path("/etc/keys.json"))
    shown = rows(http=http, tenants=3, ledger=Path("/var/log/ledger"), ledger_max_bytes=2**20, ledger_files=4)
    assert shown["callers"] == "2 keys of options and the keys in /etc/keys.json; 3 tenants with limits"
    assert shown["ledger"] == "/var/log/ledger, up to 4.0 MiB"


def test_what_answers_depend_on() -> None:
    assert rows(structs.replace(INFO, deterministic=True))["answers"].startswith("deterministic")
    assert "--deterministic" in rows()["answers"]


def test_sessions_are_in_one_of_three_places_and_no_password_is_shown() -> None:
    assert rows()["sessions"] == "in memory, 64.0 MiB of them, for 24 h"
    assert rows(cache_dir=Path("/var/cache/hw"))["sessions"] == "in /var/cache/hw, for 24 h"
    shown = rows(keeping=StoreOptions(redis="redis://:secret@host/1", session_ttl=1800))["sessions"]
    assert shown == "in redis://host:6379/1, for 0.5 h; 64.0 MiB here for when it is away"
