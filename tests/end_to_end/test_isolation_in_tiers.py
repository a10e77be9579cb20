"""What sets tenants apart at the device holds in every tier, and after a restart: the owner hits there, nobody else does."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .conftest import Serve
from .server import Server, wait_for
from .traffic import words

SMALL = (
    "--hash-token-delay",
    "0.0005",
    "--pages",
    "80",
    "--max-model-len",
    "640",
    "--api-key",
    "sk-a",
    "--api-key",
    "sk-b",
    "--admin-key",
    "sk-root",
)
OPENING = 16

Texts = Callable[[], str]


@pytest.fixture
def text() -> Texts:
    source = random.Random(17)
    return lambda: words(source, 400)


def found(server: Server, key: str, text: str) -> dict[str, int]:
    """Tokens by the tier they were found in. What is asked for is leased, so it is worth keeping."""
    body = {
        "model": "hash",
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 1,
        "cache": {"ttl": "1h"},
    }
    reply = server.post("/v1/chat/completions", body, key=key)
    assert reply.status == 200, reply
    answer: dict[str, Any] = reply.json()
    tiers: dict[str, int] = answer["x_cache"]["hit_tokens"]
    assert sum(tiers.values()) == answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return tiers


def crowd_out(server: Server, text: Texts) -> None:
    """Fill the device with what others ask and have leased as well."""
    for _ in range(6):
        found(server, "sk-root", text())


def leave(server: Server) -> None:
    """As told once, with the time it takes to put on disk what is worth it."""
    server.terminate()
    assert server.wait() == 0


def owner_only(server: Server, text: str, tier: str) -> None:
    other = found(server, "sk-b", text)
    assert sum(other.values()) <= OPENING, other
    own = found(server, "sk-a", text)
    assert own[tier] > OPENING, own


def test_pages_in_memory_are_their_owners(serve: Serve, text: Texts) -> None:
    server = serve(*SMALL, "--host-cache", "1MiB")
    asked = text()
    found(server, "sk-a", asked)
    crowd_out(server, text)
    owner_only(server, asked, "host")


def test_pages_on_disk_are_their_owners_also_after_a_restart(
    serve: Serve, tmp_path: Path, text: Texts
) -> None:
    flags = (*SMALL, "--cache-dir", str(tmp_path / "cache"))
    server = serve(*flags)
    asked = text()
    found(server, "sk-a", asked)
    crowd_out(server, text)
    leave(server)
    server = serve(*flags)
    owner_only(server, asked, "disk")


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_restart_brings_nothing_back_that_was_flushed(
    serve: Serve, tmp_path: Path, text: Texts, end: str
) -> None:
    """Also when there was no time to clear away what is on disk."""
    flags = (*SMALL, "--cache-dir", str(tmp_path / "cache"))
    server = serve(*flags)
    flushed, kept = text(), text()
    found(server, "sk-a", flushed)
    found(server, "sk-b", kept)
    crowd_out(server, text)
    leave(server)
    server = serve(*flags)
    assert server.post("/v1/caches/flush", {"scope": {"tenant": tenant_of(server)}}, key="sk-a").status == 200
    leave(server) if end == "stop" else server.kill()
    server = serve(*flags)
    assert sum(found(server, "sk-a", flushed).values()) <= OPENING
    assert found(server, "sk-b", kept)["disk"] > OPENING


def tenant_of(server: Server) -> str:
    """The name of the first key's tenant."""
    name: str = server.get("/v1/caches/stats", key="sk-a").json()["tenants"][0]["tenant"]
    return name


def test_a_tenant_that_was_flushed_caches_again(serve: Serve, tmp_path: Path, text: Texts) -> None:
    flags = (*SMALL, "--cache-dir", str(tmp_path / "cache"))
    server = serve(*flags)
    asked = text()
    for _ in range(2):
        assert (
            server.post("/v1/caches/flush", {"scope": {"tenant": tenant_of(server)}}, key="sk-a").status
            == 200
        )
        assert sum(found(server, "sk-a", asked).values()) <= OPENING
        assert found(server, "sk-a", asked)["device"] > OPENING
    crowd_out(server, text)
    leave(server)
    server = serve(*flags)
    wait_for(server.is_ready, 5, "readiness")
    owner_only(server, asked, "disk")
