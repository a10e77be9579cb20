"""Whose KV is whose: the namespaces of tenants, and their end.

A namespace is derived from a secret, the tenant, its *generation*, and what the request narrows it by. A flush counts the
generation up: from there on nothing finds what was cached before, whoever still writes it and wherever it lies, and it
costs the same for one entry as for a million. What can no longer be found is the engine's to clear away.
"""

from __future__ import annotations

import secrets
from collections.abc import Set

from cache.memory_store import MemoryStore
from cache.namespace import SECRET_BYTES, client_namespace, digest

from ..tenants import Tenants
from .generations import Generations, LocalGenerations


class Namespaces:
    """All methods but `flush` return at once. `secret` and `generations` live equally long: else a generation that is
    forgotten would bring back what it had ended."""

    def __init__(self, secret: bytes, generations: Generations, tenants: Tenants) -> None:
        self._secret = secret
        self._tenants = tenants
        self.generations = generations

    @classmethod
    def of_this_process(
        cls, tenants: Tenants | None = None, generations: Generations | None = None
    ) -> Namespaces:
        """With a secret that nobody will ever know: for a cache that ends with the process."""
        generations = generations or LocalGenerations(MemoryStore())
        return cls(secrets.token_bytes(SECRET_BYTES), generations, tenants or Tenants())

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

    def tools(self, tenant: str, names: Set[str]) -> int:
        """What stands for a set of a tenant's tools in `Lease.kind`: 64 bits, never 0."""
        fields = {f"tool {place}": name.encode() for place, name in enumerate(sorted(names))}
        kind = digest(self._secret, {"domain": b"tools", "tenant": tenant.encode(), **fields})
        return int.from_bytes(kind[:8], "big") or 1

    def generation(self, tenant: str) -> int:
        return self.generations.of(tenant)

    async def flush(self, tenant: str) -> bool:
        """End the tenant's generation: requests from now on find nothing of it, even before this returns. Whether that is
        written down: if not, it will be when the store is back.

        Raises StoreError if it could not be written down and never will: then a restart could find what is on disk again.
        """
        return await self.generations.end(tenant)
