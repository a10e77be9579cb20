"""Whose KV is whose: the namespaces of tenants, and their end.

A namespace is derived from a secret, the tenant, its *generation*, and what the request narrows it by. A flush counts the
generation up: from there on nothing finds what was cached before, whoever still writes it and wherever it lies, and it
costs the same for one entry as for a million. What can no longer be found is the engine's to clear away.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from cache.memory_store import MemoryStore
from cache.namespace import SECRET_BYTES, client_namespace, digest
from cache.store import Store

from ..tenants import Tenants

_KIND = "generation"
_SERVER = ""
"""Generations are the server's own records, not a tenant's: all are read at start, at once."""


class Namespaces:
    """All methods but `flush` return at once. `secret` and `store` live equally long: else a generation that is forgotten
    would bring back what it had ended."""

    def __init__(
        self, secret: bytes, store: Store, tenants: Tenants, generations: Mapping[str, int] | None = None
    ) -> None:
        self._secret = secret
        self._store = store
        self._tenants = tenants
        self._generations = dict(generations or {})

    @classmethod
    def of_this_process(cls, tenants: Tenants | None = None) -> Namespaces:
        """With a secret that nobody will ever know: for a cache that ends with the process."""
        return cls(secrets.token_bytes(SECRET_BYTES), MemoryStore(), tenants or Tenants())

    @classmethod
    async def load(cls, secret: bytes, store: Store, tenants: Tenants) -> Namespaces:
        """As it was when the store was last closed or its process killed. Raises StoreError."""
        records = await store.list(_KIND, _SERVER)
        return cls(secret, store, tenants, {record.name: int(record.value) for record in records})

    def of(self, tenant: str, *, salt: str | None = None, key: str | None = None) -> bytes:
        """The namespace of a request now. `salt` (`cache_salt`) narrows it; `key` (`prompt_cache_key`) does so where the
        tenant's keys are to be isolated. Neither ever reaches another tenant's."""
        isolated = self._tenants.policy(tenant).prompt_cache_key == "isolate"
        return client_namespace(
            self._secret,
            tenant=tenant,
            salt=salt,
            group=key if isolated else None,
            generation=self.generation(tenant),
        )

    def group(self, tenant: str, key: str | None) -> bytes:
        """What stands for a `prompt_cache_key` in `CachePolicy.group` and `FlushScope.group`: empty for none."""
        if key is None:
            return b""
        return digest(self._secret, {"domain": b"group", "tenant": tenant.encode(), "key": key.encode()})

    def generation(self, tenant: str) -> int:
        return self._generations.get(tenant, 0)

    async def flush(self, tenant: str) -> int:
        """End the tenant's generation; the new one. Requests from now on find nothing of it, even before this returns.

        Raises StoreError if it could not be written down: then a restart could find what is on disk again.
        """
        generation = self._generations[tenant] = self.generation(tenant) + 1
        await self._store.put(_KIND, _SERVER, tenant, str(generation).encode())
        return generation
