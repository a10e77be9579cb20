"""What is remembered of each response for a while, so that it can be said later why its prompt was cached as far as it was.

In memory only, bounded in bytes and time, and each tenant's for itself: there is no way from one tenant to another's
records. Making one costs little, because nothing is worked out that nobody has asked for: a record holds what a prompt was
made of, packed, and `diagnosis` reads it.
"""

from __future__ import annotations

import sys
import time
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import orjson

from cache.lease import CachePolicy
from engine.request import PromptCached, RequestEnded, RequestStarted

from ..chat_template import Message, ToolPrompt
from ..frames import NO_FRAMES, Frames

HEAD = 64 * 4
"""Bytes of a prompt's token ids by which another is found that begins alike: 64 tokens."""

ALIKE = 6
"""So many of the latest records that have something in common with a prompt are compared with it."""

ENDING = 16
"""Characters that two texts do not end with by accident."""

OVERHEAD = 2_000
"""Bytes of a record besides what is counted."""


class Instance(NamedTuple):
    """Which life of an engine. Nothing on its device outlives it."""

    pid: int
    restarts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What a prompt was made of. `index` tells the prompts of one response apart. `text` is what the prompt spells; None: just
    what its ids decode to. `messages` None: it was not a chat. Contents may be in parts."""

    response_id: str
    index: int = 0
    text: str | None = None
    messages: Sequence[Message] | None = None
    tools: ToolPrompt | None = None
    variables: Mapping[str, object] = field(default_factory=dict)
    frames: Frames = NO_FRAMES


class Gists(NamedTuple):
    """What is quickly told of messages one by one: a hash of each content, which is good in this process only, and its
    last characters."""

    digests: tuple[int, ...]
    endings: tuple[str, ...]


@dataclass(slots=True, eq=False, kw_only=True)
class Record:
    """One prompt and what came of it. `messages` and `variables` are JSON, `gists` those of the
    messages; `ids` are the prompt's, four bytes each, and
    `answer` those of its first choice so far. `start` is None until it was admitted, `stored` until all of it was computed,
    `unseen`: it begins with a cache object that this life of the engine has not had. `ended` until its reader and the engine were done with it. Times are seconds: `created` of the wall's clock, the others monotonic.
    """

    response_id: str
    index: int
    request_id: str
    tenant: str
    created: float
    born: float
    model: str
    model_digest: str
    adapter: bytes
    salt: str | None
    key: str | None
    generation: int
    namespace: bytes
    instance: Instance
    policy: CachePolicy
    ids: bytes
    answer: array[int]
    text: str | None
    messages: bytes | None
    gists: Gists | None
    tools: ToolPrompt | None
    variables: bytes
    frames: Frames
    unseen: bool = False
    start: RequestStarted | None = None
    stored: PromptCached | None = None
    account: RequestEnded | None = None
    started: float | None = None
    ended: float | None = None
    counted: int = 0
    """Bytes it was last known to have."""

    @property
    def tokens(self) -> int:
        return len(self.ids) // 4

    @property
    def hit(self) -> int:
        return 0 if self.start is None else self.start.cached_tokens

    @property
    def whole(self) -> bytes:
        """Ids of the prompt and of the answer."""
        return self.ids + self.answer.tobytes()

    @property
    def known(self) -> int:
        """How many tokens of that were computed if all went well: the last of an answer never is, nor are those before it that
        a grammar left no choice about. With several choices, or computed anew, nobody can tell."""
        likely = self.tokens + max(len(self.answer) - 1, 0)
        account = self.account
        return likely if account is None else min(likely, account.cached + account.computed)

    @property
    def left(self) -> int:
        """How many of these it left in the cache, as far as its policy and its end say."""
        if not self.policy.write or self.start is None:
            return 0
        if self.policy.write_tokens is not None:
            return min(self.policy.write_tokens, self.tokens)
        if self.stored is not None or self.answer:
            return self.known
        return 0 if self.account is None else min(self.account.cached + self.account.written, self.tokens)

    @property
    def nbytes(self) -> int:
        text = 0 if self.text is None else sys.getsizeof(self.text)
        gists = 0 if self.gists is None else 100 * len(self.gists.digests)
        packed = (
            gists + len(self.ids) + len(self.messages or b"") + len(self.variables) + 4 * len(self.answer)
        )
        return text + packed + (0 if self.tools is None else len(self.tools.text)) + OVERHEAD


def pack(ids: Sequence[int]) -> bytes:
    return array("I", ids).tobytes()


def pack_messages(messages: Sequence[Message] | None) -> bytes | None:
    return None if messages is None else orjson.dumps(messages)


class Records:
    """All there are. On the event loop only; every call takes microseconds.

    Who has more than an equal part of what all may have together pays for more with the oldest of his own.
    """

    def __init__(self, *, most_bytes: int, ttl: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`most_bytes` 0 keeps none."""
        self._most_bytes = most_bytes
        self._ttl = ttl
        self.clock = clock
        self._tenants: dict[str, _Tenant] = {}
        self._order: deque[tuple[float, str]] = deque()  # when a record was made and whose; it may be gone
        self.nbytes = 0

    @property
    def on(self) -> bool:
        return self._most_bytes > 0

    def __len__(self) -> int:
        return sum(len(tenant.records) for tenant in self._tenants.values())

    def find(self, tenant: str, name: str, index: int = 0) -> Record | None:
        """By the id of its response, or of the HTTP request it answered. None for what is another's too."""
        self._expire()
        mine = self._tenants.get(tenant, _NOBODY)
        record = mine.records.get((name, index))
        if record is None:
            record = mine.records.get((mine.requests.get(name, ""), index))
        return record

    def keep(self, record: Record) -> None:
        self._expire()
        mine = self._tenants.setdefault(record.tenant, _Tenant())
        mine.add(record)
        self._order.append((record.born, record.tenant))
        self.recount(record)

    def recount(self, record: Record) -> None:
        """Its answer has grown."""
        mine = self._tenants.get(record.tenant)
        if mine is None or mine.records.get((record.response_id, record.index)) is not record:
            return
        more = record.nbytes - record.counted
        record.counted += more
        mine.nbytes += more
        self.nbytes += more
        while self.nbytes > self._most_bytes:
            if mine.nbytes * len(self._tenants) > self._most_bytes:
                self._drop_first(record.tenant)
            else:
                self._drop_first(self._order[0][1])

    def alike(self, record: Record) -> Iterator[Record]:
        """The tenant's older records that its prompt may have to do with: those of its `prompt_cache_key`, those that begin
        like it, or if there are none of these the latest. The latest of each first."""
        mine = self._tenants.get(record.tenant, _NOBODY)
        seen = {id(record)}
        begun = False
        for name in _groups(record):
            for other in reversed(mine.groups.get(name, ())):
                if id(other) not in seen and other.born <= record.born:
                    seen.add(id(other))
                    begun |= name is not record.key
                    yield other
        if not begun:
            yield from (o for o in reversed(mine.latest()) if id(o) not in seen and o.born <= record.born)

    def _expire(self) -> None:
        eldest = self.clock() - self._ttl
        while self._order and self._order[0][0] < eldest:
            self._drop_first(self._order[0][1])

    def _drop_first(self, name: str) -> None:
        tenant = self._tenants[name]
        self.nbytes -= tenant.drop_first()
        if not tenant.records:
            del self._tenants[name]
        # the oldest of all is the first of its tenant, so an entry whose record is gone comes before those that are there
        while self._order and self._gone(*self._order[0]):
            self._order.popleft()

    def _gone(self, born: float, name: str) -> bool:
        tenant = self._tenants.get(name)
        return tenant is None or next(iter(tenant.records.values())).born > born


class _Tenant:
    def __init__(self) -> None:
        self.records: OrderedDict[tuple[str, int], Record] = OrderedDict()
        self.requests: dict[str, str] = {}
        self.groups: dict[object, list[Record]] = {}
        self.nbytes = 0

    def add(self, record: Record) -> None:
        self.records[record.response_id, record.index] = record
        self.requests[record.request_id] = record.response_id
        for name in _groups(record):
            group = self.groups.setdefault(name, [])
            group.append(record)
            del group[:-ALIKE]

    def drop_first(self) -> int:
        """The bytes that are free now."""
        _, record = self.records.popitem(last=False)
        if self.requests.get(record.request_id) == record.response_id:
            del self.requests[record.request_id]
        for name in _groups(record):
            group = self.groups.get(name)
            if group is not None and record in group:
                group.remove(record)
                if not group:
                    del self.groups[name]
        self.nbytes -= record.counted
        return record.counted

    def latest(self) -> list[Record]:
        found: list[Record] = []
        for record in reversed(self.records.values()):
            found.append(record)
            if len(found) == ALIKE:
                break
        return found[::-1]


_NOBODY = _Tenant()


def _groups(record: Record) -> Iterator[object]:
    if record.key is not None:
        yield record.key
    yield record.ids[:HEAD]
