"""An engine with tiers below its device: answers are the reference's wherever the pages came from, and nobody else's."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cache import prefix_cache
from cache.lease import CachePolicy, EntrySpec, FlushScope, Lease, TenantLimits, Tier
from engine import cache_desk, load_costs, page_moves
from engine.config import EngineConfig, HashModelConfig
from engine.errors import PinsExhausted, StartError
from engine.hash_model import reference
from engine.llm import LLM
from engine.load_costs import always_dear
from engine.request import (
    AskCache,
    AskEntry,
    CacheAnswer,
    CacheQuestion,
    CacheReport,
    EntryReport,
    ExportPages,
    FlushCache,
    FlushReport,
    GenerationRequest,
    ImportPages,
    LimitsReport,
    LookUp,
    LookUpReport,
    SamplingParams,
    SetLimits,
    TransferReport,
)

SIZE = 4
PAGE_BYTES = 8 * SIZE
PREFIX = 40
"""Tokens that requests of a kind share: ten pages."""


class Served:
    """An engine in this process, asked one thing after the other."""

    def __init__(self, **config: Any) -> None:
        settings: dict[str, Any] = {"pages": 32, "max_model_len": 100, **config}
        self.llm = LLM(EngineConfig(hash_model=HashModelConfig(), page_size=SIZE, **settings))
        self.engine = self.llm._engine
        self.numbers = iter(range(10**6))
        # This model computes faster than a file is opened.
        self.engine._moves._tiers.costs._recompute = always_dear

    def ask(self, make: Any) -> CacheAnswer:
        number = next(self.numbers)
        self.engine.ask(make(number))
        due = time.monotonic() + 10
        while time.monotonic() < due:
            for report in self.engine.take_reports():
                if report.query_id == number:
                    return report  # type: ignore[return-value]
            self.turn()
        raise AssertionError("no answer")

    def turn(self) -> None:
        plan = self.engine.plan()
        assert plan is None
        self.engine.wakeup.wait(0.01)

    def settle(self) -> None:
        """Until nothing is on its way."""
        moves = self.engine._moves
        for _ in range(500):
            self.turn()
            traffic = moves._traffic
            busy = traffic is not None and (traffic._spills or traffic._reads or traffic._done)
            if not busy and not moves._tiers.waiting and not moves._tiers._lasting:
                return
        raise AssertionError("pages are on their way for ever")

    def say(self, kind: int, last: int = 0, **options: Any) -> dict[Tier, int]:
        """Ask something that goes on from the prefix of its kind; by tier, what of it was found."""
        before = self.llm.counters.cache
        prompt = prompt_of(kind, last)
        sampling = SamplingParams(max_tokens=3, temperature=0.0)
        request = GenerationRequest(
            request_id=f"r{next(self.numbers)}", prompt=prompt, sampling=sampling, **options
        )
        (completion,) = self.llm.answer([request])
        assert completion.error is None
        assert list(completion.answers[0].tokens) == reference(prompt, sampling, adapter=request.adapter)
        self.check()
        after = self.llm.counters.cache
        found: dict[Tier, int] = {
            tier: getattr(after, tier).hit_tokens - getattr(before, tier).hit_tokens
            for tier in ("device", "host", "disk")
        }
        assert sum(found.values()) == completion.cached_tokens
        return found

    def crowd_out(self) -> None:
        """Take everything from the device, as if others needed the room."""
        self.engine._scheduler.cache.evict(1000)
        self.settle()

    def check(self) -> None:
        self.engine._scheduler.check()
        traffic = self.engine._moves._traffic
        if traffic is not None:
            traffic.check()
            traffic._disk.check()


def prompt_of(kind: int, last: int = 0) -> list[int]:
    return [32 + (kind * 7 + at * at) % 90 for at in range(PREFIX)] + [32 + last, 40]


@contextmanager
def served(**config: Any) -> Iterator[Served]:
    one = Served(**config)
    try:
        yield one
        one.check()
    finally:
        one.llm.close()


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_costs, "SLACK", 10.0)


HOST = {"host_bytes": 64 * PAGE_BYTES}


@pytest.fixture
def disk(tmp_path: Path) -> dict[str, Any]:
    return {**HOST, "cache_dir": str(tmp_path / "cache"), "disk_bytes": 1 << 20}


def test_what_the_device_gave_up_comes_back_from_the_hosts_memory() -> None:
    with served(**HOST) as one:
        assert one.say(1) == {"device": 0, "host": 0, "disk": 0}
        assert one.say(1, 1)["device"] == PREFIX
        one.crowd_out()
        assert one.say(1, 2) == {"device": 0, "host": PREFIX, "disk": 0}
        assert one.say(1, 3)["device"] == PREFIX, "it is on the device again"


def test_without_a_lower_tier_it_is_gone() -> None:
    with served() as one:
        one.say(1)
        one.crowd_out()
        assert one.say(1, 1) == {"device": 0, "host": 0, "disk": 0}


@pytest.mark.parametrize(
    "other",
    [{"namespace": b"other"}, {"adapter": b"other"}],
    ids=["namespace", "adapter"],
)
@pytest.mark.parametrize("tier", ["device", "host", "disk", "restarted"])
def test_the_same_namespace_finds_it_and_no_other_does(
    tier: str, other: dict[str, Any], disk: dict[str, Any]
) -> None:
    mine: dict[str, Any] = {"namespace": b"mine", "adapter": b"mine", "tenant": "me"}
    wanted: Tier = "disk" if tier == "restarted" else tier  # type: ignore[assignment]
    with served(**disk) as one:
        for last in range(4):
            one.say(1, last, **mine)
        if tier != "device":
            one.crowd_out()
        if tier == "disk":
            one.engine._moves._tiers.host.flush_roots(FlushScope())
        if tier != "restarted":
            assert one.say(1, 9, **{**mine, **other}) == {"device": 0, "host": 0, "disk": 0}
            assert one.say(1, 9, **mine)[wanted] == PREFIX
    if tier == "restarted":
        with served(**disk) as one:
            assert one.say(1, 9, **{**mine, **other}) == {"device": 0, "host": 0, "disk": 0}
            assert one.say(1, 9, **mine)[wanted] == PREFIX


def test_a_restart_with_another_secret_finds_nothing(disk: dict[str, Any]) -> None:
    with served(**disk) as one:
        one.say(1)
    Path(disk["cache_dir"], "secret").unlink()
    with served(**disk) as one:
        assert one.say(1, 1) == {"device": 0, "host": 0, "disk": 0}


def test_a_disk_needs_no_budget_for_the_host(tmp_path: Path) -> None:
    for expected in (0, PREFIX):
        with served(cache_dir=str(tmp_path), pages=64) as one:
            assert one.say(1)["disk"] == expected
            assert one.engine.budgets["host"] == 25 * PAGE_BYTES, "enough for a sequence of maximum length"
            assert one.engine.budgets["disk"] > 1 << 20


def test_many_at_once_load_a_prefix_once(disk: dict[str, Any]) -> None:
    with served(**disk, max_running=8) as one:
        one.say(1)
        one.crowd_out()
        requests = [
            GenerationRequest(
                request_id=f"m{last}",
                prompt=prompt_of(1, last),
                sampling=SamplingParams(max_tokens=3, temperature=0.0),
            )
            for last in range(6)
        ]
        before = one.llm.counters.cache
        completions = one.llm.answer(requests)
        after = one.llm.counters.cache
        for completion in completions:
            assert list(completion.answers[0].tokens) == reference(
                completion.request.prompt, completion.request.sampling
            )
            assert completion.cached_tokens == PREFIX
        assert after.host.hit_tokens - before.host.hit_tokens == PREFIX
        assert after.device.hit_tokens - before.device.hit_tokens == 5 * PREFIX
        one.check()


def test_what_must_not_reach_the_disk_does_not(disk: dict[str, Any]) -> None:
    secret = CachePolicy(
        lowest="host", entries=(EntrySpec(entry_id="s", tokens=PREFIX, lease=Lease(ttl=9e9)),)
    )
    for policy in (secret, CachePolicy(lowest="device")):
        with served(**disk) as one:
            for last in range(5):
                one.say(1, last, cache=policy)
            one.crowd_out()
            found = one.say(1, 8, cache=policy)
            assert found["host"] == (PREFIX if policy is secret else 0)
    files = [path for path in Path(disk["cache_dir"]).rglob("*") if path.is_file()]
    assert {path.name for path in files} == {"lock", "secret"}


@pytest.mark.parametrize(
    ("policy", "asked", "written"),
    [
        (CachePolicy(), 1, False),
        (CachePolicy(), 4, True),
        (CachePolicy(entries=(EntrySpec(entry_id="e", tokens=PREFIX, lease=Lease(ttl=1800.0)),)), 1, True),
        (CachePolicy(entries=(EntrySpec(entry_id="e", tokens=PREFIX, lease=Lease(pin="soft")),)), 1, True),
    ],
    ids=["once", "again and again", "leased", "pinned"],
)
def test_what_is_worth_it_is_written_before_anybody_stops(
    disk: dict[str, Any], policy: CachePolicy, asked: int, written: bool
) -> None:
    with served(**disk) as one:
        for last in range(asked):
            one.say(1, last, cache=policy)
        one.settle()
        pages = len(list(Path(disk["cache_dir"], "pages").rglob("?" * 64 + "/*")))
        assert pages >= PREFIX // SIZE if written else pages == 0


def test_a_stop_writes_what_is_there_and_not_more_than_it_may(disk: dict[str, Any]) -> None:
    with served(**{**disk, "disk_bytes": 12 * 8192}) as one:
        one.say(2)
        one.say(
            1, cache=CachePolicy(entries=(EntrySpec(entry_id="e", tokens=PREFIX, lease=Lease(ttl=600.0)),))
        )
        one.say(3)
        one.settle()
    with served(**disk) as one:
        assert one.say(1, 1)["disk"] == PREFIX, "the leased one first"
        assert one.say(2, 1)["disk"] < PREFIX


def test_a_flush_obeys_in_every_tier_and_after_a_restart(disk: dict[str, Any]) -> None:
    with served(**disk) as one:
        for tenant in ("a", "b"):
            for last in range(4):
                one.say(1, last, tenant=tenant, namespace=tenant.encode())
        one.crowd_out()
        dry = one.ask(lambda number: FlushCache(number, FlushScope(tenant="a"), dry_run=True))
        done = one.ask(lambda number: FlushCache(number, FlushScope(tenant="a")))
        assert isinstance(done, FlushReport)
        assert isinstance(dry, FlushReport)
        assert done.bytes == dry.bytes
        assert done.bytes["host"] >= PREFIX // SIZE * PAGE_BYTES
        assert done.bytes["disk"] > 0
        assert done.pages["host"] >= PREFIX // SIZE
        assert one.say(1, 9, tenant="a", namespace=b"a") == {"device": 0, "host": 0, "disk": 0}
        assert one.say(1, 9, tenant="b", namespace=b"b")["host"] == PREFIX
        one.ask(lambda number: FlushCache(number, FlushScope(tenant="a")))
    with served(**disk) as one:
        assert one.say(1, 9, tenant="a", namespace=b"a") == {"device": 0, "host": 0, "disk": 0}
        assert one.say(1, 9, tenant="b", namespace=b"b")["disk"] == PREFIX


def test_a_flush_of_a_group_or_an_entry_reaches_below(disk: dict[str, Any]) -> None:
    entry = CachePolicy(
        group=b"g", entries=(EntrySpec(entry_id="e", tokens=PREFIX, lease=Lease(ttl=60.0, tag="t")),)
    )
    for scope in (FlushScope(group=b"g"), FlushScope(tag="t"), FlushScope(entry_id="e")):
        with served(**disk) as one:
            one.say(1, cache=entry)
            one.say(2)
            one.crowd_out()
            assert one.ask(lambda number, scope=scope: FlushCache(number, scope)).bytes["host"] > 0  # type: ignore[union-attr]
            assert sum(one.say(1, 1).values()) < SIZE + 1, scope
            assert one.say(2, 1)["host"] == PREFIX, scope
            one.ask(lambda number: FlushCache(number, FlushScope()))


@pytest.mark.parametrize("scope", [FlushScope(group=b"g"), FlushScope(tag="t"), FlushScope(entry_id="e")])
def test_a_flush_takes_its_time_and_holds_all_the_same(
    disk: dict[str, Any], monkeypatch: pytest.MonkeyPatch, scope: FlushScope
) -> None:
    """Page by page between steps, while a request of the scope finds what is still there and goes on from it."""
    for module in (prefix_cache, page_moves):
        monkeypatch.setattr(module, "AT_A_TIME", 1)
    monkeypatch.setattr(cache_desk, "SLICE", 0.0)
    lease = Lease(ttl=60.0, tag="t")
    policy = CachePolicy(group=b"g", entries=(EntrySpec(entry_id="e", tokens=PREFIX, lease=lease),))
    with served(**disk) as one:
        for last in range(4):
            one.say(1, last, cache=policy)
        one.say(2)
        one.crowd_out()
        one.say(2, 1)
        one.say(1, 4, cache=policy)
        one.engine.ask(FlushCache(77, scope))
        found = sum(one.say(1, 5, cache=policy).values())
        assert one.engine._desk.busy, "it is not over yet"
        assert found, "and not all of it is gone"
        reports: list[Any] = []
        while not reports:
            one.turn()
            reports += one.engine.take_reports()
        assert reports[0].query_id == 77
        one.check()
        left = one.ask(lambda number: LookUp(number, prompt_of(1, 6)))
        assert isinstance(left, LookUpReport)
        assert left.device + left.host + left.disk < SIZE + 1
        assert sum(one.say(2, 2).values()) == PREFIX
    with served(**disk) as one:
        assert sum(one.say(1, 7).values()) == 0


def anyone_finds(one: Served) -> dict[str, int]:
    report = one.ask(lambda number: LookUp(number, prompt_of(1, 9)))
    assert isinstance(report, LookUpReport)
    return {"device": report.device, "host": report.host, "disk": report.disk}


@pytest.mark.parametrize("tier", ["device", "host", "disk"])
def test_what_another_key_has_used_stays_whichever_tier_it_came_from_and_is_in(
    disk: dict[str, Any], tier: Tier
) -> None:
    """Pages written under one key, then found under another: no flush by a key takes them, from any tier."""
    a, b = CachePolicy(group=b"a"), CachePolicy(group=b"b")
    for key in (b"a", b"b"):
        with served(**disk) as one:
            for last in range(4):
                one.say(1, last, cache=a)
            one.crowd_out()
            if tier == "disk":
                one.engine._moves._tiers.host.flush_roots(FlushScope())
            assert one.say(1, 5, cache=b)["disk" if tier == "disk" else "host"] == PREFIX
            one.settle()
            if tier != "device":
                one.crowd_out()
            if tier == "disk":
                one.engine._moves._tiers.host.flush_roots(FlushScope())
            one.ask(lambda number, key=key: FlushCache(number, FlushScope(group=key)))  # type: ignore[misc]
            assert anyone_finds(one)[tier] == PREFIX, (key, tier)
            one.ask(lambda number: FlushCache(number, FlushScope()))


def test_a_tag_is_that_of_all_who_hold_a_page_in_a_lower_tier_too(disk: dict[str, Any]) -> None:
    def tagged(name: str, tag: str) -> CachePolicy:
        return CachePolicy(entries=(EntrySpec(entry_id=name, tokens=PREFIX, lease=Lease(ttl=60.0, tag=tag)),))

    with served(**disk) as one:
        one.say(1, 0, cache=tagged("e", "t"))
        one.say(1, 1, cache=tagged("e", "t"))
        one.settle()
        one.say(1, 2, cache=tagged("f", "u"))
        one.crowd_out()
        one.engine._moves._tiers.host.flush_roots(FlushScope())
        for tag in ("t", "u"):
            one.ask(lambda number, tag=tag: FlushCache(number, FlushScope(tag=tag)))  # type: ignore[misc]
            assert anyone_finds(one)["disk"] == PREFIX, tag


def test_after_a_restart_pages_go_by_what_they_were_written_with(disk: dict[str, Any]) -> None:
    """Who has used them since is not in their files: more may go than has to, and what goes is computed anew."""
    a, b = CachePolicy(group=b"a"), CachePolicy(group=b"b")
    with served(**disk) as one:
        for last in range(4):
            one.say(1, last, cache=a)
        one.settle()
        one.say(1, 5, cache=b)
    with served(**disk) as one:
        one.ask(lambda number: FlushCache(number, FlushScope(group=b"b")))
        assert anyone_finds(one)["disk"] == PREFIX
        one.ask(lambda number: FlushCache(number, FlushScope(group=b"a")))
        assert sum(anyone_finds(one).values()) == 0


def test_a_look_tells_the_tiers_apart(disk: dict[str, Any]) -> None:
    def look(one: Served) -> tuple[int, int, int]:
        report = one.ask(lambda number: LookUp(number, prompt_of(1, 7)))
        assert isinstance(report, LookUpReport)
        return report.device, report.host, report.disk

    with served(**disk) as one:
        assert look(one) == (0, 0, 0)
        for last in range(4):
            one.say(1, last)
        assert look(one) == (PREFIX, 0, 0)
        one.crowd_out()
        assert look(one) == (0, PREFIX, 0)
        one.engine._moves._tiers.host.flush_roots(FlushScope())
        assert look(one) == (0, 0, PREFIX)


def entry_of(one: Served, **change: Any) -> tuple[EntryReport, tuple[int, int, int]]:
    report = one.ask(lambda number: AskEntry(number, "e", **change))
    assert isinstance(report, EntryReport)
    assert report.entry is not None
    return report, (report.entry.device, report.entry.host, report.entry.disk)


def test_an_entry_goes_down_and_up_as_it_is_asked(disk: dict[str, Any]) -> None:
    policy = CachePolicy(entries=(EntrySpec(entry_id="e", tokens=PREFIX, lease=Lease(ttl=60.0)),))
    with served(**disk) as one:
        one.say(1, cache=policy)
        assert entry_of(one)[1] == (PREFIX, 0, 0)
        # Nothing is asked about the pages below the entry, which are in its way.
        one.ask(lambda number: FlushCache(number, FlushScope(idle_for=0.0, tiers=())))
        one.engine._scheduler.cache.evict(1)
        report, tiers = entry_of(one, to="host")
        assert (report.error, tiers) == (None, (0, PREFIX, 0))
        assert report.entry is not None
        assert report.entry.status == "demoted", "nothing of it is lost, and no promise is broken"
        one.settle()
        report, tiers = entry_of(one, to="device")
        assert (report.error, tiers) == (None, (PREFIX, 0, 0))
        assert report.entry is not None
        assert report.entry.status == "held"
        assert one.say(1, 5)["device"] == PREFIX
        one.engine._scheduler.cache.evict(1)
        assert entry_of(one, to="disk")[0].error is None
        one.settle()
        report, tiers = entry_of(one)
        assert tiers == (0, 0, PREFIX)
        assert report.entry is not None
        assert (report.entry.status, report.entry.cause) == ("demoted", "demoted")
        assert entry_of(one, to="device")[0].error is None
        one.settle()
        assert entry_of(one)[1] == (PREFIX, 0, 0)
        assert one.say(1, 6)["device"] == PREFIX


def test_an_entry_that_a_lower_tier_has_lost_says_so(disk: dict[str, Any]) -> None:
    policy = CachePolicy(entries=(EntrySpec(entry_id="e", tokens=PREFIX, lease=Lease(ttl=60.0)),))
    with served(**disk) as one:
        one.say(1, cache=policy)
        one.ask(lambda number: FlushCache(number, FlushScope(idle_for=0.0, tiers=())))
        one.engine._scheduler.cache.evict(1)
        entry_of(one, to="host")
        one.settle()
        one.ask(lambda number: FlushCache(number, FlushScope(idle_for=0.0, tiers=("host", "disk"))))
        report, tiers = entry_of(one)
        assert tiers == (0, 0, 0)
        assert report.entry is not None
        assert (report.entry.status, report.entry.cause) == ("broken", "lost")


def test_who_asks_again_for_what_is_on_its_way_takes_no_second_hold_of_it(disk: dict[str, Any]) -> None:
    policy = CachePolicy(entries=(EntrySpec(entry_id="e", tokens=PREFIX, lease=Lease(ttl=60.0)),))
    with served(**disk) as one:
        one.say(1, cache=policy)
        one.ask(lambda number: FlushCache(number, FlushScope(idle_for=0.0, tiers=())))
        one.engine._scheduler.cache.evict(1)
        assert entry_of(one, to="disk")[0].error is None
        one.settle()
        for number in range(3):
            one.engine.ask(AskEntry(1000 + number, "e", to="device"))
        one.settle()
        assert entry_of(one)[1] == (PREFIX, 0, 0)
        assert not any(page.pins for page in one.engine._moves._tiers.host.index)


@pytest.mark.parametrize("tokens", [PREFIX - 3, PREFIX - 1, PREFIX + 1])
def test_an_entry_that_ends_within_a_page_counts_no_token_twice(disk: dict[str, Any], tokens: int) -> None:
    policy = CachePolicy(entries=(EntrySpec(entry_id="e", tokens=tokens, lease=Lease(ttl=60.0)),))
    with served(**disk) as one:
        one.say(1, cache=policy)
        one.ask(lambda number: FlushCache(number, FlushScope(idle_for=0.0, tiers=())))
        one.crowd_out()
        assert entry_of(one)[1] == (0, tokens, 0)
        one.say(1, 5)
        device = min(tokens, PREFIX)
        assert entry_of(one)[1] == (device, tokens - device, 0), "what is on the device has copies in memory"


def test_a_tier_that_is_not_there_takes_nothing() -> None:
    policy = CachePolicy(entries=(EntrySpec(entry_id="e", tokens=PREFIX, lease=Lease(ttl=60.0)),))
    with served() as one:
        one.say(1, cache=policy)
        report, tiers = entry_of(one, to="host")
        assert report.kind == "unavailable"
        assert "no tier 'host'" in (report.error or "")
        assert tiers == (PREFIX, 0, 0)


def test_bytes_are_reported_by_tenant_and_tier(disk: dict[str, Any]) -> None:
    with served(**disk) as one:
        for last in range(4):
            one.say(1, last, tenant="a")
        one.say(2, tenant="b", namespace=b"b")
        one.crowd_out()
        report = one.ask(AskCache)
        assert isinstance(report, CacheReport)
        held = {tenant.tenant: tenant.bytes for tenant in report.tenants}
        assert held["a"]["host"] >= PREFIX // SIZE * PAGE_BYTES
        assert held["a"]["disk"] > 0
        counters = one.engine.census().counters.cache
        assert counters.host.budget == 64 * PAGE_BYTES
        assert counters.host.bytes == sum(each["host"] for each in held.values())
        assert 0 < counters.disk.bytes <= counters.disk.budget <= 1 << 20
    with served(**disk) as one:
        report = one.ask(lambda number: AskCache(number, "a"))
        assert isinstance(report, CacheReport)
        assert [tenant.bytes["disk"] > 0 for tenant in report.tenants] == [True], "from before the restart"


def test_limits_may_change_while_an_engine_runs(disk: dict[str, Any]) -> None:
    pinned = CachePolicy(entries=(EntrySpec(entry_id="e", tokens=PREFIX, lease=Lease(ttl=9.0, pin="hard")),))
    with served(**disk) as one:
        for last in range(4):
            one.say(1, last, tenant="a")
        one.crowd_out()
        report = one.ask(
            lambda number: SetLimits(number, {"a": TenantLimits(quota=0.02)}, TenantLimits(pins=0))
        )
        assert report == LimitsReport(report.query_id)
        one.check()
        assert one.engine._scheduler.cache.accounts.of("a").quota < 10
        report = one.ask(lambda number: SetLimits(number, {"a": TenantLimits(floor=1.0)}, TenantLimits()))
        assert isinstance(report, LimitsReport)
        assert "a sequence of maximum length needs" in (report.error or "")
        assert one.engine._scheduler.cache.accounts.of("a").floor == 0
        request = GenerationRequest(
            request_id="p", prompt=prompt_of(2), sampling=SamplingParams(max_tokens=1), cache=pinned
        )
        (completion,) = one.llm.answer([request])
        assert isinstance(completion.error, PinsExhausted), "others may pin nothing now"


def test_a_disk_that_fails_costs_time_and_nothing_else(
    disk: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    with served(**disk, test_mode=True) as one:
        for last in range(4):
            one.say(1, last)
        one.crowd_out()
        one.engine._moves._tiers.host.flush_roots(FlushScope())
        one.engine.set_failpoint("disk_fails=1")
        assert one.say(1, 5)["disk"] < PREFIX, "the page that failed and all after it are computed"
        assert one.engine.census().counters.cache.disk.failed == 1
        one.engine.set_failpoint("disk_fails=100")
        for last in range(4):
            one.say(2, last)
        one.settle()
        assert one.engine.census().counters.cache.disk.failed > 1
        one.engine.set_failpoint("off")
    assert "could not be written to disk" in caplog.text


# ---- files ---------------------------------------------------------------------------------------------------------------


def export(one: Served, path: Path, tokens: list[int], **options: Any) -> TransferReport:
    report = one.ask(lambda number: ExportPages(number, str(path), tokens, **options))
    assert isinstance(report, TransferReport)
    return report


def take_in(one: Served, path: Path, **options: Any) -> TransferReport:
    settings: dict[str, Any] = {"entry_id": "imported", "lease": Lease(ttl=60.0), "tenant": "new", **options}
    report = one.ask(lambda number: ImportPages(number, str(path), **settings))
    assert isinstance(report, TransferReport)
    return report


@pytest.mark.parametrize("tier", ["device", "host", "disk"])
def test_what_is_exported_from_any_tier_is_found_where_it_is_imported(
    tier: str, disk: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "pages"
    with served(**disk) as one:
        for last in range(4):
            one.say(1, last, namespace=b"old")
        if tier != "device":
            one.crowd_out()
        if tier == "disk":
            one.engine._moves._tiers.host.flush_roots(FlushScope())
        report = export(one, path, prompt_of(1, 9), namespace=b"old")
        assert report.error is None
        assert report.bytes == path.stat().st_size
        assert report.tokens == PREFIX
        assert not one.engine._scheduler.lent
    with served() as one:
        report = take_in(one, path, namespace=b"new")
        assert report.error is None
        assert report.tokens == PREFIX
        assert not one.engine._scheduler.lent
        assert one.say(1, 9, namespace=b"old", tenant="new") == {"device": 0, "host": 0, "disk": 0}
        assert one.say(1, 9, namespace=b"new", tenant="new")["device"] == PREFIX
        entry = one.ask(lambda number: AskEntry(number, "imported"))
        assert isinstance(entry, EntryReport)
        assert entry.entry is not None
        assert (entry.entry.device, entry.entry.status, entry.entry.tenant) == (PREFIX, "held", "new")


def test_a_prefix_that_ends_inside_a_page_is_exported_to_its_last_token(tmp_path: Path) -> None:
    with served() as one:
        one.say(1)
        assert export(one, tmp_path / "pages", prompt_of(1)).tokens == PREFIX + 2
    with served() as one:
        assert take_in(one, tmp_path / "pages").tokens == PREFIX + 2
        assert one.say(1)["device"] == PREFIX + 1, "all but the last token"


@pytest.mark.timeout(20)
def test_whoever_waits_for_an_answer_that_takes_a_while_gets_it(tmp_path: Path) -> None:
    """In an engine that has nothing else to do: it does not rest with an answer that nobody has taken."""
    with served() as one:
        one.say(1)
        for number in range(20):
            ask = ExportPages(number, str(tmp_path / f"pages-{number}"), prompt_of(1))
            assert one.llm._ask(ask, TransferReport).error is None


def test_nothing_cached_is_no_file(tmp_path: Path) -> None:
    with served() as one:
        report = export(one, tmp_path / "pages", prompt_of(1))
        assert (report.tokens, report.error) == (0, None)
        assert not (tmp_path / "pages").exists()


def test_what_cannot_be_imported_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "pages"
    with served() as one:
        one.say(1)
        export(one, path, prompt_of(1))
        report = export(one, path, prompt_of(1))
        assert "File exists" in (report.error or "")
        assert report.kind == "unavailable", "nothing that a client could do better"
        data = path.read_bytes()
        for number, (damaged, message) in enumerate(
            (
                (data[:-1], "bytes instead of"),
                (data[:-20] + bytes([data[-20] ^ 1]) + data[-19:], "damaged"),
                (b"junk" * 100, "no file of exported pages"),
            )
        ):
            path.unlink()
            path.write_bytes(damaged)
            report = take_in(one, path, namespace=b"new %d" % number)
            assert report.kind == "bad_request"
            assert message in (report.error or "")
            assert one.say(1, 1, namespace=b"new %d" % number) == {"device": 0, "host": 0, "disk": 0}
            assert not one.engine._scheduler.lent
        path.write_bytes(data)
    with served(pages=8, max_model_len=32) as one:
        assert "more than the 32" in (take_in(one, path).error or "")
    with served(prefix_cache=False) as one:
        assert "no prefix cache" in (take_in(one, path).error or "")
    with served() as one:
        report = take_in(one, path, lease=Lease(pin="hard"), entry_id="big")
        assert report.kind == "pins_exhausted", "eleven pages of thirty-two are more than a fifth"
        assert one.say(1, 1)["device"] == 0


@pytest.mark.parametrize("started", [False, True], ids=["asked for", "being read"])
@pytest.mark.parametrize(
    "stop",
    [
        lambda number: FlushCache(number, FlushScope()),
        lambda number: AskEntry(number, "e", drop=True),  # whoever asked has left
    ],
    ids=["flush", "drop"],
)
def test_an_import_that_is_stopped_leaves_nothing(
    started: bool, stop: Callable[[int], CacheQuestion], tmp_path: Path
) -> None:
    path = tmp_path / "pages"
    with served() as one:
        one.say(1)
        export(one, path, prompt_of(1))
        one.ask(lambda number: FlushCache(number, FlushScope()))
        transfers = one.engine._moves._transfers
        one.engine.ask(ImportPages(777, str(path), "e", Lease(ttl=60.0), "new"))
        for _ in range(500 if started else 0):
            transfers.take()
            if one.engine._scheduler.lent:
                break
            time.sleep(0.002)
        one.engine.ask(stop(778))
        reports: list[TransferReport] = []
        while not reports:
            reports = transfers.take()
        assert reports[0].kind == "unavailable"
        assert "flushed meanwhile, or the entry dropped" in (reports[0].error or "")
        assert one.engine._scheduler.cache.entry("e") is None
        assert not one.engine._scheduler.lent
        assert one.say(1, 1)["device"] == 0


# ---- starting ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"host_bytes": PAGE_BYTES - 1}, "hold no page of"),
        ({"host_bytes": 1 << 60}, "bytes of memory that are available"),
        ({"disk_bytes": 100}, "hold no page file of"),
        ({"disk_bytes": 1 << 60}, "has room for"),
    ],
)
def test_budgets_that_cannot_be_are_refused(config: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(StartError, match=message) as raised:
        Served(cache_dir=str(tmp_path / "cache"), **config)
    assert "\n" not in str(raised.value)


def test_a_directory_is_one_engines_and_has_to_be_usable(tmp_path: Path) -> None:
    with served(cache_dir=str(tmp_path)), pytest.raises(StartError, match="used by another engine"):
        Served(cache_dir=str(tmp_path))
    (tmp_path / "file").touch()
    with pytest.raises(StartError, match="cannot be used"):
        Served(cache_dir=str(tmp_path / "file"))
