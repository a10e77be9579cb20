"""What the scheduler relies on: nothing wrong is found, nothing held is evicted, nothing is lost."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cache.cursor import Cursor
from cache.prefix_cache import PrefixCache
from tests.fakes import ManualClock

SIZE = 4


def compute(
    cache: PrefixCache, tokens: list[int], namespace: bytes | None = b"n"
) -> tuple[Cursor, list[int]]:
    """What a sequence does that finds nothing: take pages, compute, publish."""
    cursor = Cursor(namespace)
    pages = cache.allocate(-(-len(tokens) // cache.page_size))
    assert pages is not None
    cache.publish(cursor, tokens, pages, len(tokens))
    return cursor, pages


def remember(cache: PrefixCache, tokens: list[int], namespace: bytes | None = b"n") -> list[int]:
    """Compute and end. The pages it had."""
    cursor, pages = compute(cache, tokens, namespace)
    cache.publish_tail(cursor, tokens, pages, len(tokens))
    cache.release(pages)
    return pages


def test_whole_pages_and_a_tail_are_found_up_to_the_last_token() -> None:
    cache = PrefixCache(8, SIZE, clock=ManualClock())
    pages = remember(cache, [*range(10)])
    cursor = Cursor(b"n")
    match = cache.match(cursor, [*range(10)])
    assert match.pages == pages[:2]
    assert (match.tail, match.tail_tokens) == (pages[2], 1)
    assert cursor.depth == 2
    assert cache.peek(b"n", [*range(10)]) == 9
    assert cache.peek(b"n", [*range(8)]) == 7, "a whole number of pages is not to be reused whole"
    assert cache.peek(b"n", [*range(6), 99, 99]) == 6
    cache.check([*match.pages, pages[2]])
    cache.release([*match.pages, pages[2]])
    cache.check([])


def test_other_namespaces_and_none_find_nothing() -> None:
    cache = PrefixCache(8, SIZE, clock=ManualClock())
    remember(cache, [*range(10)])
    remember(cache, [*range(10)], None)
    assert cache.peek(b"m", [*range(10)]) == 0
    assert cache.peek(None, [*range(10)]) == 0
    assert cache.match(Cursor(None), [*range(10)]).pages == []
    assert cache.tree_pages == 3
    assert cache.survey().namespaces == 1


def test_disabled_it_only_hands_out_pages() -> None:
    cache = PrefixCache(4, SIZE, clock=ManualClock(), enabled=False)
    remember(cache, [*range(10)])
    assert cache.match(Cursor(b"n"), [*range(10)]).pages == []
    assert cache.peek(b"n", [*range(10)]) == 0
    assert (cache.pool.free, cache.tree_pages) == (4, 0)
    assert cache.allocate(5) is None
    cache.check([])


def test_chunks_are_found_as_they_are_published() -> None:
    cache = PrefixCache(8, SIZE, clock=ManualClock())
    tokens = [*range(12)]
    cursor = Cursor(b"n")
    pages = cache.allocate(3)
    assert pages is not None
    found = []
    for computed in (3, 4, 9, 12):
        cache.publish(cursor, tokens, pages, computed)
        found.append(cache.peek(b"n", [*tokens, 99]))
    assert found == [0, 4, 8, 12]
    cache.check(pages)


def test_a_fuller_page_takes_the_place_of_a_tail() -> None:
    cache = PrefixCache(8, SIZE, clock=ManualClock())
    remember(cache, [1, 2])
    remember(cache, [1, 2, 3])
    assert cache.tree_pages == 1
    remember(cache, [1, 2, 3, 4])
    assert cache.tree_pages == 1
    remember(cache, [1, 2])
    assert cache.tree_pages == 1
    assert (len(cache.survey().pages), cache.survey().tokens) == (1, 4)
    assert cache.pool.free == 7
    cache.check([])


def test_a_tail_that_is_being_copied_survives_its_replacement() -> None:
    cache = PrefixCache(8, SIZE, clock=ManualClock())
    (tail,) = remember(cache, [1, 2])
    match = cache.match(Cursor(b"n"), [1, 2, 9])
    assert match.tail == tail
    remember(cache, [1, 2, 3, 4])
    assert cache.pool.holders(tail) == 1, "the page was reused under the copy"
    cache.check([tail])
    cache.release([tail])
    assert cache.pool.holders(tail) == 0


def test_what_is_idle_goes_leaf_by_leaf() -> None:
    cache = PrefixCache(6, SIZE, clock=ManualClock())
    remember(cache, [*range(8)])
    remember(cache, [*range(20, 28)])
    used = cache.match(Cursor(b"n"), [*range(9)])
    cache.release(used.pages)  # the first is the more recent one now
    held: list[int] = []
    left = []
    for _ in range(6):
        held += cache.allocate(1) or []
        left.append((cache.peek(b"n", [*range(9)]), cache.peek(b"n", [*range(20, 29)])))
        cache.check(held)
    assert [first + second for first, second in left] == [16, 16, 12, 8, 4, 0]
    assert cache.evicted == 4
    assert cache.survey().namespaces == 0
    assert cache.allocate(1) is None


def test_what_a_sequence_holds_is_not_evicted() -> None:
    cache = PrefixCache(3, SIZE, clock=ManualClock())
    remember(cache, [*range(8)])
    match = cache.match(Cursor(b"n"), [*range(5)])
    assert cache.allocate(3) is None
    assert cache.available == 2
    taken = cache.allocate(2)
    assert taken is not None
    assert match.pages[0] not in taken
    cache.evict(cache.idle)
    assert cache.peek(b"n", [*range(5)]) == 4


def test_too_much_asked_evicts_nothing() -> None:
    cache = PrefixCache(3, SIZE, clock=ManualClock())
    remember(cache, [*range(8)])
    assert cache.allocate(4) is None
    assert cache.tree_pages == 2


def test_a_denied_allocation_gives_back_what_it_took() -> None:
    cache = PrefixCache(3, SIZE, clock=ManualClock())
    cache.pool.deny(1)
    assert cache.allocate(2) is None
    cache.check([])
    assert cache.allocate(2) is not None


def test_a_cursor_on_a_page_that_was_evicted_publishes_from_the_root() -> None:
    """Two compute the same; the tree keeps the first one's pages; those go while the second is still running."""
    cache = PrefixCache(8, SIZE, clock=ManualClock())
    tokens = [*range(8)]
    _, first = compute(cache, tokens)
    cursor, second = compute(cache, tokens)
    assert cursor.node is not None
    assert cursor.node.page == first[1]
    cache.release(first)
    cache.evict(cache.idle)
    assert cache.tree_pages == 0
    more = cache.allocate(1)
    assert more is not None
    pages = second + more
    cache.publish(cursor, [*range(12)], pages, 12)
    assert cache.peek(b"n", [*range(13)]) == 12
    cache.check(pages)


def test_a_page_that_nobody_holds_is_no_leaf_once_something_is_published_below_it() -> None:
    cache = PrefixCache(8, SIZE, clock=ManualClock())
    tokens = [*range(4)]
    _, first = compute(cache, tokens)
    cursor, second = compute(cache, tokens)
    cache.release(first)  # the tree's page, and a leaf: it could go
    more = cache.allocate(1)
    assert more is not None
    cache.publish(cursor, [*range(8)], second + more, 8)
    cache.check(second + more)
    assert cache.evict(1) == 0
    assert cache.peek(b"n", [*range(9)]) == 8


def test_a_page_above_a_held_one_waits_for_it() -> None:
    cache = PrefixCache(8, SIZE, clock=ManualClock())
    tokens = [*range(8)]
    _, first = compute(cache, tokens[:4])
    _, second = compute(cache, tokens)
    cache.release(first)
    cache.evict(cache.idle)
    assert cache.tree_pages == 2, "the parent of a held page is gone"
    cache.release(second)
    cache.evict(cache.idle)
    assert cache.tree_pages == 0
    cache.check([])


def test_the_eviction_order_does_not_grow_with_use() -> None:
    cache = PrefixCache(8, SIZE, clock=ManualClock())
    remember(cache, [*range(8)])
    for _ in range(2000):
        cache.release(cache.match(Cursor(b"n"), [*range(9)]).pages)
    assert sum(1 for _ in cache._pages.evictor) <= 1
    cache.check([])


def test_a_page_holds_tokens() -> None:
    with pytest.raises(ValueError, match="at least one token"):
        PrefixCache(1, 0, clock=ManualClock())


# ---- against a model -------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class Running:
    cursor: Cursor
    tokens: list[int]
    pages: list[int]
    computed: int


class CacheMachine(RuleBasedStateMachine):
    """`content[page]` is what a model would have written there: for each position its whole prefix and namespace."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = PrefixCache(10, 3, clock=ManualClock())
        self.content: dict[int, list[tuple[bytes, tuple[int, ...]]]] = {}
        self.running: list[Running] = []

    @rule(
        namespace=st.sampled_from((b"x", b"y")),
        tokens=st.lists(st.integers(0, 1), min_size=1, max_size=12),
    )
    def start(self, namespace: bytes, tokens: list[int]) -> None:
        cursor = Cursor(namespace)
        peeked = self.cache.peek(namespace, tokens)
        match = self.cache.match(cursor, tokens)
        found = match.tokens(3)
        assert found == peeked < len(tokens)
        pages = match.pages if match.tail is None else [*match.pages, match.tail]
        for position in range(found):
            assert self.content[pages[position // 3]][position % 3] == (
                namespace,
                tuple(tokens[: position + 1]),
            )
        fresh = self.cache.allocate(-(-len(tokens) // 3) - len(match.pages))
        if fresh is None:
            self.cache.release(pages)
            return
        if match.tail is not None:
            self.content[fresh[0]] = self.content[match.tail][: match.tail_tokens]
            self.cache.release([match.tail])
        self.running.append(Running(cursor, tokens, match.pages + fresh, found))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), count=st.integers(1, 5))
    def step(self, data: st.DataObject, count: int) -> None:
        sequence = data.draw(st.sampled_from(self.running))
        for position in range(sequence.computed, min(sequence.computed + count, len(sequence.tokens))):
            page = sequence.pages[position // 3]
            if position % 3 == 0:
                self.content[page] = []
            namespace = sequence.cursor.root_key
            assert namespace is not None
            self.content[page].append((namespace, tuple(sequence.tokens[: position + 1])))
            sequence.computed += 1
        self.cache.publish(sequence.cursor, sequence.tokens, sequence.pages, sequence.computed)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), keep=st.booleans())
    def end(self, data: st.DataObject, keep: bool) -> None:
        sequence = data.draw(st.sampled_from(self.running))
        self.running.remove(sequence)
        if keep:
            self.cache.publish_tail(sequence.cursor, sequence.tokens, sequence.pages, sequence.computed)
        self.cache.release(sequence.pages)

    @rule()
    def flush(self) -> None:
        self.cache.evict(self.cache.idle)

    @invariant()
    def sound(self) -> None:
        self.cache.check(page for sequence in self.running for page in sequence.pages)

    def teardown(self) -> None:
        for sequence in self.running:
            self.cache.release(sequence.pages)
        self.cache.evict(self.cache.idle)
        assert self.cache.pool.free == 10


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
