"""Responses that are made in the background: states, events for who comes back, cancelling, and servers that are gone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import openai
import pytest
from openai import OpenAI

from cache.memory_store import MemoryStore
from gateway.errors import ApiError, InvalidRequest
from gateway.lifecycle import Lifecycle
from gateway.responses import background as module
from gateway.responses.background import CANCEL_TOPIC, NOBODY, SERVERS, Background, Run
from gateway.responses.event_log import EventLog
from gateway.responses.output import Output
from gateway.responses.records import ResponseRecord, ResponseRecords
from gateway.responses.wire import ResponseWriter
from gateway.sessions.ids import new_id
from gateway.sessions.sessions import Sessions
from gateway.tokenizer import Tokenizer
from tests.fakes import FakeEngine, says
from tests.gateway.live import Gateway, Start
from tests.gateway.responses.test_responses import create
from tests.gateway.test_chat_sdk import with_client

AT = "/v1/responses"
LATER = {"model": "toy", "input": "hi", "background": True}


async def until(gateway: Gateway, response_id: str, *statuses: str) -> dict[str, Any]:
    async with asyncio.timeout(5):
        while True:
            _, response = await gateway.get(f"{AT}/{response_id}")
            if response["status"] in statuses:
                return response
            await asyncio.sleep(0.01)


def slow(text: str = "Hello.") -> FakeEngine:
    """Until it is told to go on."""
    engine = FakeEngine(says(text))
    engine.prefill_delay = 60.0
    return engine


async def test_it_comes_back_queued_and_is_made(start: Start) -> None:
    gateway = await start(FakeEngine(says("Hello.")))
    status, queued = await gateway.post(AT, LATER)
    assert (status, queued["status"], queued["background"], queued["output"]) == (200, "queued", True, [])
    done = await until(gateway, queued["id"], "completed")
    assert done["output"][0]["content"][0]["text"] == "Hello."
    assert done["completed_at"] >= done["created_at"]
    await gateway.at_rest()
    _, ended = await gateway.post(f"{AT}/{queued['id']}/cancel", {})
    assert ended == done
    _, after = await gateway.post(AT, {**LATER, "background": False, "previous_response_id": queued["id"]})
    assert after["status"] == "completed"


async def test_its_events_are_those_of_any_stream_but_for_the_queue(start: Start) -> None:
    gateway = await start(FakeEngine(says("Hello.")))

    def use(client: OpenAI) -> None:
        told = list(create(client, stream=True, background=True))
        plain = list(create(client, stream=True))
        kinds = [event.type for event in told]
        assert kinds[:3] == ["response.created", "response.queued", "response.in_progress"]
        assert [kind for kind in kinds if kind != "response.queued"] == [event.type for event in plain]
        assert [event.sequence_number for event in told] == list(range(len(told)))
        assert [told[i].response.status for i in range(3)] == ["queued", "queued", "in_progress"]
        last = told[-1].response
        assert client.responses.retrieve(last.id) == last
        for after in (None, 0, 3, len(told) - 1):
            more: dict[str, Any] = {} if after is None else {"starting_after": after}
            again = list(client.responses.retrieve(last.id, stream=True, **more))
            assert again == told[0 if after is None else after + 1 :]

    await with_client(gateway, use)


async def test_who_leaves_ends_nothing_and_may_come_back(start: Start) -> None:
    engine = FakeEngine(says("Hello, world."))
    engine.token_delay = 0.02
    gateway = await start(engine)

    def leave(client: OpenAI) -> Any:
        with create(client, stream=True, background=True) as events:
            return [next(iter(events)) for _ in range(4)]

    seen = await with_client(gateway, leave)
    rest = await with_client(
        gateway,
        lambda client: list(
            client.responses.retrieve(
                seen[0].response.id, stream=True, starting_after=seen[-1].sequence_number
            )
        ),
    )
    assert [event.sequence_number for event in [*seen, *rest]] == list(range(len(seen) + len(rest)))
    assert rest[-1].response.output[0].content[0].text == "Hello, world."
    assert not engine.aborted


async def test_one_is_cancelled_and_twice_is_fine(start: Start) -> None:
    gateway = await start(slow())
    _, queued = await gateway.post(AT, LATER)
    assert (await until(gateway, queued["id"], "queued"))["status"] == "queued"
    answers = await asyncio.gather(*(gateway.post(f"{AT}/{queued['id']}/cancel", {}) for _ in range(3)))
    assert [(status, response["status"]) for status, response in answers] == [(200, "cancelled")] * 3
    await gateway.at_rest()
    assert (await until(gateway, queued["id"], "cancelled"))["error"] is None
    status, answer = await gateway.post(AT, {**LATER, "previous_response_id": queued["id"]})
    assert (status, answer["error"]["param"]) == (400, "previous_response_id")


async def test_only_those_in_the_background_can_be_cancelled(start: Start) -> None:
    gateway = await start(FakeEngine(says("Hello.")))

    def use(client: OpenAI) -> None:
        response = create(client)
        with pytest.raises(openai.BadRequestError):
            client.responses.cancel(response.id)
        with pytest.raises(openai.BadRequestError) as refused:
            list(client.responses.retrieve(response.id, stream=True))
        assert refused.value.param == "stream"
        with pytest.raises(openai.NotFoundError):
            client.responses.cancel(new_id("resp"))

    await with_client(gateway, use)


async def test_one_that_fails_says_so(start: Start) -> None:
    engine = FakeEngine(says("Hello."))
    engine.fail_after = 2
    gateway = await start(engine)
    _, queued = await gateway.post(AT, LATER)
    failed = await until(gateway, queued["id"], "failed")
    assert failed["error"]["code"] == "server_error"
    assert failed["output"][0]["content"][0]["text"] == "He"
    events = await with_client(gateway, lambda c: list(c.responses.retrieve(queued["id"], stream=True)))
    assert events[-1].type == "response.failed"


async def test_what_cannot_be_had_is_refused_at_once(start: Start) -> None:
    gateway = await start(FakeEngine(says("Hello.")))
    for body in ({"input": "x" * 100_000}, {"previous_response_id": new_id("resp")}, {"store": False}):
        assert (await gateway.post(AT, {**LATER, **body}))[0] == 400
    await gateway.at_rest()


async def test_one_that_is_deleted_ends_and_does_not_come_back(start: Start) -> None:
    gateway = await start(slow())
    _, queued = await gateway.post(AT, LATER)
    async with gateway.client.delete(f"{gateway.url}{AT}/{queued['id']}") as response:
        assert response.status == 200
    await gateway.at_rest()
    assert (await gateway.get(f"{AT}/{queued['id']}"))[0] == 404
    assert (await gateway.get(f"{AT}/{queued['id']}?stream=true"))[0] == 404


async def test_it_is_added_to_its_conversation(start: Start) -> None:
    gateway = await start(FakeEngine(says("Hello.")))
    _, made = await gateway.post("/v1/conversations", {})
    _, queued = await gateway.post(AT, {**LATER, "conversation": made["id"]})
    await until(gateway, queued["id"], "completed")
    _, items = await gateway.get(f"/v1/conversations/{made['id']}/items?order=asc")
    assert [item["content"][0]["text"] for item in items["data"]] == ["hi", "Hello."]


async def test_one_that_was_overtaken_in_its_conversation_fails(start: Start) -> None:
    engine = FakeEngine(says("Hello."))
    engine.prefill_delay = 0.3
    gateway = await start(engine)
    _, made = await gateway.post("/v1/conversations", {})
    _, queued = await gateway.post(AT, {**LATER, "conversation": made["id"]})
    item = {"role": "user", "content": "first"}
    await gateway.post(f"/v1/conversations/{made['id']}/items", {"items": [item]})
    failed = await until(gateway, queued["id"], "failed")
    assert "changed meanwhile" in failed["error"]["message"]


async def test_too_many_are_refused(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_RUNNING", 2)
    gateway = await start(slow())
    made = [await gateway.post(AT, LATER) for _ in range(3)]
    assert [status for status, _ in made] == [200, 200, 503]
    for _, queued in made[:2]:
        await gateway.post(f"{AT}/{queued['id']}/cancel", {})
    await gateway.at_rest()


async def test_a_server_that_stops_ends_them_as_failed(start: Start) -> None:
    gateway = await start(slow(), http={"drain_timeout": 0.05})
    async with gateway.client.post(gateway.url + AT, json={**LATER, "stream": True}) as response:
        gateway.stop.ask()
        events = (await response.text()).split("\n\n")
    await gateway.task
    assert [event.partition("\n")[0] for event in events] == [
        "event: response.created",
        "event: response.queued",
        "event: response.failed",
        "",
    ]


async def test_the_events_of_those_that_ended_are_bounded(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_LOG_BYTES", 15_000)
    gateway = await start(FakeEngine(says("Hello.")))
    made = []
    for _ in range(3):
        _, queued = await gateway.post(AT, LATER)
        await until(gateway, queued["id"], "completed")
        made.append(queued["id"])
    await gateway.at_rest()
    found = []
    for id_ in made:
        async with gateway.client.get(f"{gateway.url}{AT}/{id_}?stream=true") as response:
            await response.read()
            found.append(response.status)
    assert found == [400, 200, 200], "the oldest goes first"


class Board:
    """A bulletin of servers in one process."""

    def __init__(self) -> None:
        self.hear: list[Callable[[bytes], None]] = []

    def follow(self, topic: str, hear: Callable[[bytes], None]) -> None:
        assert topic == CANCEL_TOPIC
        self.hear.append(hear)

    def tell(self, topic: str, body: bytes) -> None:
        for hear in self.hear:
            hear(body)


class TestElsewhere:
    """Servers on one store, without HTTP."""

    def server(self, store: MemoryStore, board: Any = None) -> tuple[Background, ResponseRecords]:
        sessions = Sessions(store, ttl=60)
        records = ResponseRecords(sessions)
        return Background(records, sessions, Lifecycle(), board), records

    def run(self) -> Run:
        response = {"id": new_id("resp"), "status": "in_progress", "background": True}
        writer = ResponseWriter(
            response,
            Output(Tokenizer.hash(), str(response["id"]), logprobs=False),
            told=None,
            prewarmed=False,
        )
        return Run("t", ResponseRecord(response=response, items=[]), writer, "req")

    async def test_one_is_seen_and_cancelled_through_another_server(self) -> None:
        store, board = MemoryStore(), Board()
        (here, _), (there, records) = self.server(store, board), self.server(store, board)
        forever = asyncio.Event()

        async def work(run: Run) -> None:
            await forever.wait()

        queued = await here.begin(self.run(), work, here.open())
        record = await records.response("t", queued["id"])
        assert (await there.seen("t", record))["status"] == "queued"
        assert there.log("t", queued["id"]) is None
        assert (await there.cancel("t", queued["id"]))["status"] == "cancelled"
        assert (await there.cancel("t", queued["id"]))["status"] == "cancelled"

    async def test_another_tenant_cancels_nothing(self) -> None:
        store, board = MemoryStore(), Board()
        (here, _), (there, _) = self.server(store, board), self.server(store, board)

        async def work(run: Run) -> None:
            await asyncio.sleep(0.01)

        run = self.run()
        queued = await here.begin(run, work, here.open())
        with pytest.raises(ApiError):
            await there.cancel("other", queued["id"])
        assert run.task is not None
        await run.task
        assert not run.cancelled

    async def test_one_whose_server_is_gone_has_failed(self) -> None:
        store = MemoryStore()
        here, records = self.server(store)
        response = {"id": new_id("resp"), "status": "in_progress", "background": True}
        record = ResponseRecord(response=response, items=[], owner="other")
        await records.keep("t", record)
        await store.put(SERVERS, NOBODY, "other", b"")
        assert (await here.seen("t", record))["status"] == "in_progress"
        await store.delete(SERVERS, NOBODY, "other")
        assert (await here.seen("t", record))["status"] == "failed"
        cancelled = await here.cancel("t", str(response["id"]))
        assert (cancelled["status"], cancelled["error"]["code"]) == ("failed", "server_error")

    async def test_what_has_ended_stays_as_it_is(self) -> None:
        here, _ = self.server(MemoryStore())
        response = {"id": new_id("resp"), "status": "completed", "background": True}
        assert await here.seen("t", ResponseRecord(response=response, items=[], owner="o")) == response


class TestEventLog:
    async def read(self, log: EventLog, after: int) -> bytes:
        return b"".join([frames async for frames in log.read(after)])

    async def test_readers_begin_where_they_were(self) -> None:
        log = EventLog()
        log.add(b"a\n\nb\n\n")
        early = asyncio.create_task(self.read(log, -1))
        await asyncio.sleep(0)
        log.add(b"c\n\n")
        log.end()
        assert await early == b"a\n\nb\n\nc\n\n"
        assert await self.read(log, 1) == b"c\n\n"
        assert await self.read(log, 2) == b""
        assert await self.read(log, 99) == b""

    async def test_it_is_bounded_and_has_no_gaps(self) -> None:
        log = EventLog(most_bytes=9)
        for letter in b"abcde":
            log.add(bytes([letter]) + b"\n\n")
        log.end()
        assert log.nbytes <= 9
        with pytest.raises(InvalidRequest):
            log.check(0)
        log.check(1)
        assert await self.read(log, 1) == b"c\n\nd\n\ne\n\n"
        assert await self.read(log, 0) == b""
