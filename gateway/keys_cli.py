"""`headwater keys`: make, show and revoke the keys in a key file. The key itself alone goes to stdout, what is said to stderr."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from .key_store import DEFAULT_NAME, NO_FILE, KeyStore, KeyStoreError, StoredKey
from .tenants import duration

_WIDE = 1000


def key_file(given: Path | None, store: Path) -> KeyStore:
    """The file that was named, or the one beside the models. Raises KeyStoreError if there is to be none."""
    if given == NO_FILE:
        raise KeyStoreError("--key-store none says that there is no key file: name one")
    return KeyStore(given or store / DEFAULT_NAME)


def create(keys: KeyStore, name: str, tenant: str | None, expires: str | None, *, as_json: bool) -> None:
    """Raises KeyStoreError, and ValueError for a lifetime that is none."""
    new = keys.create(name, tenant or name, lifetime=None if expires is None else duration(expires))
    if as_json:
        _print_json({"key": new.key, **_shown(new.stored)})
        return
    print(new.key)
    until = "" if new.stored.expires is None else f", until {_date(new.stored.expires)}"
    print(
        f"This is the only time the key is shown. It is {new.stored.id} of tenant {new.stored.tenant}{until}, "
        f"kept as a digest in {keys.path}.",
        file=sys.stderr,
    )


def show(keys: KeyStore, *, everything: bool, as_json: bool) -> None:
    """Those that may be used, or all that there ever were. Raises KeyStoreError."""
    now = time.time()
    chosen = [key for key in keys.read() if everything or key.status(now) == "active"]
    if as_json:
        _print_json([_shown(key) for key in chosen])
    elif not chosen:
        print(f"No {'' if everything else 'active '}keys in {keys.path}.", file=sys.stderr)
    else:
        width = None if sys.stdout.isatty() else _WIDE  # a pipe has no margin
        Console(highlight=False, width=width).print(_table(chosen, now))


def revoke(keys: KeyStore, which: str, *, as_json: bool) -> None:
    """Raises KeyStoreError."""
    key = keys.revoke(which)
    if as_json:
        _print_json(_shown(key))
    else:
        print(
            f"{key.id} ({key.name}) is revoked: a running server refuses it within two seconds.",
            file=sys.stderr,
        )


def _table(keys: list[StoredKey], now: float) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("id", "name", "tenant", "key", "created", "expires", "status"):
        table.add_column(column, overflow="fold")
    for key in keys:
        expires = "never" if key.expires is None else _date(key.expires)
        table.add_row(
            key.id, key.name, key.tenant, f"…{key.last}", _date(key.created), expires, key.status(now)
        )
    return table


def _shown(key: StoredKey) -> dict[str, object]:
    """All but the digest, of which nobody needs a copy."""
    fields = msgspec.to_builtins(key)
    del fields["digest"]
    return {**fields, "status": key.status(time.time())}


def _print_json(value: object) -> None:
    print(msgspec.json.encode(value).decode())


def _date(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d")
