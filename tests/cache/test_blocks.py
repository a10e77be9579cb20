"""The page pool against a model of it: a plain count of holders."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cache.blocks import OutOfPages, PagePool

PAGES = 5


class PoolMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(PAGES)
        self.holders: Counter[int] = Counter()
        self.denied = 0

    @rule()
    def allocate(self) -> None:
        if self.denied or len(self.holders) == PAGES:
            self.denied = max(0, self.denied - 1)
            with pytest.raises(OutOfPages):
                self.pool.allocate()
            return
        page = self.pool.allocate()
        assert page not in self.holders, "a held page was given out"
        self.holders[page] = 1

    @rule(count=st.integers(0, 2))
    def deny(self, count: int) -> None:
        self.pool.deny(count)
        self.denied = count

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def retain(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from(sorted(self.holders)))
        self.holders[page] += 1
        assert self.pool.retain(page) == self.holders[page]

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from(sorted(self.holders)))
        self.holders[page] -= 1
        assert self.pool.release(page) == self.holders[page]
        self.holders += Counter()  # forget those at zero

    @invariant()
    def agrees(self) -> None:
        self.pool.check(self.holders)
        assert self.pool.free == PAGES - len(self.holders)


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


def test_what_is_free_can_be_neither_released_nor_retained() -> None:
    pool = PagePool(1)
    with pytest.raises(AssertionError):
        pool.release(0)
    pool = PagePool(1)
    with pytest.raises(AssertionError):
        pool.retain(0)


@pytest.mark.parametrize("holders", [{}, {0: 2}, {0: 1, 1: 1}])
def test_check_notices_a_wrong_count(holders: dict[int, int]) -> None:
    pool = PagePool(3)
    assert pool.allocate() == 0
    with pytest.raises(AssertionError):
        pool.check(holders)


def test_a_pool_has_pages() -> None:
    with pytest.raises(ValueError, match="at least one page"):
        PagePool(0)
