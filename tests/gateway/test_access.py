"""Who may call what: keys, tenants, admin, browsers."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp import web

from gateway.auth import Access, Keyring, is_loopback
from gateway.errors import ApiError
from tests.gateway.live import MODEL, Gateway, Start
from tests.gateway.raw import RawClient

PUBLIC = {"/health", "/health/live", "/health/ready"}
KEYS: dict[str, Any] = {"api_keys": ("sk-tenant",), "admin_key": "sk-admin"}
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}


def bearer(key: str | None) -> dict[str, str]:
    return {} if key is None else {"Authorization": f"Bearer {key}"}


def every_route(app: web.Application) -> list[tuple[str, str]]:
    return [
        (
            route.method,
            route.resource.canonical.replace("{model}", "toy")
            .replace("{id}", "cache_0")
            .replace("{item_id}", "item_0"),
        )
        for route in app.router.routes()
        if route.resource is not None and route.method != "HEAD"
    ]


async def test_every_route_asks_for_its_key(start: Start) -> None:
    gateway = await start(http=KEYS, served={"test_mode": True})
    routes = every_route(gateway.app)
    assert ("POST", "/admin/failpoints") in routes
    for method, path in routes:
        admin = path.startswith("/admin/")
        for key, refused in (
            (None, 401),
            ("sk-wrong", 401),
            ("sk-tenant", 403 if admin else None),
            ("sk-admin", None),
        ):
            async with gateway.client.request(
                method, gateway.url + path, data=b"{}", headers=bearer(key)
            ) as response:
                expected = None if path in PUBLIC else refused
                if expected is None:
                    assert response.status not in {401, 403, 405, 500}, (method, path, key)
                    if response.status == 404:
                        message = (await response.json())["error"]["message"]
                        assert "not found" in message or "no cache" in message
                    continue
                assert response.status == expected, (method, path, key)
                error = (await response.json())["error"]
                if path.startswith("/v1/messages"):
                    assert error["type"] == "authentication_error"
                    continue
                assert error["code"] == ("invalid_api_key" if expected == 401 else "admin_key_required")


@pytest.mark.parametrize(
    "path",
    [
        "//v1/models",
        "/v1/../health/live",
        "/V1/models",
        "/health/..;/v1/models",
        "/health/live/",
        "/nope",
        "/v1/%2e%2e/x",
    ],
)
async def test_a_path_is_not_argued_with(start: Start, path: str) -> None:
    """Access goes by the route that matched. What matches none needs a key before it is told so."""
    gateway = await start(http=KEYS)
    for key, status in ((None, b" 401 "), ("sk-tenant", b" 404 ")):
        client = await RawClient.connect(gateway)
        authorization = f"Authorization: Bearer {key}\r\n" if key else ""
        client.write(f"GET {path} HTTP/1.1\r\nHost: x/health/live\r\n{authorization}\r\n".encode())
        assert status in (await client.head()).partition(b"\r\n")[0], (path, key)
        client.leave(reset=False)


@pytest.mark.parametrize("key", ["' OR '1'='1", "*", "k" * 4000, "", " ", "sk-tenan", "sk-tenantt", "é"])
async def test_strange_keys_are_wrong_keys(start: Start, key: str) -> None:
    gateway = await start(http=KEYS)
    status, body = await gateway.get("/v1/models", headers=bearer(key))
    assert (status, body["error"]["code"]) == (401, "invalid_api_key")


async def test_unknown_routes_and_methods_are_json(gateway: Gateway) -> None:
    status, body = await gateway.get("/nope")
    assert (status, body["error"]["code"], set(body["error"])) == (
        404,
        "unknown_url",
        {"message", "type", "param", "code"},
    )
    async with gateway.client.get(gateway.url + "/v1/completions") as response:
        assert (response.status, response.headers["Allow"]) == (405, "POST")
        assert (await response.json())["error"]["code"] == "method_not_allowed"


@pytest.mark.parametrize(
    ("api_keys", "admin_key", "given", "peer", "outcome"),
    [
        ((), None, None, "127.0.0.1", "admin"),
        ((), None, None, "10.0.0.1", 403),
        ((), None, None, None, 403),
        ((), "a", None, "127.0.0.1", 401),
        ((), "a", "a", "10.0.0.1", "admin"),
        (("k",), None, None, "127.0.0.1", 401),
        (("k",), None, "k", "127.0.0.1", 403),
        (("k",), "a", "k", "127.0.0.1", 403),
        (("k",), "a", "x", "127.0.0.1", 401),
        (("k",), "a", "a", "10.0.0.1", "admin"),
    ],
)
def test_who_is_an_admin(
    api_keys: tuple[str, ...], admin_key: str | None, given: str | None, peer: str | None, outcome: str | int
) -> None:
    keyring = Keyring(api_keys, admin_key)
    if isinstance(outcome, str):
        assert keyring.authorise(Access.ADMIN, bearer(given), peer).id == outcome
        return
    with pytest.raises(ApiError) as refused:
        keyring.authorise(Access.ADMIN, bearer(given), peer)
    assert refused.value.status == outcome


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("localhost", True),
        ("localhost.evil.example", False),
        ("0.0.0.0", False),
        ("10.0.0.1", False),
        (None, False),
    ],
)
def test_what_is_loopback(host: str | None, loopback: bool) -> None:
    assert is_loopback(host) is loopback


async def test_tenants_do_not_share_a_namespace_and_salts_narrow_it(start: Start) -> None:
    gateway = await start(http={"api_keys": ("a", "b")})
    for key, salt in (("a", None), ("a", None), ("b", None), ("a", "x"), ("b", "x")):
        body = {**CHAT, **({"cache_salt": salt} if salt else {})}
        assert (await gateway.post("/v1/chat/completions", body, headers=bearer(key)))[0] == 200
    first, again, other, salted, other_salted = (request.namespace for request in gateway.engine.requests)
    assert first == again
    assert len({first, other, salted, other_salted}) == 4
    assert all("sk" not in request.tenant for request in gateway.engine.requests)


# -- browsers ----------------------------------------------------------------------------------------------------------

PREFLIGHT = {
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type,x-stainless-lang",
}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "127.0.0.1:8000"}, 200),
        ({"Host": "localhost"}, 200),
        ({"Host": "[::1]:8000"}, 200),
        ({"Host": "evil.test"}, 421),
        ({"Host": "127.0.0.1.evil.test"}, 421),
        ({"Host": "evil.test:127"}, 421),
        ({"Origin": "http://evil.test"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://["}, 403),
        ({"Host": "["}, 421),
        ({"Origin": "http://localhost:3000"}, 200),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
    ],
)
async def test_a_server_without_keys_answers_its_own_names_only(
    gateway: Gateway, headers: dict[str, str], status: int
) -> None:
    for path in ("/v1/models", "/health/live"):
        async with gateway.client.get(gateway.url + path, headers=headers) as response:
            assert response.status == status
            assert "Access-Control-Allow-Origin" not in response.headers


async def test_with_keys_any_name_will_do(start: Start) -> None:
    gateway = await start(http=KEYS)
    headers = {"Host": "llm.team.example", "Origin": "http://a.example", **bearer("sk-tenant")}
    async with gateway.client.get(gateway.url + "/v1/models", headers=headers) as response:
        assert response.status == 200
        assert "Access-Control-Allow-Origin" not in response.headers


@pytest.mark.parametrize("origins", [("https://app.example",), ("*",)])
async def test_configured_origins(start: Start, origins: tuple[str, ...]) -> None:
    gateway = await start(http={**KEYS, "cors_origins": origins})
    origin = {"Origin": "https://app.example"}
    allowed = origins[0]
    path = gateway.url + "/v1/chat/completions"
    async with gateway.client.options(path, headers={**origin, **PREFLIGHT}) as response:
        assert response.status == 204
        assert response.headers["Access-Control-Allow-Origin"] == allowed
        assert response.headers["Access-Control-Allow-Headers"] == PREFLIGHT["Access-Control-Request-Headers"]
    async with gateway.client.post(path, json=CHAT, headers=origin) as response:
        assert response.status == 401  # an error must be readable by the page, too
        assert response.headers["Access-Control-Allow-Origin"] == allowed
    async with gateway.client.post(
        path, json={**CHAT, "stream": True}, headers={**origin, **bearer("sk-tenant")}
    ) as response:
        assert response.status == 200
        assert response.headers["Access-Control-Allow-Origin"] == allowed
        assert "x-request-id" in response.headers["Access-Control-Expose-Headers"]
    other = {"Origin": "https://other.example", **PREFLIGHT}
    async with gateway.client.options(path, headers=other) as response:
        assert (response.status == 204) is (allowed == "*")


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("my-id_1.2:3", True),
        ("a" * 128, True),
        ("a" * 129, False),
        ("has space", False),
        ("x;y", False),
        ("", False),
    ],
)
async def test_request_ids(gateway: Gateway, given: str, kept: bool) -> None:
    async with gateway.client.get(gateway.url + "/v1/models", headers={"X-Request-Id": given}) as response:
        seen = response.headers["x-request-id"]
        assert (seen == given) is kept
        assert seen
        assert response.headers["openai-processing-ms"].isdecimal()
        assert response.headers["Server"] == "headwater"
