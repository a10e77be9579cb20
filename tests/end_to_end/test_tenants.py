"""A key is a tenant: what one has in the cache, no other can reach or notice."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from .server import Server
from .traffic import chat, check_all, words

OPENING = 16  # tokens that any two chats of one tenant may share: the template's first words


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Keys from flags and from a file."""
    directory = tmp_path_factory.mktemp("keyed")
    keys = directory / "keys.txt"
    keys.write_text("# of the second team\nsk-beta  # Beta\n\nsk-gamma\n")
    started = Server(
        directory,
        *(
            "--api-key",
            "sk-alpha",
            "--api-key-file",
            str(keys),
            "--admin-key",
            "sk-root",
            "--drain-delay",
            "0",
        ),
        key="sk-root",
    )
    yield started
    started.stop()


async def test_prefixes_are_shared_within_a_key_only(keyed: Server) -> None:
    system = words(random.Random(3), 1000)
    ask = chat("what is it?", system=system)
    cached = {}
    for when in ("first", "again"):
        for key in ("sk-alpha", "sk-beta", "sk-gamma"):
            (got,) = await check_all(keyed, [ask], key=key)
            cached[key, when] = got.cached
    for key in ("sk-alpha", "sk-beta", "sk-gamma"):
        assert cached[key, "first"] <= OPENING
        assert cached[key, "again"] == len(ask.prompt) - 1


async def test_a_salt_narrows(keyed: Server) -> None:
    """Requests of one key share only with equal salts, and a salt opens no other key's prefixes."""
    system = words(random.Random(4), 1000)
    plain = chat("a?", system=system)
    salted = chat("a?", system=system, cache_salt="team 1")
    other = chat("a?", system=system, cache_salt="team 2")
    seen = []
    for key, ask in (
        ("sk-alpha", plain),
        ("sk-alpha", salted),
        ("sk-alpha", salted),
        ("sk-alpha", other),
        ("sk-beta", salted),
        ("sk-alpha", plain),
    ):
        (got,) = await check_all(keyed, [ask], key=key)
        seen.append(got.cached > OPENING)
    assert seen == [False, False, True, False, False, True]


def test_who_may_call(keyed: Server) -> None:
    ask = {"model": "hash", "prompt": "a", "max_tokens": 1}
    keyed.key = None
    try:
        for key in ("sk-alpha", "sk-beta", "sk-gamma", "sk-root"):
            assert keyed.post("/v1/completions", ask, key=key).status == 200
        for key in (
            "sk-alph",
            "sk-alphaa",
            "SK-ALPHA",
            "# of the second team",
            "' OR '1'='1",
            "*",
            "x" * 5000,
        ):
            refused = keyed.post("/v1/completions", ask, key=key)
            assert refused.status == 401, key
            assert refused.error["code"] == "invalid_api_key"
            assert refused.headers["www-authenticate"] == "Bearer"
        assert keyed.get("/admin/state", key="sk-alpha").status == 403
        assert keyed.get("/admin/state", key="nobody").status == 401
        assert keyed.get("/admin/state").status == 401
        assert keyed.get("/admin/state", key="sk-root").status == 200
    finally:
        keyed.key = "sk-root"


def test_secrets_stay_out_of_what_the_server_says(keyed: Server) -> None:
    """Neither keys nor prompts in its log, its metrics or its errors."""
    secrets = ["sk-CANARY1", "CANARY2", "CANARY3", "sk-alpha", "sk-root"]
    said = [
        keyed.get("/v1/models", key="sk-CANARY1").body,
        keyed.post("/v1/completions", {"model": "hash", "prompt": "CANARY2", "max_tokens": 1}).headers,
        keyed.post("/v1/completions", b'{"model": "CANARY3').body,
        keyed.get("/metrics").body,
        keyed.get("/admin/state").body,
        keyed.log(),
    ]
    for secret in secrets:
        assert not any(secret in str(text) for text in said), secret
