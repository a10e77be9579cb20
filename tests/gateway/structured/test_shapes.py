"""Where the work on what is asked for is done: not in the event loop."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.errors import InvalidRequest
from gateway.metrics import Metrics
from gateway.structured import shapes as shapes_module
from gateway.structured.asked import ShapeFields
from gateway.structured.shapes import Shapes
from gateway.text_threads import TextThreads
from grammar import limits
from grammar.spec import Grammar
from tests.fakes import FakeEngine
from tests.gateway.live import MODEL, Start


@pytest.fixture
async def shapes() -> AsyncIterator[Shapes]:
    threads = TextThreads()
    yield Shapes(threads, Metrics("m", FakeEngine()))
    threads.close()


async def test_nothing_asked_leaves_the_loop_for_nothing(shapes: Shapes) -> None:
    shapes.threads.close()
    assert await shapes.read(ShapeFields()) is None


@pytest.mark.parametrize("fields", [{"regex": "a+"}, {"ebnf": 'root ::= "a"'}, {"guided_choice": ["a", "b"]}])
async def test_grammars_are_read_and_checked_in_a_thread(
    shapes: Shapes, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any]
) -> None:
    in_the_loop: list[bool] = []
    wish = ShapeFields.wish

    def noted_wish(asked: ShapeFields) -> Any:
        in_the_loop.append(threading.current_thread() is threading.main_thread())
        return wish(asked)

    def noted_check(grammar: Grammar) -> None:
        in_the_loop.append(threading.current_thread() is threading.main_thread())
        limits.check_grammar(grammar)

    monkeypatch.setattr(ShapeFields, "wish", noted_wish)
    monkeypatch.setattr(shapes_module, "check_grammar", noted_check)
    assert await shapes.read(ShapeFields(**fields)) is not None
    assert in_the_loop == [False, False]


@pytest.mark.parametrize(
    "outputs",
    [
        {"grammar": '"' * 4_000_000 + "::="},
        {"json": {"prefixItems": [{"properties": {}}] * 200_000}, "disable_additional_properties": True},
    ],
)
async def test_what_is_far_too_large_is_refused_before_it_is_read(
    shapes: Shapes, outputs: dict[str, Any]
) -> None:
    began = time.process_time()
    with pytest.raises(InvalidRequest) as caught:
        await shapes.read(ShapeFields(structured_outputs=outputs))
    assert caught.value.code == "grammar_too_complex"
    assert time.process_time() - began < 0.5


async def test_a_completion_of_no_tokens_reads_its_shape_in_a_thread_too(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_the_loop: list[bool] = []
    wish = ShapeFields.wish

    def noted(asked: ShapeFields) -> Any:
        in_the_loop.append(threading.current_thread() is threading.main_thread())
        return wish(asked)

    monkeypatch.setattr(ShapeFields, "wish", noted)
    gateway = await start(FakeEngine())
    body = {"model": MODEL, "prompt": "a", "echo": True, "max_tokens": 0, "regex": "a+"}
    status, answer = await gateway.post("/v1/completions", body)
    assert (status, answer["error"]["param"]) == (400, "max_tokens")
    assert in_the_loop == [False]
