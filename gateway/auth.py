"""Who is calling: API keys, tenants, and what each route asks for.

Keys are kept and looked up as SHA-256 digests; the key itself is forgotten at start. Without API keys and without a key
file the server answers loopback only, and every caller is the one local tenant.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .errors import ApiError
from .key_store import key_digest
from .key_watch import KeyWatch
from .tenants import ADMIN_TENANT, LOCAL_TENANT

MAX_KEY_LENGTH = 512


class Access(enum.Enum):
    """What a route asks of its caller. A route nobody gave an access asks for a key."""

    PUBLIC = "public"
    KEY = "key"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Tenant:
    """The owner of a key. `id` is safe to log and to count by: it says nothing about the key. `key` is the id that the key
    has in the key file, empty for others."""

    id: str
    admin: bool = False
    key: str = ""


class Keyring:
    """Checks the key of a request against the access its route asks for."""

    def __init__(
        self, api_keys: Iterable[str], admin_key: str | None, stored: KeyWatch | None = None
    ) -> None:
        self._tenants = {key_digest(key): Tenant(_tenant_id(key)) for key in api_keys}
        self._admin = None if admin_key is None else key_digest(admin_key)
        self._stored = stored

    @property
    def open(self) -> bool:
        """No API key was set: anyone who can connect may use the API. A key file closes the server even while there is no
        key in it: revoking the last one lets nobody in."""
        return not self._tenants and self._stored is None

    def authorise(self, access: Access, headers: Mapping[str, str], peer: str | None) -> Tenant:
        """The caller's tenant. Raises ApiError 401 (no or wrong key) or 403 (a key that may not do this)."""
        if access is Access.PUBLIC:
            return Tenant(LOCAL_TENANT)
        tenant = self._find(presented_key(headers))
        if access is Access.ADMIN:
            return self._admit_admin(tenant, peer)
        if tenant is not None:
            return tenant
        if self.open:
            return Tenant(LOCAL_TENANT)
        raise _unauthorised(presented_key(headers) is not None)

    def _admit_admin(self, tenant: Tenant | None, peer: str | None) -> Tenant:
        if tenant is not None and tenant.admin:
            return tenant
        if self._admin is None and self.open and is_loopback(peer):
            return Tenant(ADMIN_TENANT, admin=True)
        if tenant is None and not (self.open and self._admin is None):
            raise _unauthorised(given=False)
        raise ApiError(403, "This needs the admin key.", code="admin_key_required")

    def _find(self, key: str | None) -> Tenant | None:
        if key is None or len(key) > MAX_KEY_LENGTH:
            return None
        given = key_digest(key)
        if self._admin is not None and hmac.compare_digest(given, self._admin):
            return Tenant(ADMIN_TENANT, admin=True)
        # A lookup by digest: how long it takes tells nothing about the keys themselves.
        return self._tenants.get(given) or self._find_stored(given)

    def _find_stored(self, given: bytes) -> Tenant | None:
        found = None if self._stored is None else self._stored.find(given)
        return None if found is None else Tenant(found.tenant, key=found.id)


def presented_key(headers: Mapping[str, str]) -> str | None:
    """In OpenAI's way, or in Anthropic's."""
    if "Authorization" not in headers:
        return headers.get("x-api-key", "").strip() or None
    scheme, _, key = headers.get("Authorization", "").partition(" ")
    return key.strip() or None if scheme.lower() == "bearer" else None


def is_loopback(host: str | None) -> bool:
    """Whether an address (or the name `localhost`) can only be reached from this machine."""
    if host is None:
        return False
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def _tenant_id(key: str) -> str:
    return hashlib.sha256(b"headwater/tenant-id/1" + key.encode()).hexdigest()[:16]


def _unauthorised(given: bool) -> ApiError:
    message = "Incorrect API key provided." if given else "You didn't provide a valid API key (Bearer auth)."
    return ApiError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})
