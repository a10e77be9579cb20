"""Everything an operator can set, in one place and under one name each.

A field here is a key of the YAML file, an environment variable (`HEADWATER_MAX_BODY`) and a flag (`--max-body`), in
rising order of precedence; `options` derives the three from this file. The flag of a field that holds several values is
singular and may be repeated. Frozen, and handed out in parts: nobody below `serve` sees the whole.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ByteSize, ConfigDict, Field, field_validator, model_validator

from cache.redis_address import RedisAddress

_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]{1,5})?")
"""RFC 6454, section 6.2: compared character by character, so any other spelling would match no page."""


def is_key(text: str) -> bool:
    """Whether a client can send it: printable ASCII without blanks."""
    return text.isascii() and text.isprintable() and bool(text) and " " not in text


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Limits(_Part):
    """Bounds on one request, checked before anything is queued, and on the queue. Sizes are bytes, times seconds."""

    max_body: int = Field(16 * 2**20, ge=1, description="largest request body")
    max_messages: int = Field(4096, ge=1, description="messages in one chat request")
    max_prompts: int = Field(32, ge=1, description="prompts in one completions request")
    max_choices: int = Field(8, ge=1, description="largest n")
    max_stops: int = Field(16, ge=1, description="stop strings in one request")
    max_stop_length: int = Field(256, ge=1, description="characters in one stop string")
    max_string: int = Field(
        512, ge=1, description="characters in user, metadata values, cache_salt and other labels"
    )
    max_queued_requests: int = Field(256, ge=1, description="requests waiting before new ones get 503")
    max_queued_tokens: int = Field(
        1_000_000, ge=1, description="prompt tokens waiting before new requests get 503"
    )
    max_tenant_queued: int = Field(
        128, ge=1, description="requests one tenant may have waiting before it gets 429"
    )
    max_caches: int = Field(1000, ge=1, description="cache objects one tenant may have")
    explain_bytes: ByteSize = Field(
        ByteSize(64 * 2**20), ge=0, description="memory for what is remembered of responses; 0: nothing"
    )
    splice_bytes: ByteSize = Field(
        ByteSize(0),
        ge=0,
        description="memory for token ids of answers, with which stateless chats go on; 0: they are tokenised anew",
    )
    explain_ttl: float = Field(7200.0, gt=0, description="how long a response can be explained, in seconds")
    max_import: ByteSize = Field(ByteSize(8 * 2**30), ge=1, description="largest file of a cache to import")
    header_timeout: float = Field(10.0, gt=0, description="time for the headers of a new connection")
    body_timeout: float = Field(30.0, gt=0, description="time for a whole request body")
    write_timeout: float = Field(
        30.0, gt=0, description="time a stalled reader is waited for before its request is aborted"
    )
    request_timeout: float = Field(
        600.0, gt=0, description="deadline of a request; X-Request-Timeout may shorten it"
    )
    max_connections: int = Field(2048, ge=1, description="open connections")


class Http(_Part):
    """Where the server listens, who may call it, and how it stops. Times are seconds."""

    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(8000, ge=0, le=65535, description="port to listen on; 0 picks a free one")
    api_keys: tuple[str, ...] = Field(
        (), description="key that may use the API (repeatable); without any: loopback only"
    )
    api_key_file: Path | None = Field(None, description="file with one API key a line; # starts a comment")
    key_store: Path | None = Field(
        None,
        description="file of the keys that `headwater keys` makes; default: keys.json in --store, if it is there; none: no file",
    )
    admin_key: str | None = Field(
        None, description="key for /admin; without any key /admin answers loopback only"
    )
    admin_key_file: Path | None = Field(None, description="file with the admin key alone")
    cors_origins: tuple[str, ...] = Field(
        (), description="origin that browsers may call from (repeatable); '*' is any"
    )
    drain_delay: float = Field(
        0.5, ge=0, description="how long readiness says 503 before work is refused at shutdown"
    )
    drain_timeout: float = Field(30.0, ge=0, description="how long running requests may finish at shutdown")
    keepalive_comment: float = Field(15.0, gt=0, description="an SSE comment after this much silence")

    @field_validator("api_keys")
    @classmethod
    def _usable(cls, keys: tuple[str, ...]) -> tuple[str, ...]:
        for key in keys:
            if not is_key(key):
                raise ValueError("an API key is printable ASCII without blanks")
        return keys

    @field_validator("cors_origins")
    @classmethod
    def _as_browsers_send_them(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        for origin in origins:
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise ValueError("an origin is '*' or scheme://host[:port], in lower case and without a path")
        return origins


class ModelOptions(_Part):
    """Which model, and the names it answers to."""

    model_id: str | None = Field(None, description="name the model answers to; default: its own")
    extra_names: tuple[str, ...] = Field((), description="further name it answers to (repeatable)")
    tool_format: str = Field(
        "auto", description="how the model writes calls of tools; auto: as its chat template does"
    )
    reasoning_format: str = Field(
        "auto", description="marks around the model's thoughts, or none; auto: those of its chat template"
    )
    store: Path = Field(Path("~/.cache/headwater"), description="where pulled and imported models lie")
    offline: bool = Field(False, description="never reach for the network; use what is in the store")

    @field_validator("model_id", "extra_names")
    @classmethod
    def _named(cls, names: str | tuple[str, ...] | None) -> str | tuple[str, ...] | None:
        for name in (names,) if isinstance(names, str) else names or ():
            if not name.strip():
                raise ValueError("the name of a model cannot be empty")
        return names


class EngineOptions(_Part):
    """How the engine runs. What is left out is chosen to fit the machine and printed at start."""

    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="where to compute")
    dtype: Literal["auto", "float32", "bfloat16"] = Field("auto", description="type of weights and KV")
    threads: int | None = Field(
        None, ge=1, description="CPU threads of the engine; default: the cores there are"
    )
    kv_bytes: ByteSize | None = Field(
        None, description="memory for KV pages, such as 2GiB; default: from what is free"
    )
    pages: int | None = Field(None, ge=2, description="number of KV pages; overrides --kv-bytes")
    page_size: int = Field(16, ge=1, le=256, description="positions in one KV page")
    max_model_len: int | None = Field(
        None, ge=2, description="longest prompt plus answer; default: the model's own"
    )
    max_running: int = Field(64, ge=1, le=1024, description="sequences computed together in one step")
    max_step_tokens: int = Field(
        512, ge=1, le=65536, description="token budget of one step (chunked prefill)"
    )
    prefix_cache: bool = Field(True, description="share the KV of equal prefixes")
    deterministic: bool = Field(
        False,
        description="answers whose tokens depend neither on what else runs nor on what is cached; slower",
    )
    forced_tokens: bool = Field(
        True, description="append what a grammar leaves no choice about instead of sampling it"
    )
    end_runaways: bool = Field(
        True,
        description="under a schema, end a string that only repeats itself and a number of endless digits",
    )
    native_kernels: bool = Field(True, description="use the C kernels on a CPU where a compiler is found")
    test_mode: bool = Field(False, description="allow failpoints; never for production")
    failpoints: tuple[str, ...] = Field(
        (), description="named fault to arm at start (repeatable); needs --test-mode"
    )
    hash_step_delay: float = Field(0.0, ge=0, description="hash model: seconds slept in each step")
    hash_token_delay: float = Field(
        0.0, ge=0, description="hash model: seconds slept for each computed token"
    )

    @model_validator(mode="after")
    def _consistent(self) -> EngineOptions:
        if self.failpoints and not self.test_mode:
            raise ValueError("failpoints need --test-mode")
        return self


class CacheOptions(_Part):
    """The prompt cache below the device, whose it is, and where its use is written down."""

    host_cache: ByteSize | None = Field(
        None,
        description="memory for cached pages that the device has no room for, such as 4GiB; default: none",
    )
    cache_dir: Path | None = Field(
        None,
        description="directory for cached pages and cache objects, which then survive a restart; default: none",
    )
    disk_cache: ByteSize | None = Field(
        None, description="most bytes of cached pages in --cache-dir; default: half of what is free there"
    )
    tenants: Path | None = Field(
        None, description="YAML file of what each tenant is allowed and promised of the cache"
    )
    ledger: Path | None = Field(
        None, description="file that gets a JSON line for each request when it has ended; default: none"
    )
    ledger_max_bytes: ByteSize = Field(
        ByteSize(64 * 2**20), ge=4096, description="size at which the ledger goes on in a new file"
    )
    ledger_files: int = Field(
        8, ge=1, le=1000, description="files of the ledger that are kept, the current one included"
    )

    @model_validator(mode="after")
    def _consistent(self) -> CacheOptions:
        if self.disk_cache is not None and self.cache_dir is None:
            raise ValueError("disk_cache needs --cache-dir")
        return self


class StoreOptions(_Part):
    """Where sessions, cache objects and flush generations are kept, and for how long. Times are seconds."""

    redis: str | None = Field(
        None,
        description="Redis that keeps them, shared by all servers that are given it: redis://, rediss://, unix://, "
        "redis+sentinel://host,host/master, redis+cluster://host,host; default: --cache-dir, else memory",
    )
    redis_password_file: Path | None = Field(None, description="file with the password of Redis")
    session_ttl: float = Field(
        86400.0,
        gt=0,
        le=30 * 86400,
        description="how long responses and conversations are kept; 30 days at most",
    )
    session_bytes: ByteSize = Field(
        ByteSize(64 * 2**20),
        ge=2**20,
        description="memory for sessions: all of them without Redis or --cache-dir; with Redis, for when that is away",
    )

    @field_validator("redis")
    @classmethod
    def _url(cls, url: str | None) -> str | None:
        if url is not None:
            RedisAddress.parse(url)
        return url

    @model_validator(mode="after")
    def _consistent(self) -> StoreOptions:
        if self.redis_password_file is not None and self.redis is None:
            raise ValueError("redis_password_file needs --redis")
        return self


class Served(_Part):
    """The names a model answers to and where its text side lies. `created` is in seconds since the epoch."""

    model_id: str
    aliases: tuple[str, ...] = ()
    model_dir: Path | None = None
    created: int = 0
    test_mode: bool = False
