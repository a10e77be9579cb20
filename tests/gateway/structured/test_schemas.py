"""What is kept of schemas, and for how long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.metrics import Metrics
from gateway.structured import schemas
from gateway.structured.schemas import Schemas
from gateway.text_threads import TextThreads
from grammar.errors import BadSchema, TooComplex
from tests.fakes import FakeEngine


@pytest.fixture
async def threads() -> AsyncIterator[TextThreads]:
    threads = TextThreads()
    yield threads
    threads.close()


@pytest.fixture
def kept(threads: TextThreads) -> Schemas:
    return Schemas(threads, Metrics("m", FakeEngine()))


def numbered(number: int) -> dict[str, object]:
    return {"type": "integer", "minimum": number}


async def test_the_least_recently_used_go_first(
    threads: TextThreads, audits: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schemas, "MAX_KEPT", 2)
    kept = Schemas(threads, Metrics("m", FakeEngine()))
    for number in (1, 2, 1, 3, 1, 2):
        await kept.audit(numbered(number))
    assert audits == [numbered(number) for number in (1, 2, 3, 2)]


async def test_their_text_is_bounded_too(
    threads: TextThreads, audits: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schemas, "MAX_KEPT_BYTES", 1000)
    kept = Schemas(threads, Metrics("m", FakeEngine()))
    for _ in range(2):
        for name in "ab":
            await kept.audit({"description": name * 600})
    assert len(audits) == 4


async def test_requests_that_come_together_share_the_work_and_outlive_the_first(
    kept: Schemas, audits: list[object]
) -> None:
    first, *others = (asyncio.create_task(kept.audit(numbered(1))) for _ in range(5))
    await asyncio.sleep(0)
    first.cancel()
    found = await asyncio.gather(*others)
    assert len({id(one) for one in found}) == 1
    assert audits == [numbered(1)]


@pytest.mark.parametrize(
    ("schema", "error"),
    [({"type": "strng"}, BadSchema), ({"enum": list(range(10_000))}, TooComplex)],
)
async def test_what_is_refused_is_kept_as_well(
    kept: Schemas, audits: list[object], schema: dict[str, Any], error: type[Exception]
) -> None:
    for _ in range(3):
        with pytest.raises(error) as caught:
            await kept.audit(schema)
    assert len(audits) <= 1
    assert caught.value.__traceback__ is not None
    depth = len(caught.traceback)
    with pytest.raises(error) as again:
        await kept.audit(schema)
    assert len(again.traceback) == depth  # a new error each time, which holds on to no earlier request


async def test_a_schema_too_deep_to_be_written_is_too_complex(kept: Schemas) -> None:
    schema: dict[str, Any] = {}
    for _ in range(600):
        schema = {"items": schema}
    with pytest.raises(TooComplex):
        await kept.audit(schema)
