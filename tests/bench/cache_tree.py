"""What a tree with 100,000 leased entries costs: `python -m tests.bench.cache_tree [ENTRIES]`.

Fills a cache with prompts of 2,000 tokens of 1,000 tenants, each prompt with its own lease and those of one conversation
sharing their beginning, and prints the time that a match with all its lease renewals takes, that of giving its pages back,
that of the flush of one tenant, and the memory of a page and of an entry. No model, no tensors.
"""

from __future__ import annotations

import gc
import random
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable

from cache.cursor import Cursor
from cache.lease import CachePolicy, EntrySpec, FlushScope, Lease
from cache.prefix_cache import PrefixCache

PAGE_SIZE = 16
PROMPT = 2000
OWN = 64  # tokens of a prompt that no other has
SHARED = PROMPT - OWN
TENANTS = 1000
LOOKS = 2000


def main() -> None:
    entries = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    print(f"memory: {memory(2_000):.0f} bytes a page, its tokens and leases included")
    draw = random.Random(1)
    cache, prompts = fill(entries, draw)
    gc.collect()
    gc.freeze()
    print(f"{entries} entries of {TENANTS} tenants, {cache.tree_pages} pages in the tree")
    assert cache.entries.live == entries
    draw.shuffle(prompts)
    matches, releases = [], []
    for tenant, prompt in prompts:
        cursor = cursor_of(tenant)
        started = time.thread_time()
        match = cache.match(cursor, prompt)
        matched = time.thread_time()
        cache.release(match.pages if match.tail is None else [*match.pages, match.tail])
        ended = time.thread_time()
        assert match.tokens(PAGE_SIZE) == PROMPT - 1
        matches.append(matched - started)
        releases.append(ended - matched)
    report("match + renewal", matches)
    report("release", releases)
    report("publish, leases", [timed(leave, cache, 1, fresh(draw), f"n{i}") for i in range(200)])
    scope = FlushScope(tenant="7")
    per_tenant = entries // TENANTS
    mine = per_tenant * (OWN // PAGE_SIZE) + SHARED // PAGE_SIZE
    assert cache.flush(scope, dry_run=True).pages == mine
    report("flush a tenant", [timed(cache.flush, FlushScope(tenant=str(i))) for i in range(7, 107)])
    tag = FlushScope(tenant="200", tag="t")
    print(f"flush by tag:    {timed(cache.flush, tag) * 1e3:.2f} ms for one tenant's {per_tenant} entries")
    group = FlushScope(group=b"g")
    print(f"flush by group:  {timed(cache.flush, group) * 1e3:.1f} ms for everybody's")
    started = time.thread_time()
    freed = cache.reclaim()
    print(f"reclaim:         {(time.thread_time() - started) / freed * 1e6:.2f} us a page")


def fill(entries: int, draw: random.Random) -> tuple[PrefixCache, list[tuple[int, list[int]]]]:
    """A cache with so many entries, and a sample of (tenant, prompt) of them."""
    pages = TENANTS * (SHARED // PAGE_SIZE) + entries * (OWN // PAGE_SIZE) + 1024
    cache = PrefixCache(pages, PAGE_SIZE, clock=time.monotonic)
    beginnings = [[draw.randrange(150_000) for _ in range(SHARED)] for _ in range(TENANTS)]
    prompts = []
    for i in range(entries):
        tenant = i % TENANTS
        prompt = beginnings[tenant] + [draw.randrange(150_000) for _ in range(OWN)]
        if i % (entries // LOOKS or 1) == 0:
            prompts.append((tenant, prompt))
        leave(cache, tenant, prompt, f"e{i}")
    return cache, prompts


def memory(entries: int) -> float:
    """Bytes a page."""
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    cache, prompts = fill(entries, random.Random(2))
    prompts.clear()
    gc.collect()
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return used / cache.tree_pages


def cursor_of(tenant: int) -> Cursor:
    return Cursor(b"root%d" % tenant, tenant=str(tenant), policy=CachePolicy(group=b"g"))


def fresh(draw: random.Random) -> list[int]:
    return [draw.randrange(150_000) for _ in range(OWN)]


def leave(cache: PrefixCache, tenant: int, prompt: list[int], entry: str) -> None:
    """What a request does that ends at once: match, compute, publish, lease, end."""
    cursor = cursor_of(tenant)
    match = cache.match(cursor, prompt)
    if match.tail is not None:
        cache.release([match.tail])
    more = cache.allocate(-(-len(prompt) // PAGE_SIZE) - len(match.pages), str(tenant))
    assert more is not None
    pages = match.pages + more
    cache.publish(cursor, prompt, pages, len(prompt))
    assert cache.put_entry(
        cursor, EntrySpec(entry_id=entry, tokens=len(prompt), lease=Lease(ttl=1800, tag="t")), prompt
    )
    cache.publish_tail(cursor, prompt, pages, len(prompt))
    cache.release(pages)


def timed(call: Callable[..., object], *arguments: object) -> float:
    started = time.thread_time()
    call(*arguments)
    return time.thread_time() - started


def report(what: str, seconds: list[float]) -> None:
    seconds.sort()
    tail = seconds[int(len(seconds) * 0.99)]
    print(f"{what + ':':16} {statistics.median(seconds) * 1e6:.0f} us, p99 {tail * 1e6:.0f} us")


if __name__ == "__main__":
    main()
