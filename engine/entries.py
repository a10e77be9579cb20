"""The entries that one request asked for: made as soon as their tokens stand in the tree, and the pins kept for them until then."""

from __future__ import annotations

from cache.accounts import PinsExhausted
from cache.cursor import Cursor
from cache.lease import EntrySpec
from cache.prefix_cache import PrefixCache

from .request import GenerationRequest


class PendingEntries:
    """Of one request. Room for its hard pins is reserved at once, as far as their pages are not pinned already: raises
    PinsExhausted, and has reserved nothing, if there is too little. To be dropped when the request ends."""

    __slots__ = ("_cache", "_reserved", "_specs", "_tenant")

    def __init__(self, cache: PrefixCache, request: GenerationRequest, root_key: bytes) -> None:
        specs = request.cache.entries
        self._cache = cache
        self._tenant = request.tenant
        self._specs = sorted(specs, key=lambda spec: spec.tokens)
        self._reserved: dict[str, int] = {}
        try:
            for spec in specs:
                if spec.lease.pin == "hard":
                    more = spec.tokens - cache.pinned_of(root_key, request.prompt, spec.tokens)
                    self._reserved[spec.entry_id] = cache.reserve_pins(request.tenant, more)
        except PinsExhausted:
            self.drop()
            raise

    def __bool__(self) -> bool:
        return bool(self._specs)

    @property
    def shortest(self) -> int:
        """How many tokens the next of them needs."""
        return self._specs[0].tokens

    @property
    def reserved(self) -> int:
        """Pages that are kept for pins still to come."""
        return sum(self._reserved.values())

    def put(self, cursor: Cursor, tokens: list[int], upto: int) -> list[str]:
        """Make those of the first `upto` tokens at most that a sequence has left in the tree, or others before it.

        One that cannot be made although the sequence has published all of it never will be: it was flushed, or what of it
        was pinned already is no more.
        """
        published = cursor.depth * self._cache.page_size
        made: list[str] = []
        waiting: list[EntrySpec] = []
        for spec in self._specs:
            if spec.tokens > upto:
                waiting.append(spec)
                continue
            try:
                stands = self._put(cursor, spec, tokens)
            except PinsExhausted:
                continue
            if stands:
                made.append(spec.entry_id)
            elif spec.tokens > published:
                waiting.append(spec)
        self._specs = waiting
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
        made = self._cache.put_entry(cursor, spec, tokens)
        if reserved and not made:
            self._reserved[spec.entry_id] = self._cache.reserve_pins(
                self._tenant, reserved * self._cache.page_size
            )
        return made
