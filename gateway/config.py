"""Everything an operator can set, in one place: YAML file < environment (`HEADWATER_…`) < flags.

Read once by `__main__`, frozen, and handed out in parts: nobody below sees the whole.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Limits(_Part):
    """Bounds on one request, checked before anything is queued, and on the queue. Sizes are bytes, times seconds."""

    max_body: int = Field(16 * 2**20, description="largest request body")
    max_messages: int = Field(4096, description="messages in one chat request")
    max_prompts: int = Field(32, description="prompts in one completions request")
    max_choices: int = Field(8, description="largest n")
    max_stops: int = Field(16, description="stop strings in one request")
    max_stop_length: int = Field(256, description="characters in one stop string")
    max_string: int = Field(
        512, description="characters in user, metadata values, cache_salt and other labels"
    )
    max_queued_requests: int = Field(256, description="requests waiting before new ones get 503")
    max_queued_tokens: int = Field(1_000_000, description="prompt tokens waiting before new requests get 503")
    max_tenant_queued: int = Field(128, description="requests one key may have waiting before it gets 429")
    header_timeout: float = Field(10.0, description="time for the headers of a new connection")
    body_timeout: float = Field(30.0, description="time for a whole request body")
    write_timeout: float = Field(
        30.0, description="time a stalled reader is waited for before its request is aborted"
    )
    request_timeout: float = Field(
        600.0, description="deadline of a request; X-Request-Timeout may shorten it"
    )
    max_connections: int = Field(2048, description="open connections")


class Http(_Part):
    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: tuple[str, ...] = Field(
        (), description="keys that may use the API; none is allowed on loopback only"
    )
    admin_key: str | None = Field(
        None, description="key for /admin; without one /admin answers loopback only"
    )
    cors_origins: tuple[str, ...] = Field((), description="origins that browsers may call from; '*' is any")
    drain_delay: float = Field(
        0.5, description="how long readiness says 503 before work is refused at shutdown"
    )
    drain_timeout: float = Field(30.0, description="how long running requests may finish at shutdown")
    keepalive_comment: float = Field(15.0, description="an SSE comment after this much silence")


class Served(_Part):
    """The names a model answers to and where its text side lies."""

    model_id: str
    aliases: tuple[str, ...] = ()
    model_dir: Path | None = None
    created: int = 0
    test_mode: bool = False
