"""The entries that one request asked for: made as soon as their tokens stand in the tree, and the pins kept for them until then."""

from __future__ import annotations

from cache.accounts import PinsExhausted
from cache.lease import EntrySpec
from cache.prefix_cache import Cursor, PrefixCache


class PendingEntries:
    """Of one request of `tenant`. Room for hard pins is reserved at once: raises PinsExhausted, and has reserved nothing, if
    there is too little. To be dropped when the request ends."""

    __slots__ = ("_cache", "_reserved", "_specs", "_tenant")

    def __init__(self, cache: PrefixCache, tenant: str, specs: tuple[EntrySpec, ...]) -> None:
        self._cache = cache
        self._tenant = tenant
        self._specs = sorted(specs, key=lambda spec: spec.tokens)
        self._reserved: dict[str, int] = {}
        try:
            for spec in specs:
                if spec.lease.pin == "hard":
                    more = spec.tokens - self._pinned(spec.entry_id)
                    self._reserved[spec.entry_id] = cache.reserve_pins(tenant, max(more, 0))
        except PinsExhausted:
            self.drop()
            raise

    def __bool__(self) -> bool:
        return bool(self._specs)

    @property
    def shortest(self) -> int:
        """How many tokens the next of them needs."""
        return self._specs[0].tokens

    def put(self, cursor: Cursor, tokens: list[int]) -> list[str]:
        """Make those whose tokens a sequence has left in the tree, and perhaps was not the first to leave there."""
        made: list[str] = []
        while self._specs and self._put(cursor, self._specs[0], tokens):
            made.append(self._specs.pop(0).entry_id)
        return made

    def drop(self) -> None:
        """Give back what is reserved for those that do not stand."""
        for pages in self._reserved.values():
            self._cache.release_pins(self._tenant, pages)
        self._reserved.clear()
        self._specs.clear()

    def _put(self, cursor: Cursor, spec: EntrySpec, tokens: list[int]) -> bool:
        reserved = self._reserved.pop(spec.entry_id, 0)
        self._cache.release_pins(self._tenant, reserved)
        try:
            made = self._cache.put_entry(cursor, spec, tokens)
        except PinsExhausted:  # an entry that was to be renewed has lost its own pins meanwhile
            return False
        if reserved and not made:
            self._reserved[spec.entry_id] = self._cache.reserve_pins(
                self._tenant, reserved * self._cache.page_size
            )
        return made

    def _pinned(self, entry_id: str) -> int:
        """Tokens that an entry which is renewed has pinned already."""
        known = self._cache.entry(entry_id)
        if known is None or known.tenant != self._tenant or known.lease.pin != "hard":
            return 0
        return known.tokens if known.status == "held" else 0
