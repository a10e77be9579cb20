"""What Prometheus reads: parsed by its own parser, equal to what happened, and no larger for what clients make up."""

from __future__ import annotations

import math
import random

from prometheus_client.parser import text_string_to_metric_families

from .conftest import Serve
from .server import Server
from .traffic import chat, check_all, completion, words

COMPATIBLE = {
    "vllm:num_requests_running": "gauge",
    "vllm:num_requests_waiting": "gauge",
    "vllm:kv_cache_usage_perc": "gauge",
    "vllm:prefix_cache_queries": "counter",
    "vllm:prefix_cache_hits": "counter",
    "vllm:prompt_tokens": "counter",
    "vllm:prompt_tokens_cached": "counter",
    "vllm:generation_tokens": "counter",
    "vllm:num_preemptions": "counter",
    "vllm:request_success": "counter",
    "vllm:admission_rejections": "counter",
    "vllm:time_to_first_token_seconds": "histogram",
    "vllm:inter_token_latency_seconds": "histogram",
    "vllm:request_time_per_output_token_seconds": "histogram",
    "vllm:e2e_request_latency_seconds": "histogram",
    "vllm:request_queue_time_seconds": "histogram",
    "vllm:request_prefill_time_seconds": "histogram",
    "vllm:request_decode_time_seconds": "histogram",
    "vllm:request_inference_time_seconds": "histogram",
    "vllm:iteration_tokens_total": "histogram",
    "vllm:request_prompt_tokens": "histogram",
    "vllm:request_generation_tokens": "histogram",
    "vllm:lora_requests_info": "gauge",
}
"""The names that dashboards and the Kubernetes inference extension look for, with their types. A counter's sample ends
in `_total`."""


def scrape(server: Server) -> tuple[dict[str, str], dict[tuple[str, frozenset[tuple[str, str]]], float]]:
    """Types by name, and values by name and labels."""
    reply = server.get("/metrics")
    assert reply.status == 200
    types, values = {}, {}
    for family in text_string_to_metric_families(reply.body.decode()):
        assert family.name not in types, f"{family.name} twice"
        assert family.documentation
        types[family.name] = family.type
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in values, key
            assert math.isfinite(sample.value), key
            values[key] = sample.value
    return types, values


def value(server: Server, name: str, **labels: str) -> float:
    """The sum over all samples of a name that carry these labels."""
    _, values = scrape(server)
    found = [v for (n, given), v in values.items() if n == name and labels.items() <= dict(given).items()]
    assert found, name
    return sum(found)


def test_names_and_types(server: Server) -> None:
    types, _ = scrape(server)
    assert {name: types.get(name) for name in COMPATIBLE} == COMPATIBLE
    assert all(name.startswith(("vllm:", "headwater_")) for name in types)


async def test_counts_are_what_happened(serve: Serve) -> None:
    server = serve("--hash-step-delay", "0.003")  # or a busy machine may read all tokens of an answer at once
    rng = random.Random(2)
    system = words(rng, 300)
    asks = [
        chat(words(rng, 20), system=system, n=1 + k % 3, max_tokens=5 + k, stream=k % 2 == 0)
        for k in range(9)
    ]
    asks += [completion(words(rng, 50), max_tokens=1) for _ in range(3)]
    got = await check_all(server, asks)
    for _ in range(4):
        assert server.post("/v1/completions", {"model": "hash"}).status == 400
    prompt = sum(len(ask.prompt) for ask in asks)
    answers = [len(choice.tokens) for ask in asks for choice in ask.choices]
    cached = sum(one.cached for one in got)
    assert value(server, "vllm:prompt_tokens_total") == prompt
    assert value(server, "vllm:prefix_cache_queries_total") == prompt
    assert value(server, "vllm:prefix_cache_hits_total") == cached > 0
    assert value(server, "vllm:prompt_tokens_cached_total") == cached
    assert value(server, "vllm:generation_tokens_total") == sum(answers)
    assert value(server, "vllm:request_success_total", finished_reason="length") == len(answers)
    assert value(server, "vllm:request_success_total", finished_reason="abort") == 0
    assert value(server, "vllm:time_to_first_token_seconds_count") == len(asks)
    assert value(server, "vllm:e2e_request_latency_seconds_count") == len(asks)
    assert value(server, "vllm:request_generation_tokens_sum") == sum(answers)
    assert value(server, "vllm:inter_token_latency_seconds_count") == sum(n - 1 for n in answers)
    assert value(server, "vllm:iteration_tokens_total_sum") == value(
        server, "headwater_computed_tokens_total"
    )
    assert value(server, "vllm:iteration_tokens_total_count") == value(server, "headwater_engine_steps_total")
    assert value(server, "headwater_http_requests_total", route="/v1/chat/completions", status="200") == 9
    assert value(server, "headwater_http_requests_total", route="/v1/completions", status="200") == 3
    assert value(server, "headwater_http_requests_total", route="/v1/completions", status="400") == 4
    assert value(server, "headwater_pages_free") + value(server, "headwater_pages_cached") == value(
        server, "headwater_pages_total"
    )
    for level in ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"):
        assert value(server, level) == 0
    # a coarse clock would see whole milliseconds
    gaps = value(server, "vllm:inter_token_latency_seconds_sum") * 1000
    assert abs(gaps - round(gaps)) > 1e-6


def test_series_do_not_grow_with_what_clients_make_up(serve: Serve) -> None:
    server = serve("--api-key", "sk-known", "--extra-name", "alias", key="sk-known")
    ask = {"prompt": "x", "max_tokens": 1}

    def strangers(count: int) -> None:
        for k in range(count):
            server.post("/v1/completions", {**ask, "model": f"model-{count}-{k}"})
            server.post(
                "/v1/completions", {**ask, "model": "alias", "user": f"user-{k}", "cache_salt": f"s{k}"}
            )
            server.get("/v1/models", key=f"sk-{count}-{k}")
            server.get(f"/v1/models/org/name-{k}")
            server.get(f"/nowhere/{k}")

    strangers(1)
    scrape(server)
    before = set(scrape(server)[1])
    strangers(200)
    assert set(scrape(server)[1]) == before
