"""With keys, every address asks for one, except the two that a load balancer needs."""

from __future__ import annotations

from .conftest import Serve
from .server import Server

PUBLIC = {"/health", "/health/live", "/health/ready"}
UNLISTED = [
    ("GET", "/docs"),
    ("GET", "/openapi.json"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("POST", "/admin/failpoints"),
    ("GET", "/nowhere"),
    ("DELETE", "/v1/models/hash"),
    ("HEAD", "/v1/models"),
    ("HEAD", "/metrics"),
    ("GET", "/v1/../health/live"),
    ("GET", "//health/live"),
    ("GET", "/health/live/"),
]


def described(server: Server) -> list[tuple[str, str]]:
    """What the server says that it offers."""
    document = server.get("/openapi.json", key="sk-admin").json()
    return [
        (method.upper(), path.replace("{model}", "hash"))
        for path, operations in document["paths"].items()
        for method in operations
    ]


def test_every_address(serve: Serve) -> None:
    server = serve("--test-mode", "--api-key", "sk-tenant", "--admin-key", "sk-admin")
    addresses = [*described(server), *UNLISTED]
    assert len(addresses) > 18
    open_ones = set()
    for method, path in addresses:
        body = b"{}" if method == "POST" else None
        for key in (None, "sk-wrong"):
            reply = server.request(method, path, body, key=key)
            if reply.status != 401:
                open_ones.add(path)
                continue
            if method == "HEAD":
                continue
            error = reply.json()["error"]
            if path.startswith("/v1/messages"):  # in Anthropic's words
                assert error["type"] == "authentication_error", path
            else:
                assert reply.error["code"] == "invalid_api_key", (method, path)
            assert "sk-" not in error["message"]
        if path.startswith("/admin/"):
            assert server.request(method, path, body, key="sk-tenant").status == 403, path
        assert server.request(method, path, body, key="sk-admin").status not in (401, 403), path
    assert open_ones == PUBLIC


def test_health_can_be_asked_with_head(server: Server) -> None:
    """As many load balancers do."""
    for path in sorted(PUBLIC):
        whole, head = server.get(path), server.request("HEAD", path)
        assert (head.status, head.body) == (200, b"")
        assert head.headers["content-length"] == str(len(whole.body))


def test_a_page_elsewhere_cannot_use_an_open_server(server: Server) -> None:
    """Without keys the server answers to its own names only, whatever a browser on this machine is made to send."""
    ask = {"model": "hash", "prompt": "x", "max_tokens": 1}
    assert server.post("/v1/completions", ask, headers={"Host": "evil.test"}).status == 421
    assert server.post("/v1/completions", ask, headers={"Origin": "https://evil.test"}).status == 403
    assert server.post("/v1/completions", ask, headers={"Sec-Fetch-Site": "cross-site"}).status == 403
    assert server.get("/admin/state", headers={"Origin": "https://evil.test"}).status == 403
    reply = server.post("/v1/completions", ask, headers={"Origin": f"http://127.0.0.1:{server.port}"})
    assert reply.status == 200
    assert "access-control-allow-origin" not in reply.headers
