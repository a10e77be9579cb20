"""The requests that are served: each a group of sequences, paid for by a tenant, due at some time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from cache.cursor import Cursor
from cache.prefix_cache import PrefixCache

from .deadlines import Deadlines
from .entries import PendingEntries
from .group import Group, Member, Tenant
from .request import GenerationRequest


class Groups:
    """Those that have not ended, by id. `max_length` is that of the longest sequence, in tokens."""

    def __init__(self, cache: PrefixCache, max_length: int) -> None:
        self.max_length = max_length
        self._cache = cache
        self._by_id: dict[str, Group] = {}
        self._tenants: dict[str, Tenant] = {}
        self._deadlines = Deadlines()
        self._next_uid = 0

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Group]:
        return iter(self._by_id.values())

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._by_id

    def find(self, request_id: str) -> Group | None:
        return self._by_id.get(request_id)

    def members(self) -> Iterator[Member]:
        for group in self._by_id.values():
            yield from group.members

    # ---- coming and going --------------------------------------------------------------------------------------------

    def refusal(self, request: GenerationRequest) -> str | None:
        """Why a request can never run, if so."""
        length = len(request.prompt)
        if request.request_id in self._by_id:
            return "a request with this id is being served"
        if not length:
            return "the prompt is empty"
        if request.n < 1:
            return f"n is {request.n} and has to be at least 1"
        if request.sampling.max_tokens < 0:
            return f"max_tokens is {request.sampling.max_tokens} and cannot be negative"
        if length + min(request.sampling.max_tokens, 1) > self.max_length:
            return f"the prompt of {length} tokens is too long: prompt and answer share {self.max_length}"
        return None

    def open(
        self, request: GenerationRequest, root_key: bytes | None, entries: PendingEntries | None, now: float
    ) -> Group:
        """A request that is not refused becomes a group of sequences."""
        tenant = self._tenants.get(request.tenant)
        if tenant is None:
            # Whoever comes new, or back, starts level with the least served: no credit for time away.
            served = min((other.served for other in self._tenants.values()), default=0)
            tenant = self._tenants[request.tenant] = Tenant(request.tenant, served)
        tenant.groups += 1
        group = Group(request, tenant, root_key, now, entries)
        group.members.extend(self._new_member(group, index) for index in range(request.n))
        self._by_id[request.request_id] = group
        if request.deadline is not None:
            self._deadlines.add(group, group.arrival + request.deadline)
        return group

    def _new_member(self, group: Group, index: int) -> Member:
        request = group.request
        length = len(request.prompt)
        wants_prompt = index == 0 and request.sampling.prompt_logprobs is not None
        cursor = Cursor(
            group.root_key,
            tenant=request.tenant,
            namespace=request.namespace,
            adapter=request.adapter,
            policy=request.cache,
            counts=index == 0,
        )
        self._cache.begin(cursor)  # from here on a flush stops what it would write
        self._next_uid += 1
        return Member(
            uid=self._next_uid,
            request=request,
            index=index,
            tokens=list(request.prompt),
            prompt_len=length,
            arrival=group.arrival,
            group=group,
            cursor=cursor,
            limit=min(length + request.sampling.max_tokens, self.max_length),
            prompt_logprobs=[None] if wants_prompt else None,
        )

    def leave(self, member: Member) -> None:
        """A sequence has ended, and with the last of them its request."""
        group = member.group
        group.members.remove(member)
        if group.members:
            return
        del self._by_id[group.request.request_id]
        group.tenant.groups -= 1
        if not group.tenant.groups:
            del self._tenants[group.tenant.name]

    # ---- deadlines ---------------------------------------------------------------------------------------------------

    @property
    def next_deadline(self) -> float | None:
        """When the next request may be overdue."""
        return self._deadlines.next

    def pop_overdue(self, now: float) -> list[Group]:
        """Requests that should have ended by `now`. Each is told once."""
        return self._deadlines.pop_overdue(now) if self._deadlines else []

    # ---- truth -------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        tenants = Counter(group.tenant.name for group in self)
        assert tenants == {name: tenant.groups for name, tenant in self._tenants.items()}, "a tenant's count"
        assert all(group.members for group in self), "an ended request is remembered"
