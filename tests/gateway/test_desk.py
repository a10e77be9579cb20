"""The desk tells its listeners of every request, however it ends."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from cache.lease import CachePolicy, EntrySpec, Lease
from engine.errors import PinsExhausted, RequestFailure
from engine.request import RequestEnded, SamplingParams
from gateway.auth import Tenant
from gateway.caching.namespaces import Namespaces
from gateway.caller import Caller
from gateway.desk import Desk, Job, Submission
from gateway.metrics import Metrics
from gateway.pieces import TextOptions
from gateway.tokenizer import Tokenizer
from tests.fakes import FakeEngine
from tests.gateway.live import MODEL, Start

TOKENIZER = Tokenizer.hash()


class Diary:
    """A listener that notes what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Submission]] = []
        self.accounts: list[RequestEnded | None] = []

    def submitted(self, submission: Submission) -> None:
        self.told.append(("submitted", submission))

    def started(self, submission: Submission) -> None:
        assert submission.generation.start is not None
        self.told.append(("started", submission))

    def ended(self, submission: Submission, account: RequestEnded | None) -> None:
        self.told.append(("ended", submission))
        self.accounts.append(account)

    @property
    def words(self) -> list[str]:
        return [word for word, _ in self.told]


def job(*prompt: int) -> Job:
    return Job(
        prompt=list(prompt),
        sampling=SamplingParams(max_tokens=3),
        text=TextOptions(),
        n=1,
        cache_salt=None,
        priority=0,
    )


def caller() -> Caller:
    return Caller(Tenant("t"), "req_1", asyncio.get_running_loop().time() + 60, 0)


async def ask(engine: FakeEngine, *listeners: Diary, leave: bool = False) -> None:
    desk = Desk(engine, TOKENIZER, Metrics("m", engine), Namespaces.of_this_process(), listeners)
    with desk.place(caller(), 1) as place:
        async with desk.submit(caller(), place, [job(1, 2, 3)]) as (generation,):
            if not leave:
                await generation.collect()
    async with asyncio.timeout(2):
        while engine.running or not all(listener.accounts for listener in listeners):  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def test_every_listener_is_told_all_of_it() -> None:
    engine, one, other = FakeEngine(), Diary(), Diary()
    engine.cached_tokens = 2
    await ask(engine, one, other)
    assert one.words == other.words == ["submitted", "started", "ended"]
    (submission,) = {id(submission): submission for _, submission in one.told}.values()
    assert (submission.caller.tenant.id, submission.job.prompt) == ("t", [1, 2, 3])
    assert one.accounts[0] is not None
    assert (one.accounts[0].cached, one.accounts[0].written) == (2, 1)


async def test_a_reader_that_leaves_is_accounted_for() -> None:
    engine, diary = FakeEngine(), Diary()
    await ask(engine, diary, leave=True)
    assert diary.words == ["submitted", "ended"]
    assert diary.accounts[0] is not None


async def test_a_failure_too() -> None:
    engine, diary = FakeEngine(), Diary()
    engine.die(RequestFailure("gone"))
    with pytest.raises(RequestFailure):
        await ask(engine, diary)
    async with asyncio.timeout(2):
        while not diary.accounts:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    assert diary.words[-1] == "ended"


async def test_the_end_is_told_when_both_sides_are_done() -> None:
    """The engine's account comes before its last words are read, or long after the reader left."""
    engine, diary = FakeEngine(), Diary()
    desk = Desk(engine, TOKENIZER, Metrics("m", engine), Namespaces.of_this_process(), [diary])
    with desk.place(caller(), 2) as place:
        async with desk.submit(caller(), place, [job(1, 2, 3)]) as (generation,):
            async with asyncio.timeout(2):
                while engine.running:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
            assert "ended" not in diary.words
            await generation.collect()
        assert diary.words == ["submitted", "started", "ended"]
        assert generation.error is None
        engine.prefill_delay = 0.01
        with pytest.raises(ValueError, match="left"):
            async with desk.submit(caller(), place, [job(1, 2, 3)]) as (generation,):
                raise ValueError("left")
    assert diary.words.count("ended") == 1
    assert isinstance(generation.error, ValueError)
    async with asyncio.timeout(2):
        while diary.words.count("ended") == 1:  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def test_pins_that_are_not_to_be_had_are_a_conflict(start: Start) -> None:
    engine = FakeEngine()
    engine.die(PinsExhausted("Nothing more can be pinned."))
    gateway = await start(engine)
    status, body = await gateway.post("/v1/completions", {"model": MODEL, "prompt": "Hello"})
    assert status == 409
    assert (body["error"]["code"], body["error"]["param"]) == ("pin_quota_exceeded", "cache.pin")


async def test_a_key_groups_what_a_request_leaves() -> None:
    engine, namespaces = FakeEngine(), Namespaces.of_this_process()
    desk = Desk(engine, TOKENIZER, Metrics("m", engine), namespaces)
    entry = EntrySpec(entry_id="e", tokens=2, lease=Lease(ttl=5))
    asked = replace(
        job(1, 2, 3),
        cache_key="agent 1",
        cache=CachePolicy(entries=(entry,)),
        sampling=SamplingParams(max_tokens=0),
        text=TextOptions(discard=True),
    )
    with desk.place(caller(), 1) as place:
        async with desk.submit(caller(), place, [asked]) as (generation,):
            await generation.collect()
    assert generation.usage.completion == 0
    assert generation.stored is not None
    assert generation.stored.entries == ("e",)
    (request,) = engine.requests
    assert request.cache == CachePolicy(entries=(entry,), group=namespaces.group("t", "agent 1"))
    assert request.namespace == namespaces.of("t")
