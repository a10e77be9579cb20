"""redis-py's client for an address, without its patience: by default it retries ten times and waits five seconds."""

from __future__ import annotations

from typing import Any

from redis.asyncio import ConnectionPool, Redis, RedisCluster, SSLConnection, UnixDomainSocketConnection
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff
from redis.maint_notifications import MaintNotificationsConfig

from .redis_address import RedisAddress

HEALTH_CHECK = 15
"""Seconds after which a connection that was idle is tried before it is used."""

Client = Redis | RedisCluster


class RedisClient:
    """A client and what has to be closed with it. `timeout` is for each of connecting, sending and receiving."""

    def __init__(self, address: RedisAddress, *, timeout: float, connections: int) -> None:
        self._sentinel: Sentinel | None = None
        settings = _settings(address, timeout)
        if address.shape == "cluster":
            self.client: Client = _cluster(address, settings, connections)
        elif address.shape == "sentinel":
            self._sentinel = _sentinel(address, settings)
            self.client = self._sentinel.master_for(
                address.service, db=address.db, max_connections=connections, **_tls(address, ssl=True)
            )
        else:
            self.client = _single(address, settings, connections)

    async def execute(self, *command: bytes | str | int | float) -> Any:
        """Raises what redis-py raises."""
        return await self.client.execute_command(*command)

    async def look_again(self) -> None:
        """Close what is not in use: behind the same name may be another server by now."""
        if isinstance(self.client, Redis):
            await self.client.connection_pool.disconnect(inuse_connections=False)

    async def close(self) -> None:
        await self.client.aclose()
        if isinstance(self.client, Redis):
            await self.client.connection_pool.disconnect()
        if self._sentinel is not None:
            await self._sentinel.aclose()


def _settings(address: RedisAddress, timeout: float) -> dict[str, Any]:
    return {
        "username": address.username,
        "password": address.password,
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        "retry": Retry(NoBackoff(), 0),
        "health_check_interval": HEALTH_CHECK,
        "protocol": 3,
        "legacy_responses": False,
        "decode_responses": False,
        "driver_info": None,  # each would cost a new connection another round trip
        "maint_notifications_config": MaintNotificationsConfig(enabled=False),
    }


def _single(address: RedisAddress, settings: dict[str, Any], connections: int) -> Redis:
    pool = {**settings, "db": address.db, "max_connections": connections}
    if address.path is not None:
        del pool["socket_connect_timeout"]
        return Redis(
            connection_pool=ConnectionPool(
                connection_class=UnixDomainSocketConnection, path=address.path, **pool
            )
        )
    host, port = address.hosts[0]
    if address.tls:
        pool = {"connection_class": SSLConnection, **_tls(address), **pool}
    return Redis(connection_pool=ConnectionPool(host=host, port=port, **pool))


def _sentinel(address: RedisAddress, settings: dict[str, Any]) -> Sentinel:
    patience = {name: settings[name] for name in ("socket_timeout", "socket_connect_timeout", "retry")}
    own = {**patience, "password": address.sentinel_password, **_tls(address, ssl=True)}
    return Sentinel(address.hosts, sentinel_kwargs=own, **settings)  # type: ignore[no-untyped-call]


def _cluster(address: RedisAddress, settings: dict[str, Any], connections: int) -> RedisCluster:
    nodes = [ClusterNode(host, port) for host, port in address.hosts]
    return RedisCluster(
        startup_nodes=nodes, max_connections=connections, **_tls(address, ssl=True), **settings
    )


def _tls(address: RedisAddress, **switch: bool) -> dict[str, Any]:
    if not address.tls:
        return {}
    return {**switch, **address.tls_files, "ssl_check_hostname": address.check_hostname}
