"""What makes equal tokens different KV, as keyed digests.

Two requests share KV only if their digests are equal. A digest is HMAC-SHA256 (RFC 2104) over tagged fields, each framed
by its lengths, so that no two different sets of fields have the same bytes: ("a", "bc") is not ("ab", "c"), and a field
that is absent is not one that is empty.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

SECRET_BYTES = 32


def digest(secret: bytes, fields: Mapping[str, bytes | None]) -> bytes:
    """32 bytes that stand for `fields` (in any order). Nobody without `secret` can tell which."""
    return hmac.digest(secret, _frames(fields), "sha256")


def client_namespace(
    secret: bytes, *, tenant: str, salt: str | None = None, group: str | None = None, generation: int = 0
) -> bytes:
    """The namespace of a tenant's requests. A client's salt can only narrow it, and so does a group that is isolated. A new
    generation shares nothing with the one before."""
    return digest(
        secret,
        {
            "tenant": tenant.encode(),
            "salt": None if salt is None else salt.encode(),
            "group": None if group is None else group.encode(),
            "generation": str(generation).encode(),
        },
    )


def load_secret(directory: Path) -> bytes:
    """The 32 random bytes that namespaces are derived with, kept in `directory` so that files there can be found again.

    Made by whoever comes first, readable by the owner only. Raises OSError.
    """
    file = directory / "secret"
    try:
        return _read_secret(file)
    except FileNotFoundError:
        pass
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, made = tempfile.mkstemp(dir=directory, prefix=".secret-")  # mode 0600
    try:
        with os.fdopen(descriptor, "wb") as out:
            out.write(secrets.token_bytes(SECRET_BYTES))
            out.flush()
            os.fsync(out.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(
                made, file
            )  # unlike a rename this leaves the secret alone that somebody else has just made
    finally:
        Path(made).unlink()
    return _read_secret(file)


def _read_secret(file: Path) -> bytes:
    secret = file.read_bytes()
    if len(secret) != SECRET_BYTES:
        raise OSError(f"{file} holds {len(secret)} bytes instead of a secret of {SECRET_BYTES}")
    return secret


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
