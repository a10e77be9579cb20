"""What a request leaves behind in the histograms, by a clock of the test's own."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from engine.client import RequestStream
from engine.request import GenerationRequest, RequestStarted, SamplingParams, SequenceDelta
from gateway.generation import Generation
from gateway.metrics import Metrics
from gateway.pieces import TextOptions
from gateway.tokenizer import Tokenizer
from tests.fakes import FakeEngine


async def test_times_end_with_the_last_token_and_each_choice_has_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two choices: one has its second and last token at 4, the other its eleventh and last at 13."""
    now = 1.0
    monkeypatch.setattr("time.perf_counter", lambda: now)
    request = GenerationRequest(request_id="r", prompt=[1], sampling=SamplingParams(max_tokens=11), n=2)
    stream = RequestStream(request, lambda *_: None)
    generation = Generation(stream, Tokenizer.hash(), TextOptions())
    stream.push(RequestStarted("r", 0, 1.0))
    now = 3.0
    await _arrive(generation, stream, {0: False, 1: False})
    now = 4.0
    await _arrive(generation, stream, {0: True, 1: False})
    for token in range(9):
        now = 5.0 + token
        await _arrive(generation, stream, {1: token == 8})
    now = 100.0  # a slow reader takes its time to leave

    metrics = Metrics("m", FakeEngine())
    metrics.generation_ended(generation)
    sums = {
        sample.name.removeprefix("headwater_").removesuffix("_sum"): sample.value
        for family in text_string_to_metric_families(metrics.render().decode())
        for sample in family.samples
        if sample.name.startswith("headwater_") and sample.name.endswith("_seconds_sum")
    }
    assert sums == {
        "time_to_first_token_seconds": 2.0,
        "inter_token_latency_seconds": 11.0,
        "request_time_per_output_token_seconds": 2.0,
        "e2e_request_latency_seconds": 12.0,
        "request_queue_time_seconds": 2.0,  # its start is heard of together with its first tokens
        "request_prefill_time_seconds": 0.0,
        "grammar_compile_seconds": 0.0,
        "request_decode_time_seconds": 10.0,
        "request_inference_time_seconds": 10.0,
    }


async def _arrive(generation: Generation, stream: RequestStream, last: dict[int, bool]) -> None:
    """A step with a token for each of these choices, and whether it is their last."""
    for index, ends in last.items():
        stream.push(SequenceDelta("r", index, (65,), "length" if ends else None))
    await generation.read()
