import asyncio

import pytest

from engine.client import RequestStream, StreamEvent
from engine.errors import DeadlineExceeded, EngineDied, RequestFailure
from engine.request import GenerationRequest, RequestFailed, RequestStarted, SamplingParams, SequenceDelta

Aborts = list[tuple[str, int | None]]
STARTED = RequestStarted("r", 0, 0.0)


def token(index: int = 0, *, last: bool = False) -> SequenceDelta:
    return SequenceDelta("r", index, (7,), "length" if last else None)


@pytest.fixture
def aborts() -> Aborts:
    return []


def stream_of(aborts: Aborts, n: int = 1) -> RequestStream:
    request = GenerationRequest(request_id="r", prompt=[1], sampling=SamplingParams(max_tokens=9), n=n)
    return RequestStream(request, lambda name, index: aborts.append((name, index)))


def pushed(stream: RequestStream, *events: StreamEvent) -> RequestStream:
    for event in events:
        stream.push(event)
    return stream


async def test_what_arrived_between_two_reads_comes_together_and_in_order(aborts: Aborts) -> None:
    stream = pushed(stream_of(aborts), STARTED, token(), token(last=True))
    assert stream.done
    assert await stream.read() == [STARTED, token(), token(last=True)]
    assert await stream.read() == []
    assert await stream.read() == []


async def test_a_reader_is_woken(aborts: Aborts) -> None:
    stream = stream_of(aborts)
    for event in (STARTED, token(), token(last=True)):
        reading = asyncio.ensure_future(stream.read())
        await asyncio.sleep(0)
        assert not reading.done()
        stream.push(event)
        assert await reading == [event]


async def test_it_ends_after_every_choice(aborts: Aborts) -> None:
    stream = pushed(stream_of(aborts, n=2), token(1, last=True))
    assert not stream.done
    assert pushed(stream, token(0, last=True)).done


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("bad_request", RequestFailure),
        ("engine_error", RequestFailure),
        ("deadline", DeadlineExceeded),
        ("shutting_down", EngineDied),
    ],
)
async def test_a_failure_comes_after_what_was_there_before(
    aborts: Aborts, kind: str, error: type[RequestFailure]
) -> None:
    stream = pushed(stream_of(aborts), token())
    stream.fail_from(RequestFailed("r", kind, "why"))  # type: ignore[arg-type]
    assert stream.done
    assert await stream.read() == [token()]
    for _ in range(2):
        with pytest.raises(error, match="why") as raised:
            await stream.read()
        assert type(raised.value) is error


async def test_a_failure_after_the_end_is_none(aborts: Aborts) -> None:
    stream = pushed(stream_of(aborts), token(last=True))
    stream.fail(EngineDied("late"))
    assert await stream.read() == [token(last=True)]
    assert await stream.read() == []


async def test_an_abort_is_told_once_and_ends_the_reading(aborts: Aborts) -> None:
    stream = stream_of(aborts)
    reading = asyncio.ensure_future(stream.read())
    await asyncio.sleep(0)
    stream.abort()
    stream.abort()
    assert aborts == [("r", None)]
    assert await reading == []
    stream.push(token())  # it crossed the abort
    assert await stream.read() == []


async def test_choices_are_aborted_one_by_one_and_the_last_is_the_request(aborts: Aborts) -> None:
    stream = pushed(stream_of(aborts, n=3), token(2, last=True))
    for index in (1, 1, 2, 0):
        stream.abort(index)
    assert aborts == [("r", 1), ("r", None)]


@pytest.mark.parametrize("ended", [True, False])
async def test_there_is_nothing_to_abort_after_the_end(aborts: Aborts, ended: bool) -> None:
    stream = stream_of(aborts)
    if ended:
        stream.push(token(last=True))
    else:
        stream.fail(EngineDied("gone"))
    stream.abort()
    assert aborts == []


async def test_a_reader_that_is_cancelled_loses_nothing(aborts: Aborts) -> None:
    stream = stream_of(aborts)
    reading = asyncio.ensure_future(stream.read())
    await asyncio.sleep(0)
    reading.cancel()
    stream.push(token())
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert await stream.read() == [token()]
