"""What makes equal tokens different KV, as keyed digests.

Two requests share KV only if their digests are equal. A digest is HMAC-SHA256 (RFC 2104) over tagged fields, each framed
by its lengths, so that no two different sets of fields have the same bytes: ("a", "bc") is not ("ab", "c"), and a field
that is absent is not one that is empty.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass


def digest(secret: bytes, fields: Mapping[str, bytes | None]) -> bytes:
    """32 bytes that stand for `fields` (in any order). Nobody without `secret` can tell which."""
    return hmac.digest(secret, _frames(fields), "sha256")


def client_namespace(secret: bytes, *, tenant: str, salt: str | None = None) -> bytes:
    """The namespace of a tenant's requests. A client's salt can only narrow it."""
    return digest(secret, {"tenant": tenant.encode(), "salt": None if salt is None else salt.encode()})


@dataclass(frozen=True, slots=True, kw_only=True)
class RootKeys:
    """An engine's part: what of the model decides the bytes of a page. Call it for the root of a request's tree."""

    secret: bytes
    model_digest: str
    dtype: str
    page_size: int
    layout: str = "kv"

    def __call__(self, namespace: bytes, adapter: bytes) -> bytes:
        """`adapter` is a content digest, empty for the base model."""
        return digest(
            self.secret,
            {
                "namespace": namespace,
                "adapter": adapter,
                "model": self.model_digest.encode(),
                "dtype": self.dtype.encode(),
                "page_size": str(self.page_size).encode(),
                "layout": self.layout.encode(),
            },
        )


def _frames(fields: Mapping[str, bytes | None]) -> bytes:
    out = bytearray()
    for tag, value in sorted(fields.items()):
        name = tag.encode()
        out += len(name).to_bytes(4, "big") + name
        out += b"\0" if value is None else b"\1" + len(value).to_bytes(8, "big") + value
    return bytes(out)
