"""A store in Redis, the same for every server that is given the same one.

    hw:{@TENANT}:record:KIND:NAME   an envelope with the value; ends by itself
    hw:{@TENANT}:names:KIND         the names, in order
    hw:{@TENANT}:ends:KIND          the names by when their record ends, in milliseconds

The tenant in braces puts all of its keys into one slot of a Cluster. A name whose record has ended is taken out of both
lists by the writers that come after, and the lists end with the last record that does.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from .redis_link import RedisLink, Script
from .store import ABSENT, Record, StoreError, conflict, new_version

LONGEST_NAME = 1024
"""Bytes of a record's name."""
PAGE = 100
"""Records that are read in one command."""

_MAGIC = b"HWR1"
_HEADER = struct.Struct("<4s16s32sH")
"""Magic, version, SHA-256 of key, version and value, bytes of the key. The key and the value follow."""

_TIDY = """
local now = redis.call('TIME')
now = now[1] * 1000 + math.floor(now[2] / 1000)
local over = redis.call('ZRANGE', KEYS[3], '-inf', '(' .. now, 'BYSCORE', 'LIMIT', 0, 100)
if #over > 0 then
  redis.call('ZREM', KEYS[2], unpack(over))
  redis.call('ZREM', KEYS[3], unpack(over))
end
local last = redis.call('ZRANGE', KEYS[3], 0, 0, 'REV', 'WITHSCORES')[2]
if last == 'inf' then
  redis.call('PERSIST', KEYS[2])
  redis.call('PERSIST', KEYS[3])
elseif last then
  last = string.format('%.0f', last)
  redis.call('PEXPIREAT', KEYS[2], last)
  redis.call('PEXPIREAT', KEYS[3], last)
end
"""
_EXPECT = """
if ARGV[2] ~= '*' then
  local held = redis.call('GETRANGE', KEYS[1], 4, 19)
  if held ~= ARGV[2] then return {0, held} end
end
"""
# What may be refused for want of memory comes first: a refusal changes nothing.
_PUT = Script(
    _EXPECT
    + """
if ARGV[4] == '' then
  redis.call('SET', KEYS[1], ARGV[3])
  redis.call('ZADD', KEYS[3], 'inf', ARGV[1])
else
  redis.call('SET', KEYS[1], ARGV[3], 'PX', ARGV[4])
  local time = redis.call('TIME')
  redis.call('ZADD', KEYS[3], time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[4], ARGV[1])
end
redis.call('ZADD', KEYS[2], 0, ARGV[1])
"""
    + _TIDY
    + "return {1}"
)
_DELETE = Script(
    _EXPECT
    + """
local deleted = redis.call('DEL', KEYS[1])
redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('ZREM', KEYS[3], ARGV[1])
"""
    + _TIDY
    + "return {1, deleted}"
)


class RedisStore:
    """Whatever is read was written under that very key, or is an error: its envelope says so."""

    def __init__(self, link: RedisLink) -> None:
        self.link = link

    async def get(self, kind: str, tenant: str, name: str) -> Record | None:
        key = _record_key(kind, tenant, name)
        return self._decode(key, name, await self.link.run("GET", key, about=key))

    async def put(
        self,
        kind: str,
        tenant: str,
        name: str,
        value: bytes,
        *,
        ttl: float | None = None,
        expected: str | None = None,
        version: str | None = None,
    ) -> Record:
        record = Record(name, value, version or new_version())
        key = _record_key(kind, tenant, name)
        milliseconds = "" if ttl is None else max(1, round(ttl * 1000))
        await self._change(_PUT, kind, tenant, name, expected, _encode(key, record), milliseconds)
        return record

    async def delete(self, kind: str, tenant: str, name: str, *, expected: str | None = None) -> bool:
        return bool((await self._change(_DELETE, kind, tenant, name, expected))[1])

    async def list(
        self,
        kind: str,
        tenant: str,
        *,
        after: str | None = None,
        limit: int | None = None,
        reverse: bool = False,
    ) -> list[Record]:
        """Not in one piece: what is written meanwhile may be in it or not."""
        found: list[Record] = []
        while limit is None or len(found) < limit:
            most = PAGE if limit is None else min(PAGE, limit - len(found))
            names = await self._names(kind, tenant, after, most, reverse=reverse)
            found += await self._read(kind, tenant, names)
            if len(names) < most:
                break
            after = names[-1]
        return found

    async def close(self) -> None:
        await self.link.close()

    async def _change(
        self,
        script: Script,
        kind: str,
        tenant: str,
        name: str,
        expected: str | None,
        *arguments: bytes | str | int,
    ) -> Any:
        """What the script answers."""
        key = _record_key(kind, tenant, name)
        keys = (key, *_index_keys(kind, tenant))
        version = "*" if expected is None else expected
        reply = await self.link.run_script(script, keys, name, version, *arguments, about=key)
        if reply[0] == 0:
            raise conflict(exists=reply[1] != ABSENT.encode())
        return reply

    async def _names(
        self, kind: str, tenant: str, after: str | None, most: int, *, reverse: bool
    ) -> Sequence[str]:
        key = _index_keys(kind, tenant)[0]
        edge = None if after is None else f"({after}"
        bounds = (edge or "+", "-", "BYLEX", "REV") if reverse else (edge or "-", "+", "BYLEX")
        names = await self.link.run("ZRANGE", key, *bounds, "LIMIT", 0, most, about=key)
        return [name.decode() for name in names]

    async def _read(self, kind: str, tenant: str, names: Sequence[str]) -> Sequence[Record]:
        if not names:
            return []
        keys = [_record_key(kind, tenant, name) for name in names]
        values = await self.link.run("MGET", *keys, about=_index_keys(kind, tenant)[0])
        records = map(self._decode, keys, names, values)
        return [record for record in records if record is not None]

    def _decode(self, key: str, name: str, content: bytes | None) -> Record | None:
        if content is None:
            return None
        if len(content) >= _HEADER.size:
            magic, version, checksum, length = _HEADER.unpack_from(content)
            begin = _HEADER.size + length
            owner, value = content[_HEADER.size : begin], content[begin:]
            whole = magic == _MAGIC and checksum == _checksum(owner, version, value)
            if whole and owner == key.encode():
                return Record(name, value, version.decode())
        raise self.link.damaged(key, "what is there is damaged or another's: delete it to do without")


def _encode(key: str, record: Record) -> bytes:
    owner, version = key.encode(), record.version.encode()
    checksum = _checksum(owner, version, record.value)
    return _HEADER.pack(_MAGIC, version, checksum, len(owner)) + owner + record.value


def _checksum(key: bytes, version: bytes, value: bytes) -> bytes:
    digest = hashlib.sha256(struct.pack("<H", len(key)) + key + version)
    digest.update(value)
    return digest.digest()


def _record_key(kind: str, tenant: str, name: str) -> str:
    if len(name.encode()) > LONGEST_NAME:
        raise StoreError(f"a name of {len(name)} characters is too long to be kept")
    return f"hw:{_tag(tenant)}:record:{quote(kind, safe='')}:{name}"


def _index_keys(kind: str, tenant: str) -> tuple[str, str]:
    tag, kind = _tag(tenant), quote(kind, safe="")
    return f"hw:{tag}:names:{kind}", f"hw:{tag}:ends:{kind}"


def _tag(tenant: str) -> str:
    """Quoted, so that nothing in it ends the tag; with a mark, since an empty tag is none."""
    return f"{{@{quote(tenant, safe='')}}}"
