"""Who holds which page: ids, reference counts and a free list. No tensor, no token, no policy."""

from __future__ import annotations

from collections.abc import Mapping


class OutOfPages(Exception):
    """No page is free. The caller evicts, preempts or waits."""


class PagePool:
    """Accounting of `total` pages, every operation O(1).

    A page's reference count is the number of its holders: each sequence that has it in its page table, each sequence
    that still has to copy from it, and the prefix tree, count one each. A page without a holder is free.
    """

    __slots__ = ("_denied", "_free", "_refs", "total")

    def __init__(self, total: int) -> None:
        if total < 1:
            raise ValueError(f"a pool needs at least one page, not {total}")
        self.total = total
        self._refs = [0] * total
        self._free = list(range(total - 1, -1, -1))  # a stack: what was freed last is used first
        self._denied = 0

    @property
    def free(self) -> int:
        return len(self._free)

    def holders(self, page: int) -> int:
        return self._refs[page]

    def allocate(self) -> int:
        """A free page with one holder. Raises OutOfPages."""
        if self._denied:
            self._denied -= 1
            raise OutOfPages("allocation denied by a failpoint")
        if not self._free:
            raise OutOfPages(f"all {self.total} pages are held")
        page = self._free.pop()
        self._refs[page] = 1
        return page

    def retain(self, page: int) -> int:
        """One more holder of a page that has one. Returns how many there are now."""
        count = self._refs[page] + 1
        assert count > 1, f"page {page} is free and cannot be retained"
        self._refs[page] = count
        return count

    def release(self, page: int) -> int:
        """One holder less. Returns how many are left; at zero the page is free."""
        count = self._refs[page] - 1
        assert count >= 0, f"page {page} is released but free"
        self._refs[page] = count
        if not count:
            self._free.append(page)
        return count

    def deny(self, allocations: int) -> None:
        """Let the next `allocations` calls of `allocate` fail as if nothing were free. For failpoints and tests."""
        self._denied = allocations

    def check(self, holders: Mapping[int, int]) -> None:
        """Assert that `holders` (page to number of holders, recomputed by the caller) is exactly what is counted."""
        free = set(self._free)
        assert len(free) == len(self._free), "a page is free twice"
        for page, count in enumerate(self._refs):
            expected = holders.get(page, 0)
            assert count == expected, f"page {page} counts {count} holders and has {expected}"
        held = {page for page, count in enumerate(self._refs) if count}
        assert not held & free, "a page is free and held"
        assert len(held) + len(free) == self.total, "a page is neither free nor held"
