"""What operators and tools look at: models, tokens, health, metrics, admin, docs."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import openai
import pytest
from openai import OpenAI
from prometheus_client.parser import text_string_to_metric_families

from cache.lease import FlushScope
from gateway.docs import OPERATIONS
from tests.fakes import FakeEngine
from tests.gateway.live import MODEL, Gateway, Start

CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}


async def test_models(gateway: Gateway) -> None:
    def ask() -> list[str]:
        with OpenAI(base_url=f"{gateway.url}/v1", api_key="any", max_retries=0) as client:
            names = [model.id for model in client.models.list().data]
            assert [client.models.retrieve(name).id for name in names] == names
            with pytest.raises(openai.NotFoundError):
                client.models.retrieve("no/such")
            return names

    assert await asyncio.to_thread(ask) == [MODEL, "toy"]
    _, card = await gateway.get(f"/v1/models/{MODEL}")
    assert (card["object"], card["max_model_len"], card["created"]) == ("model", 2048, 1_700_000_000)
    assert (await gateway.get("/v1/models/toy"))[1]["root"] == MODEL


@pytest.mark.parametrize("prefix", ["", "/v1"])
async def test_tokens_there_and_back(gateway: Gateway, prefix: str) -> None:
    status, body = await gateway.post(
        f"{prefix}/tokenize", {"model": MODEL, "prompt": "é!", "return_token_strs": True}
    )
    assert status == 200
    assert body == {
        "count": 3,
        "max_model_len": 2048,
        "tokens": [0xC3, 0xA9, 33],
        "token_strs": ["\ufffd", "\ufffd", "!"],
    }
    assert await gateway.post(f"{prefix}/detokenize", {"tokens": body["tokens"]}) == (200, {"prompt": "é!"})


async def test_tokens_of_a_conversation_are_those_that_are_run(gateway: Gateway) -> None:
    _, body = await gateway.post("/tokenize", {"messages": CHAT["messages"]})
    await gateway.post("/v1/chat/completions", CHAT)
    assert body["tokens"] == gateway.engine.requests[0].prompt
    assert await gateway.post("/detokenize", {"tokens": body["tokens"]}) == (
        200,
        {"prompt": "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"},
    )


async def test_tokens_of_tools_and_variables_too(start: Start) -> None:
    """As far as the template asks for them."""
    template = "{{ mood }}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    gateway = await start(template=template)
    more = {
        "tools": [{"type": "function", "function": {"name": "add"}}],
        "chat_template_kwargs": {"mood": "good", "other": 1},
    }
    _, body = await gateway.post("/tokenize", {"messages": CHAT["messages"], **more})
    await gateway.post("/v1/chat/completions", {**CHAT, **more})
    assert body["tokens"] == gateway.engine.requests[0].prompt
    text = bytes(body["tokens"]).decode()
    assert text.startswith("goodsystem: # Tools")
    assert '"name": "add"' in text


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "x", "tools": []}, "tools"),
        ("/tokenize", {"prompt": "x", "chat_template_kwargs": {}}, "chat_template_kwargs"),
        ("/tokenize", {"messages": CHAT["messages"], "tools": [{}]}, "tools[0].type"),
        ("/tokenize", {"prompt": "x", "messages": []}, "prompt"),
        ("/tokenize", {"prompt": 1}, "prompt"),
        ("/tokenize", {"prompt": "x", "y": 1}, "y"),
        (
            "/tokenize",
            {"messages": CHAT["messages"], "continue_final_message": True, "add_generation_prompt": True},
            "continue_final_message",
        ),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": ["x"]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [True]}, "tokens"),
    ],
)
async def test_bad_token_requests(gateway: Gateway, path: str, body: dict[str, Any], param: str) -> None:
    status, answer = await gateway.post(path, body)
    assert (status, answer["error"]["param"]) == (400, param)


async def test_health(gateway: Gateway) -> None:
    assert await gateway.get("/health/live") == (200, {"status": "live"})
    assert await gateway.get("/health/ready") == (200, {"status": "ready"})
    gateway.engine.status = "restarting"
    assert await gateway.get("/health/ready") == (503, {"status": "engine_restarting"})
    assert (await gateway.get("/version"))[1].keys() == {"version"}


async def scrape(gateway: Gateway) -> dict[str, float]:
    """Samples by name and labels (without the model's name, which all have)."""
    async with gateway.client.get(gateway.url + "/metrics") as response:
        assert response.status == 200
        assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        text = await response.text()
    samples: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        assert re.fullmatch(r"(headwater_|vllm:)[a-z0-9_]+", family.name)
        for sample in family.samples:
            labels = {k: v for k, v in sample.labels.items() if k != "model_name"}
            samples[sample.name + "".join(f"[{v}]" for _, v in sorted(labels.items()))] = sample.value
    return samples


async def test_metrics(gateway: Gateway) -> None:
    gateway.engine.cached_tokens = 3
    await gateway.post("/v1/chat/completions", {**CHAT, "n": 2})
    await gateway.post("/v1/chat/completions", {**CHAT, "stream": True, "max_tokens": -1})
    seen = await scrape(gateway)
    assert seen["headwater_http_requests_total[POST][/v1/chat/completions][200]"] == 1
    assert seen["headwater_http_requests_total[POST][/v1/chat/completions][400]"] == 1
    prompt = len(gateway.engine.requests[0].prompt)
    assert seen["vllm:prompt_tokens_total"] == prompt
    assert seen["vllm:prompt_tokens_cached_total"] == 3
    assert seen["vllm:generation_tokens_total"] == 10
    assert seen["vllm:prefix_cache_queries_total"] == prompt
    assert seen["vllm:prefix_cache_hits_total"] == 3
    assert seen["vllm:request_success_total[length]"] == 2
    assert seen["vllm:request_success_total[abort]"] == 0
    for prefix in ("vllm:", "headwater_"):
        assert seen[f"{prefix}time_to_first_token_seconds_count"] == 1
        assert seen[f"{prefix}inter_token_latency_seconds_count"] == 8
        assert seen[f"{prefix}request_generation_tokens_bucket[5.0]"] == 2
        assert seen[f"{prefix}request_generation_tokens_sum"] == 10
        assert seen[f"{prefix}e2e_request_latency_seconds_bucket[+Inf]"] == 1
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
        assert seen[f"vllm:{name}"] == 0
    assert seen["headwater_requests_in_flight"] == 1  # the scrape itself
    assert seen["headwater_engine_up"] == 1


async def test_series_do_not_grow_with_what_clients_make_up(gateway: Gateway) -> None:
    await gateway.get("/nope")
    await gateway.post("/v1/chat/completions", {**CHAT, "model": "m0"})
    await gateway.get("/v1/models/m0")
    before = await scrape(gateway)
    for i in range(50):
        await gateway.get(f"/nope/{i}")
        await gateway.post("/v1/chat/completions", {**CHAT, "model": f"m{i}"})
        await gateway.get(f"/v1/models/m{i}")
        async with gateway.client.request(("PUT", "PATCH")[i % 2], gateway.url + "/v1/models"):
            pass
    after = await scrape(gateway)
    assert set(after) - set(before) == {
        "headwater_http_requests_total[any][unknown][405]",
        "headwater_http_requests_total[GET][/metrics][200]",
    }


async def test_an_aborted_request_is_counted_with_what_it_used(start: Start) -> None:
    engine = FakeEngine()
    engine.token_delay = 0.01
    gateway = await start(engine)
    await gateway.post(
        "/v1/chat/completions", {**CHAT, "max_tokens": 500}, headers={"X-Request-Timeout": "0.15"}
    )
    seen = await scrape(gateway)
    assert seen["vllm:request_success_total[abort]"] == 1
    assert seen["headwater_aborted_requests_total"] == 1
    assert seen["vllm:generation_tokens_total"] > 0


async def test_state(gateway: Gateway) -> None:
    status, body = await gateway.get("/admin/state")
    assert status == 200
    assert body["gateway"]["limits"]["requests"] == 256
    assert body["engine"]["pages"] == {"total": 1024, "free": 1024, "tree": 0, "held": 0}
    assert body["engine"]["pid"] == 1
    assert body["engine"]["info"]["vocab_size"] == 259
    gateway.engine.status = "restarting"
    status, body = await gateway.get("/admin/state")
    assert status == 503


async def test_flush_and_failpoints(start: Start) -> None:
    gateway = await start(served={"test_mode": True})
    assert (await gateway.post("/admin/flush", {}))[0] == 200
    assert gateway.engine.flushed == [(FlushScope(), False)]
    assert (await gateway.post("/admin/failpoints", {"spec": "step:3:raise"}))[0] == 200
    assert gateway.engine.failpoints == ["step:3:raise"]
    assert (await gateway.post("/admin/failpoints", {"spec": 1}))[0] == 400


async def test_failpoints_exist_in_test_mode_only(gateway: Gateway) -> None:
    assert (await gateway.post("/admin/failpoints", {"spec": "x"}))[0] == 404


async def test_docs_describe_what_is_routed_and_load_nothing(gateway: Gateway) -> None:
    _, document = await gateway.get("/openapi.json")
    routed = {
        (route.method, route.resource.canonical)
        for route in gateway.app.router.routes()
        if route.resource is not None and route.method != "HEAD"
    }
    same_below_v1 = {("POST", "/tokenize"), ("POST", "/detokenize")}
    themselves = {("GET", "/docs"), ("GET", "/openapi.json")}
    described = {(operation.method, operation.path) for operation in OPERATIONS}
    assert described == routed - same_below_v1 - themselves
    for reference in re.findall(r"#/components/schemas/(\w+)", str(document)):
        assert reference in document["components"]["schemas"]
    async with gateway.client.get(gateway.url + "/docs") as response:
        assert response.headers["Content-Type"] == "text/html; charset=utf-8"
        page = await response.text()
    assert "/v1/chat/completions" in page
    assert "temperature" in page
    assert "default false" in page
    assert not re.search(r"default (None|True|False|null)", page), "a reader of the page writes JSON"
    assert not re.search(r"(src|href|url)\s*[=(]", page)
