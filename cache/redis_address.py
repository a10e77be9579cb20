"""Where a Redis is: one server, the master that Sentinels name, or a Cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

PORT = 6379
SENTINEL_PORT = 26379

_SCHEMES = ("redis", "redis+sentinel", "redis+cluster")
_TLS_OPTIONS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """`str(address)` has no password in it. `hosts` are the servers, or the Sentinels; none for a Unix `path`."""

    shape: Literal["single", "sentinel", "cluster"]
    hosts: tuple[tuple[str, int], ...] = ()
    path: str | None = None
    service: str = ""
    db: int = 0
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    sentinel_password: str | None = field(default=None, repr=False)
    tls: bool = False
    tls_files: Mapping[str, str] = field(default_factory=dict)
    check_hostname: bool = True

    @classmethod
    def parse(cls, url: str, *, password: str | None = None) -> RedisAddress:
        """`redis://[user[:password]@]host[:port][/db]`, `unix:///path`, `redis+sentinel://host,host/master[/db]` or
        `redis+cluster://host,host`; with `rediss` for TLS. `password` wins over the one in `url`.

        Raises ValueError that says what is wrong, without the password.
        """
        parts = urlsplit(url)
        tls = parts.scheme.startswith("rediss")
        scheme = parts.scheme.replace("rediss", "redis", 1)
        if scheme not in (*_SCHEMES, "unix"):
            raise ValueError(
                "a Redis url begins with redis://, rediss://, unix://, redis+sentinel:// or redis+cluster://"
            )
        username, own_password, hosts = _authority(parts)
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        common = cls(
            shape="single",
            username=username,
            password=own_password if password is None else password,
            sentinel_password=options.pop("sentinel_password", None),
            db=_db(options.pop("db", "0")),
            tls=tls,
            tls_files={name: options.pop(name) for name in _TLS_OPTIONS if name in options},
            check_hostname=options.pop("ssl_check_hostname", "true").lower() != "false",
        )
        if options:
            raise ValueError(f"a Redis url has no option {min(options)!r}")
        return _with_place(common, scheme, parts, hosts)

    def __str__(self) -> str:
        user = f"{self.username}@" if self.username else ""
        if self.path is not None:
            return f"unix://{user}{self.path}"
        kind = "" if self.shape == "single" else f"+{self.shape}"
        hosts = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.hosts)
        tail = f"/{self.service}" if self.service else ""
        return f"redis{'s' if self.tls else ''}{kind}://{user}{hosts}{tail}{f'/{self.db}' if self.db else ''}"


def _with_place(common: RedisAddress, scheme: str, parts: SplitResult, hosts: str) -> RedisAddress:
    if scheme == "unix":
        if not parts.path:
            raise ValueError("a unix:// url names the path of a socket")
        return replace(common, path=unquote(parts.path))
    shape: Literal["single", "sentinel", "cluster"] = "single"
    port, path = PORT, parts.path.strip("/")
    if scheme == "redis+sentinel":
        shape, port = "sentinel", SENTINEL_PORT
        service, _, path = path.partition("/")
        if not service:
            raise ValueError(
                "a redis+sentinel:// url names the master behind the hosts: redis+sentinel://host/NAME"
            )
        common = replace(common, service=unquote(service))
    elif scheme == "redis+cluster":
        shape = "cluster"
    places = tuple(_place(host, port) for host in hosts.split(","))
    if shape == "single" and len(places) > 1:
        raise ValueError("several hosts are for redis+sentinel:// and redis+cluster://")
    db = _db(path) if path else common.db
    if shape == "cluster" and db:
        raise ValueError("a Redis Cluster has no databases")
    return replace(common, shape=shape, hosts=places, db=db)


def _authority(parts: SplitResult) -> tuple[str | None, str | None, str]:
    """User, password and what is left of the host part."""
    user, at, hosts = parts.netloc.rpartition("@")
    if not at:
        return None, None, hosts
    name, colon, secret = user.partition(":")
    return unquote(name) or None, unquote(secret) if colon else None, hosts


def _place(text: str, default: int) -> tuple[str, int]:
    parts = urlsplit(f"//{text}")
    try:
        port = parts.port
    except ValueError:
        raise ValueError(f"{text!r} has no port that there can be") from None
    if not parts.hostname:
        raise ValueError("a Redis url names a host")
    return parts.hostname, default if port is None else port


def _db(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"{text!r} is not the number of a database")
    return int(text)
