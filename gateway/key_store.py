"""The key file: API keys that come and go while the server runs, each known by its digest only.

A key is 256 random bits, so one SHA-256 is all its digest needs: slow hashes make guessing costly, and nobody guesses one
of 2**256. A fast one lets every request be checked without a cache of keys in clear text.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from engine.errors import StartError

from .tenants import ADMIN_TENANT, LOCAL_TENANT, NAME

DEFAULT_NAME = "keys.json"
"""In the model store's directory."""
NO_FILE = Path("none")
"""As a path: use no key file, also if there is one beside the models."""

KEY_BYTES = 32
PREFIX = "hw-"
"""What a key begins with, so that people and scanners for leaked secrets know one when they see it."""
SHOWN = 4
"""Last characters of a key that are kept, for recognition: 24 of its 256 bits."""
LONGEST = 100 * 366 * 86_400
"""Seconds that a key may be asked to last: what is longer is for good."""
LOCK_PATIENCE = 10.0
"""Seconds that a writer waits for another."""

KeyStatus = Literal["active", "expired", "revoked"]


class KeyStoreError(StartError):
    """`str(error)` is one line."""


class StoredKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A key as it is kept. Times are whole seconds since the epoch; `digest` is SHA-256 in hexadecimal."""

    id: str
    name: str
    tenant: str
    digest: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    last: str
    created: int
    expires: int | None = None
    revoked: int | None = None

    def status(self, now: float) -> KeyStatus:
        if self.revoked is not None:
            return "revoked"
        return "active" if self.expires is None or now < self.expires else "expired"


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    version: Literal[1] = 1
    keys: tuple[StoredKey, ...] = ()


@dataclass(frozen=True, slots=True)
class NewKey:
    """`key` is to be shown now: nobody can find it out later."""

    key: str
    stored: StoredKey


class KeyStore:
    """Keys in one JSON file of mode 0600, replaced as a whole under a lock. All methods block; all raise KeyStoreError."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        self.path = path
        self._clock = clock

    def read(self) -> tuple[StoredKey, ...]:
        """All keys, in the order they were made; none if there is no file yet."""
        try:
            with self.path.open("rb") as file:
                mode = os.fstat(file.fileno()).st_mode & 0o777
                content = file.read()
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise KeyStoreError(f"cannot read the keys in {self.path}: {error.strerror}") from None
        if mode & 0o022:
            raise KeyStoreError(
                f"{self.path} has mode {mode:03o}: whoever may write it can let himself in (chmod 600)"
            )
        try:
            keys = msgspec.json.decode(content, type=_File).keys
        except msgspec.DecodeError as error:
            raise KeyStoreError(f"{self.path} is no key file: {error}") from None
        return keys

    def create(self, name: str, tenant: str, *, lifetime: float | None = None) -> NewKey:
        """A new key of a tenant, for `lifetime` seconds or for good."""
        _check_names(name, tenant)
        if lifetime is not None and lifetime > LONGEST:
            raise KeyStoreError("a key lasts a hundred years at most: leave its end away")
        now = int(self._clock())
        key = PREFIX + secrets.token_urlsafe(KEY_BYTES)
        stored = StoredKey(
            id=f"key_{secrets.token_hex(6)}",
            name=name,
            tenant=tenant,
            digest=key_digest(key).hex(),
            last=key[-SHOWN:],
            created=now,
            expires=None if lifetime is None else now + round(lifetime),
        )
        with self._locked():
            keys = self.read()
            if any(other.name == name and other.status(now) == "active" for other in keys):
                raise KeyStoreError(f"there is an active key called {name!r}: revoke it or take another name")
            self._write((*keys, stored))
        return NewKey(key, stored)

    def revoke(self, which: str) -> StoredKey:
        """End a key, by its id or its name. A second time changes nothing."""
        now = int(self._clock())
        with self._locked():
            keys = self.read()
            chosen = _choose(keys, which, now)
            if chosen.revoked is not None:
                return chosen
            revoked = msgspec.structs.replace(chosen, revoked=now)
            self._write(tuple(revoked if key is chosen else key for key in keys))
        return revoked

    def _write(self, keys: tuple[StoredKey, ...]) -> None:
        content = msgspec.json.format(msgspec.json.encode(_File(keys=keys)), indent=2) + b"\n"
        path = self.path.resolve()  # a link stays one
        descriptor, made = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")  # mode 0600
        try:
            with os.fdopen(descriptor, "wb") as out:
                out.write(content)
                out.flush()
                os.fsync(out.fileno())
                with contextlib.suppress(FileNotFoundError, PermissionError):
                    before = path.stat()  # root leaves a server's file to the server's user
                    os.fchown(out.fileno(), before.st_uid, before.st_gid)
            Path(made).replace(path)
            _sync(path.parent)
        except OSError as error:
            Path(made).unlink(missing_ok=True)
            raise KeyStoreError(f"cannot write the keys in {self.path}: {error.strerror}") from None

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """One writer at a time, whichever process it is in. The lock is a file of its own: the keys' is replaced."""
        path = self.path.resolve()  # whichever link somebody came by
        file = path.with_name(f".{path.name}.lock")
        try:
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise KeyStoreError(f"cannot write the keys in {self.path}: {error.strerror}") from None
        try:
            self._wait_for(lock)
            yield
        finally:
            os.close(lock)

    def _wait_for(self, lock: int) -> None:
        deadline = time.monotonic() + LOCK_PATIENCE
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise KeyStoreError(f"{self.path} is being changed by another process") from None
                time.sleep(0.02)
            else:
                return


def key_digest(key: str) -> bytes:
    """What a key is known by. A header may carry bytes that are no text; no key does."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _sync(folder: Path) -> None:
    """A name is on disk only when its directory is."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _check_names(name: str, tenant: str) -> None:
    for what, value in (("name", name), ("tenant", tenant)):
        if not NAME.fullmatch(value):
            raise KeyStoreError(
                f"{value!r} cannot be a {what}: letters, digits and ._@-, up to 64, beginning with one of the first two"
            )
    if tenant in {ADMIN_TENANT, LOCAL_TENANT}:
        raise KeyStoreError(f"the tenant {tenant!r} is the server's own: choose another name")


def _choose(keys: tuple[StoredKey, ...], which: str, now: float) -> StoredKey:
    """The key of this id, else of this name: the active one, or the last that was."""
    for key in keys:
        if key.id == which:
            return key
    named = [key for key in keys if key.name == which]
    if not named:
        raise KeyStoreError(f"there is no key with the id or name {which!r}")
    return next((key for key in named if key.status(now) == "active"), named[-1])
