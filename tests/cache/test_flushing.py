"""What a flush takes, what it leaves, and that nobody brings it back."""

from __future__ import annotations

import random
import time
from dataclasses import replace

import pytest
from msgspec import structs

from cache import prefix_cache
from cache.cursor import Cursor
from cache.flushing import Flushed
from cache.lease import EntrySpec, FlushScope, Lease, TenantLimits

from .desk import SIZE, Desk, text


def both(desk: Desk, scope: FlushScope) -> Flushed:
    """A dry run says what the flush then does, and does nothing."""
    before = desk.cache.survey()
    planned = desk.cache.flush(scope, dry_run=True)
    assert desk.cache.survey() == before
    done = desk.cache.flush(scope)
    assert done == planned
    desk.check()
    again = desk.cache.flush(scope, dry_run=True)
    assert again == replace(Flushed(), kept=again.kept), "something was left"
    return replace(done, nodes=[])


@pytest.fixture
def desk() -> Desk:
    """Two tenants, one of them with two namespaces."""
    desk = Desk(pages=32)
    desk.run(text(1, 2))
    desk.run(text(2, 1, more=2), salt=b"s")
    desk.run(text(3, 3), tenant="u")
    desk.lease("e", text(4, 1), tenant="u", ttl=60)
    return desk


@pytest.mark.parametrize(
    ("scope", "left", "report"),
    [
        (FlushScope(), [0, 0, 0, 0], Flushed(8, 30, 1)),
        (FlushScope(tenant="t"), [0, 0, 12, 4], Flushed(4, 14, 0)),
        (FlushScope(tenant="u"), [8, 6, 0, 0], Flushed(4, 16, 1)),
        (FlushScope(tenant="nobody"), [8, 6, 12, 4], Flushed()),
        (FlushScope(namespaces=(b"t/s",)), [8, 0, 12, 4], Flushed(2, 6)),
        (FlushScope(tenant="u", namespaces=(b"t/s",)), [8, 6, 12, 4], Flushed()),
        (FlushScope(adapter=b"other"), [8, 6, 12, 4], Flushed()),
        (FlushScope(adapter=b""), [0, 0, 0, 0], Flushed(8, 30, 1)),
        (FlushScope(tenant="u", entry_id="e"), [8, 6, 12, 0], Flushed(1, 4, 1)),
        (FlushScope(tenant="t", entry_id="e"), [8, 6, 12, 4], Flushed()),
    ],
)
def test_what_fits_every_field_goes(desk: Desk, scope: FlushScope, left: list[int], report: Flushed) -> None:
    assert both(desk, scope) == report
    assert left == [
        desk.found(text(1, 2)),
        desk.found(text(2, 1, more=2), salt=b"s"),
        desk.found(text(3, 3), "u"),
        desk.found(text(4), "u"),
    ]
    view = desk.cache.entry("e")
    assert view is not None
    assert (view.status, view.device) == (("held", 4) if left[3] else ("flushed", 0))


def test_what_was_flushed_is_told_apart_from_what_never_was(desk: Desk) -> None:
    desk.cache.flush(FlushScope(tenant="t"))
    desk.clock.now += 5
    assert desk.gone(text(1, 2)) == ("flushed", 5.0, False)
    assert desk.gone(text(9, 2)) is None
    desk.run(text(1))
    assert desk.gone(text(1, 2)) == ("flushed", 5.0, False), "the second page is still missing"
    desk.cache.reclaim()
    assert desk.gone(text(1, 2)) == ("flushed", 5.0, False)


def test_flushed_pages_are_room_at_once_and_go_first(desk: Desk) -> None:
    desk.run(text(10, 20), tenant="u")
    room = desk.cache.available
    desk.cache.flush(FlushScope(tenant="t"))
    assert desk.cache.available == room == 32
    evicted = desk.cache.evicted
    pages = desk.cache.allocate(8)
    assert pages is not None
    assert desk.cache.evicted == evicted
    assert desk.found(text(10, 20), "u") == 80
    desk.cache.check(pages)


def test_a_large_tree_is_flushed_at_once_and_reclaimed_when_room_is_needed() -> None:
    desk = Desk(pages=400)
    desk.run(text(1, 300))
    desk.run(text(2, 50), tenant="u")
    assert desk.cache.flush(FlushScope(tenant="t")).pages == 300
    assert desk.cache.pool.free < 300, "all of it was reclaimed at once"
    assert desk.found(text(1, 300)) == 0
    desk.check()
    desk.run(text(1, 2))
    desk.check()
    pages = desk.cache.allocate(desk.cache.pool.free + 100)
    assert pages is not None
    assert desk.found(text(2, 50), "u") == 200
    desk.cache.check(pages)
    desk.cache.flush()
    desk.cache.release(pages)
    desk.cache.reclaim()
    assert desk.cache.pool.free == 400
    desk.check()


def test_pinned_pages_go_when_they_are_flushed() -> None:
    desk = Desk(pages=200, others=TenantLimits(pins=0.9))
    desk.lease("p", text(1, 150), pin="hard")
    assert desk.cache.available == 50
    assert both(desk, FlushScope(tenant="t")).pages == 150
    assert desk.cache.available == 200
    assert desk.cache.accounts.of("t").pinned == 0
    desk.lease("p", text(1, 150), pin="hard")
    assert both(desk, FlushScope(entry_id="p")).pages == 150
    assert desk.cache.available == 200


def test_pages_in_use_are_freed_when_they_are_released(desk: Desk) -> None:
    job = desk.start(text(1, 2) + text(7))
    assert both(desk, FlushScope(tenant="t")).in_use == 2
    desk.cache.reclaim()
    desk.check()
    free = desk.cache.pool.free
    desk.publish(job)
    desk.end(job)
    assert desk.cache.pool.free == free + 3
    assert desk.found(text(1, 2)) == 0, "it brought back what was flushed"


@pytest.mark.parametrize(
    ("scope", "publishes"),
    [
        (FlushScope(), False),
        (FlushScope(tenant="t"), False),
        (FlushScope(tenant="u"), True),
        (FlushScope(group=b"g"), False),
        (FlushScope(group=b"h"), True),
        (FlushScope(tag="x"), False),
        (FlushScope(tag="y"), True),
        (FlushScope(entry_id="mine"), False),
        (FlushScope(idle_for=0.0), True),
    ],
)
def test_whoever_writes_what_is_flushed_publishes_nothing_more(
    desk: Desk, scope: FlushScope, publishes: bool
) -> None:
    spec = EntrySpec(entry_id="mine", tokens=8, lease=Lease(ttl=60, tag="x"))
    job = desk.start(
        text(8, 2), group=b"g", entries=(spec,)
    )  # it found nothing and has published nothing yet
    desk.cache.flush(scope)
    desk.publish(job)
    desk.end(job)
    assert desk.found(text(8, 2)) == (8 if publishes else 0)
    assert (desk.cache.entry("mine") is not None) == publishes
    assert desk.run(text(8, 2), group=b"g") == (7 if publishes else 0)
    assert desk.found(text(8, 2)) == 8, "whoever comes later writes as before"


def test_whoever_stands_on_flushed_pages_publishes_nothing_more() -> None:
    desk = Desk()
    desk.lease("e", text(1, 2), ttl=60)
    job = desk.start(text(1, 2) + text(2), group=b"h")
    assert both(desk, FlushScope(entry_id="e")).in_use == 2
    desk.publish(job)
    desk.end(job)
    assert desk.cache.survey().tokens == 0


def test_a_group_loses_what_nobody_else_has_used() -> None:
    desk = Desk(pages=32)
    desk.run(text(1, 2) + text(2), group=b"g")
    desk.run(text(1, 2) + text(3), group=b"h")
    desk.run(text(4, 2), group=b"g")
    desk.run([*text(4, 1), *text(4, 2)[4:6], 1, 1])  # no group; parts in the middle of the second page
    assert both(desk, FlushScope(group=b"g")) == Flushed(pages=2, tokens=8, kept=3)
    assert desk.found(text(1, 2) + text(2)) == 8
    assert desk.found(text(1, 2) + text(3)) == 12
    assert desk.found(text(4, 2)) == 6, "others hold the beginning of that page on a page of their own"


def test_a_tag_loses_what_nobody_else_leased() -> None:
    desk = Desk(pages=32)
    desk.lease("a", text(1), ttl=60, tag="x")
    desk.lease("b", text(1) + text(2), ttl=60, tag="x")
    desk.lease("c", text(1) + text(3), ttl=60, tag="y")
    desk.run(text(1) + text(2) + text(5))
    desk.run(text(6))
    assert both(desk, FlushScope(tag="x")) == Flushed(pages=2, tokens=8, entries=1, kept=1)
    assert [desk.found(text(1) + text(n)) for n in (2, 3)] == [4, 8]
    assert desk.found(text(6)) == 4
    view = desk.cache.entry("a")
    assert view is not None
    assert view.status == "held", "its page is kept, and so is its promise"


def test_an_entry_takes_what_goes_on_from_it_but_no_other_entry() -> None:
    desk = Desk(pages=32)
    desk.lease("e", text(1, 2), ttl=60)
    desk.run(text(1, 2) + text(2))
    desk.lease("f", text(1, 2) + text(3), ttl=60)
    desk.run(text(1) + text(4))
    assert both(desk, FlushScope(entry_id="e")) == Flushed(pages=1, tokens=4, kept=2)
    assert desk.found(text(1, 2) + text(2)) == 8
    assert desk.found(text(1, 2) + text(3)) == 12
    desk.cache.drop_entry("f")
    assert both(desk, FlushScope(entry_id="e")) == Flushed(pages=2, tokens=8, entries=1, kept=1)
    assert desk.found(text(1) + text(4)) == 8


def test_idle_pages_go_and_used_ones_stay() -> None:
    desk = Desk(pages=32)
    desk.run(text(1, 2))
    job = desk.start(text(2, 2))
    desk.publish(job)
    desk.clock.now += 100
    desk.run(text(1) + text(3))
    desk.clock.now += 10
    assert both(desk, FlushScope(idle_for=50.0)) == Flushed(pages=1, tokens=4)
    assert desk.found(text(1, 2)) == 4
    assert desk.found(text(2, 2)) == 8
    desk.end(job)


def test_flushed_pages_are_counted_by_cause(desk: Desk) -> None:
    desk.cache.flush(FlushScope(tenant="u"))
    desk.cache.flush(FlushScope(idle_for=0.0))
    desk.cache.reclaim()
    assert desk.cache.evictions == {"flushed": 8}
    assert desk.cache.accounts.of("u").evictions == {"flushed": 4}
    assert desk.saved == [], "nothing of it is to be saved"


def test_one_tenant_among_a_thousand_goes_in_time_that_does_not_depend_on_its_pages() -> None:
    desk = Desk(pages=6000)
    for number in range(1000):
        desk.cache.accounts.of(str(number))
        cursor = Cursor(b"%d" % number, tenant=str(number), namespace=b"%d" % number)
        pages = desk.cache.allocate(5)
        assert pages is not None
        desk.cache.publish(cursor, text(number, 5), pages, 20)
        desk.cache.put_entry(
            cursor, EntrySpec(entry_id=str(number), tokens=20, lease=Lease(ttl=60)), text(number, 5)
        )
        desk.cache.release(pages)
    others = desk.cache.survey().tokens - 20
    started = time.thread_time()
    assert desk.cache.flush(FlushScope(tenant="500")) == Flushed(5, 20, 1)
    assert time.thread_time() - started < 0.005
    assert desk.cache.survey().tokens == others
    assert desk.cache.entries.live == 999


def test_a_lease_that_is_put_again_after_a_flush_holds() -> None:
    desk = Desk()
    desk.lease("e", text(1, 2), ttl=60)
    desk.cache.flush()
    desk.lease("e", text(1, 2), ttl=60)
    view = desk.cache.entry("e")
    assert view is not None
    assert (view.status, view.device) == ("held", 2 * SIZE)
    assert structs.asdict(view.lease)["ttl"] == 60


@pytest.mark.parametrize("seed", range(40))
def test_others_may_use_the_cache_while_it_is_flushed_bit_by_bit(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What fits when it begins is not found when it is over, whatever is found, written and evicted meanwhile."""
    monkeypatch.setattr(prefix_cache, "AT_A_TIME", 1)
    draw = random.Random(seed)
    desk = Desk(pages=48)

    def somebody(group: bytes | None = None) -> None:
        tokens = [token for _ in range(draw.randrange(1, 5)) for token in [draw.randrange(2)] * SIZE]
        entries = ()
        if draw.random() < 0.4:
            lease = Lease(ttl=60, tag=draw.choice(("t", "u")))
            entries = (EntrySpec(entry_id=str(draw.randrange(9)), tokens=len(tokens), lease=lease),)
        desk.run([*tokens, draw.randrange(2)], group=group or draw.choice((b"g", b"h")), entries=entries)

    for _ in range(30):
        somebody()
    running = desk.start([0] * 10, group=b"g")
    scope = draw.choice((FlushScope(group=b"g"), FlushScope(tag="t"), FlushScope(entry_id="3", tenant="t")))
    fits = desk.cache.flush(scope, dry_run=True).nodes
    began = desk.clock.now
    desk.clock.now += 1
    steps = 0
    for _ in desk.cache.flush_in_parts(scope):
        steps += 1
        for _ in range(draw.randrange(3)):
            draw.choice((somebody, somebody, desk.squeeze))()
        desk.check()
    assert steps
    desk.publish(running)
    desk.end(running)
    assert all(node.page < 0 or node.used > began for node in fits), (
        "what nobody has used since is still found"
    )
    if scope.group is not None:
        assert desk.cache.flush(scope, dry_run=True).pages == 0


def test_a_flush_that_is_given_up_silences_nobody_after_it(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefix_cache, "AT_A_TIME", 1)
    parts = desk.cache.flush_in_parts(FlushScope(group=b""))
    next(parts)
    parts.close()
    desk.run(text(8, 2))
    assert desk.found(text(8, 2)) == 8
