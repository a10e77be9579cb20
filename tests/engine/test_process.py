"""With real child processes and the hash model: what a client of the engine sees, whatever happens to the child."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import zmq
from blockbuster import BlockBuster
from msgspec import structs

from cache.lease import CachePolicy, EntrySpec, FlushScope, Lease, TenantLimits
from engine.backlog import QueueLimits
from engine.client import RequestStream
from engine.config import EngineConfig, HashModelConfig
from engine.errors import (
    BadRequest,
    DeadlineExceeded,
    EngineDied,
    EngineUnavailable,
    GrammarRefused,
    PinsExhausted,
    QueueFull,
    RequestFailure,
    StartError,
)
from engine.hash_model import IM_END, reference
from engine.heartbeat import Watchdog
from engine.private_directory import PrivateDirectory
from engine.process import EngineProcess
from engine.request import GenerationRequest, GrammarReady, RequestStarted, SamplingParams, SequenceDelta
from engine.restarts import RestartPolicy
from grammar.spec import Choice, Grammar, Regex

CONFIG = EngineConfig(hash_model=HashModelConfig(), test_mode=True)
ENDLESS = 30_000


@pytest.fixture(autouse=True)
def nothing_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Children put their sockets below a directory of the test's own (a short path: sockets allow no long ones)."""
    with tempfile.TemporaryDirectory(prefix="hw") as directory:
        monkeypatch.setattr(tempfile, "tempdir", directory)
        yield
        assert list(Path(directory).iterdir()) == []


@asynccontextmanager
async def running(
    config: EngineConfig = CONFIG,
    *,
    limits: QueueLimits | None = None,
    watchdog: Watchdog | None = None,
    restarts: RestartPolicy | None = None,
) -> AsyncIterator[EngineProcess]:
    engine = EngineProcess(config, limits=limits, watchdog=watchdog, restarts=restarts)
    await engine.start()
    try:
        await engine.ready()
        yield engine
    finally:
        pid = engine.health.pid
        await engine.stop()
        assert pid is None or gone(pid), "the child is still there"


def gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state in "ZX"  # dead, and somebody else's to reap


def request(name: str, max_tokens: int = 20, *, n: int = 1, tenant: str = "") -> GenerationRequest:
    return GenerationRequest(
        request_id=name,
        prompt=list(f"a prompt for {name}".encode()),
        sampling=SamplingParams(max_tokens=max_tokens, seed=len(name)),
        n=n,
        tenant=tenant,
    )


def submit(engine: EngineProcess, request: GenerationRequest) -> RequestStream:
    with engine.reserve(request.tenant, 1) as place:
        place.weigh(len(request.prompt))
        return engine.submit(request, place)


async def tokens_of(stream: RequestStream, index: int = 0) -> list[int]:
    tokens: list[int] = []
    while events := await stream.read():
        for event in events:
            if isinstance(event, SequenceDelta) and event.index == index:
                tokens += event.tokens
    return tokens


async def started(stream: RequestStream) -> None:
    while not any(isinstance(event, SequenceDelta) for event in await stream.read()):
        pass


async def right(engine: EngineProcess, name: str = "after") -> bool:
    one = request(name)
    return await tokens_of(submit(engine, one)) == reference(one.prompt, one.sampling)


async def until(condition: Callable[[], bool], seconds: float) -> float:
    """Wait for it; how long it took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds, "waited in vain"
        await asyncio.sleep(0.01)
    return time.monotonic() - began


def pid_of(engine: EngineProcess) -> int:
    pid = engine.health.pid
    assert pid is not None
    return pid


async def failure_of(awaitable: Awaitable[object]) -> BaseException:
    with pytest.raises(RequestFailure) as raised:
        await awaitable
    return raised.value


# ---- serving ---------------------------------------------------------------------------------------------------------


async def test_many_at_once_with_aborts_are_answered_exactly() -> None:
    async def whole(engine: EngineProcess, number: int) -> None:
        one = request(f"r{number % 7}.{number}", 5 + number, n=1 + number % 3)
        choices = [submit(engine, one)]
        events: list[SequenceDelta] = []
        while batch := await choices[0].read():
            events += [event for event in batch if isinstance(event, SequenceDelta)]
        for index in range(one.n):
            tokens = [token for event in events if event.index == index for token in event.tokens]
            assert tokens == reference(one.prompt, one.sampling, index)

    async def aborted(engine: EngineProcess, number: int) -> None:
        one = request(f"a{number}", ENDLESS)
        stream = submit(engine, one)
        if number % 2:
            await started(stream)
        stream.abort()
        stream.abort()
        assert await stream.read() == [] or stream.done

    async with running() as engine:
        tasks = [whole(engine, number) for number in range(40)] + [
            aborted(engine, number) for number in range(12)
        ]
        await asyncio.gather(*tasks)
        assert engine.queue.requests == engine.queue.tokens == 0
        assert not engine._streams
        state = await engine.state()
        assert (state.pages_held, state.counters.running, state.counters.waiting) == (0, 0, 0)


async def test_one_choice_can_be_stopped_alone() -> None:
    async with running() as engine:
        one = request("a", 200, n=2)
        stream = submit(engine, one)
        stream.abort(0)
        assert await tokens_of(stream, 1) == reference(one.prompt, one.sampling, 1)


async def test_an_abort_gives_the_pages_back() -> None:
    async with running() as engine:
        baseline = await engine.state()
        streams = [submit(engine, request(f"r{number}", ENDLESS)) for number in range(8)]
        await asyncio.gather(*map(started, streams))
        assert (await engine.state()).counters.running == 8
        for stream in streams:
            stream.abort()
        state = await engine.state()
        assert (state.pages_held, state.counters.running) == (0, 0)
        await engine.flush_cache(FlushScope())
        assert (await engine.state()).counters.pages_free == baseline.counters.pages_free
        assert engine.counters.running == 0


async def test_an_abort_that_could_not_be_sent_is_sent_later(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running() as engine:
        stream = submit(engine, request("a", ENDLESS))
        await started(stream)
        monkeypatch.setattr(engine._supervisor, "send", lambda message: False)
        stream.abort()
        with pytest.raises(QueueFull, match="too far behind"):
            submit(engine, request("b"))
        monkeypatch.delattr(engine._supervisor, "send")
        await until(lambda: engine.counters.aborted == 1, 2)


async def test_bad_requests_are_refused_before_they_are_sent() -> None:
    async with running() as engine:
        stream = submit(engine, request("a", ENDLESS))
        for bad in (
            request("a"),
            request("b", -1),
            GenerationRequest(request_id="c", prompt=[999], sampling=SamplingParams(max_tokens=1)),
        ):
            with pytest.raises(BadRequest):
                submit(engine, bad)
        assert engine.queue.requests <= 1
        stream.abort()
        assert await right(engine)


async def test_a_deadline_is_told_apart_from_other_failures() -> None:
    async with running() as engine:
        one = GenerationRequest(
            request_id="late", prompt=[1], sampling=SamplingParams(max_tokens=ENDLESS), deadline=0.05
        )
        assert isinstance(await failure_of(tokens_of(submit(engine, one))), DeadlineExceeded)


async def test_the_queue_is_bounded_at_once_and_by_tenant() -> None:
    config = EngineConfig(hash_model=HashModelConfig(), test_mode=True, max_running=1)
    limits = QueueLimits(requests=3, tokens=100, tenant_requests=2)
    async with running(config, limits=limits) as engine:
        first = submit(engine, request("first", ENDLESS, tenant="a"))
        await started(first)
        assert engine.queue.requests == 0
        streams = [submit(engine, request(f"r{number}", 3, tenant="a")) for number in range(2)]
        began = time.perf_counter()
        for _ in range(100):
            with pytest.raises(QueueFull, match="this key") as raised:
                submit(engine, request("r2", tenant="a"))
        assert (time.perf_counter() - began) / 100 < 0.005
        assert raised.value.tenant
        assert 1 <= raised.value.retry_after <= 60
        streams.append(submit(engine, request("r3", 3, tenant="b")))
        with pytest.raises(QueueFull, match=r"requests are waiting \(limit 3"):
            submit(engine, request("r4", tenant="c"))
        streams.pop(0).abort()
        long = GenerationRequest(request_id="l", prompt=[1] * 90, sampling=SamplingParams(max_tokens=1))
        with pytest.raises(QueueFull, match="prompt tokens"):
            submit(engine, long)
        first.abort()
        await asyncio.gather(*map(tokens_of, streams))
        assert (engine.queue.requests, engine.queue.tokens) == (0, 0)


async def test_a_faulty_step_fails_its_requests_and_no_others() -> None:
    async with running() as engine:
        engine.set_failpoint("forward_raises=5")
        first = [submit(engine, request(f"first{number}", 50)) for number in range(4)]
        for stream in first:
            failure = await failure_of(tokens_of(stream))
            assert not isinstance(failure, EngineDied)
        assert await right(engine)
        assert engine.health.restarts == 0


async def test_failpoints_are_refused_outside_test_mode_and_when_they_are_none() -> None:
    async with running() as engine:
        with pytest.raises(BadRequest, match="no failpoint"):
            engine.set_failpoint("surprise=1")
        engine.set_failpoint("off")
    async with running(EngineConfig(hash_model=HashModelConfig())) as engine:
        with pytest.raises(BadRequest, match="test mode"):
            engine.set_failpoint("crash=1")


# ---- grammars --------------------------------------------------------------------------------------------------------


def constrained(name: str, grammar: Grammar, max_tokens: int = 200) -> GenerationRequest:
    return structs.replace(
        request(name),
        grammar=grammar,
        sampling=SamplingParams(max_tokens=max_tokens, seed=1, stop_token_ids=(IM_END,)),
    )


async def test_a_grammar_is_ready_before_its_request_starts_and_refused_ones_harm_nobody() -> None:
    async with running() as engine:
        free = submit(engine, request("free", 2000))
        good = submit(engine, constrained("good", Choice(("one answer", "another answer"))))
        bad = submit(engine, constrained("bad", Regex("(")))
        events = [event for event in await good.read() if not isinstance(event, SequenceDelta)]
        while len(events) < 2:
            events += [event for event in await good.read() if not isinstance(event, SequenceDelta)]
        assert isinstance(events[0], GrammarReady)
        assert isinstance(events[1], RequestStarted)
        assert isinstance(await failure_of(tokens_of(bad)), GrammarRefused)
        again = submit(engine, constrained("again", Choice(("one answer", "another answer"))))
        assert bytes((await tokens_of(again))[:-1]).decode() in ("one answer", "another answer")
        free.abort()
        assert await right(engine)
        counters = (await engine.state()).counters
        assert (counters.grammars.compiled, counters.grammars.cached, counters.grammars.refused) == (1, 1, 1)
        assert engine.queue.requests == 0


async def test_what_compiles_is_there_before_the_first_grammar() -> None:
    async with running() as engine:
        await until(lambda: any(path.read_text() for path in tasks_of(pid_of(engine))), 20)


def tasks_of(pid: int) -> list[Path]:
    """Where the kernel lists the children of each of a process's threads (proc(5))."""
    return [path / "children" for path in Path(f"/proc/{pid}/task").iterdir()]


async def test_an_engine_that_dies_while_it_compiles_ends_what_waits_for_that() -> None:
    async with running() as engine:
        stream = submit(engine, constrained("a", Regex("(a|b){1,200}c")))
        asked = asyncio.ensure_future(engine.check_grammar(Regex("(b|c){1,200}d")))
        os.kill(pid_of(engine), signal.SIGKILL)
        assert isinstance(await failure_of(tokens_of(stream)), EngineDied)
        with pytest.raises(EngineUnavailable):
            await asked
        await engine.ready()
        report = await engine.check_grammar(Regex("(b|c){1,200}d"))
        assert report.error is None
        assert report.backend == "llguidance"


# ---- the child dies, freezes, hangs ----------------------------------------------------------------------------------


async def test_limits_that_were_changed_outlive_the_engine() -> None:
    async with running() as engine:
        refused = await engine.set_limits({}, TenantLimits(pins=2.0))
        assert "pins of others is a share" in (refused or "")
        assert await engine.set_limits({"t": TenantLimits(pins=0.0)}, TenantLimits()) is None
        os.kill(pid_of(engine), signal.SIGKILL)
        while engine.health.restarts == 0 or engine.health.status != "ready":  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        entry = EntrySpec(entry_id="e", tokens=4, lease=Lease(ttl=9.0, pin="hard"))
        pinned = structs.replace(request("p", tenant="t"), cache=CachePolicy(entries=(entry,)))
        assert isinstance(await failure_of(tokens_of(submit(engine, pinned))), PinsExhausted)


async def test_a_killed_engine_fails_its_streams_at_once_and_comes_back() -> None:
    async with running() as engine:
        streams = [submit(engine, request(f"r{number}", ENDLESS)) for number in range(8)]
        await asyncio.gather(*map(started, streams))
        question = asyncio.ensure_future(engine.state())
        await asyncio.sleep(0)
        began = time.monotonic()
        os.kill(pid_of(engine), signal.SIGKILL)
        failures = await asyncio.gather(*(failure_of(tokens_of(stream)) for stream in streams))
        assert time.monotonic() - began < 0.5
        assert all(isinstance(failure, EngineDied) for failure in failures)
        await asyncio.gather(question, return_exceptions=True)  # answered or refused, but over
        with pytest.raises(EngineUnavailable) as raised:
            submit(engine, request("too early"))
        assert raised.value.retry_after >= 1
        await engine.ready()
        assert time.monotonic() - began < 5
        assert engine.health.restarts == 1
        assert engine.queue.requests == 0
        streams[0].abort()  # of a request the new child has never heard of
        assert await right(engine, "r0")


async def test_what_has_served_is_started_again_until_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the disk with the model is away for a while: it need not matter what a start stumbles over."""
    async with running(restarts=RestartPolicy(limit=1, longest=0.01)) as engine:
        supervisor = engine._supervisor
        supervisor._config = EngineConfig(hash_model=HashModelConfig(), max_step_tokens=1, max_running=2)
        os.kill(pid_of(engine), signal.SIGKILL)
        await until(lambda: engine.health.restarts > 3, 20)
        assert engine.health.status == "restarting"
        assert "cannot advance" in engine.health.detail
        supervisor._config = CONFIG
        with monkeypatch.context() as patch:
            patch.setattr(sys, "executable", "/nonexistent/python")
            tried = engine.health.restarts
            await until(lambda: engine.health.restarts > tried + 4, 20)
            assert engine.health.status == "restarting"
            assert "nonexistent" in engine.health.detail
        await engine.ready()
        assert await right(engine)


async def test_a_frozen_engine_is_noticed_and_replaced() -> None:
    async with running() as engine:
        stream = submit(engine, request("a", ENDLESS))
        await started(stream)
        frozen = pid_of(engine)
        os.kill(frozen, signal.SIGSTOP)
        assert await until(lambda: engine.health.status != "ready", 3) > 1.5
        assert engine.health.status == "unresponsive"
        with pytest.raises(EngineUnavailable):
            submit(engine, request("b"))
        assert await until(lambda: engine.health.status == "ready", 3) < 2.5
        assert isinstance(await failure_of(tokens_of(stream)), EngineDied)
        assert gone(frozen)
        assert await right(engine)


async def test_an_engine_that_recovers_in_time_loses_nothing() -> None:
    async with running(watchdog=Watchdog(late_after=0.5, frozen_after=5)) as engine:
        one = request("a", 2000)
        stream = submit(engine, one)
        os.kill(pid_of(engine), signal.SIGSTOP)
        await until(lambda: engine.health.status == "unresponsive", 2)
        os.kill(pid_of(engine), signal.SIGCONT)
        await until(lambda: engine.health.status == "ready", 2)
        assert await tokens_of(stream) == reference(one.prompt, one.sampling)
        assert engine.health.restarts == 0


async def test_a_long_step_does_not_look_frozen() -> None:
    async with running(watchdog=Watchdog(late_after=0.5, frozen_after=0.9)) as engine:
        engine.set_failpoint("slow_step=2:1.8")
        one = request("a")
        reading = asyncio.ensure_future(tokens_of(submit(engine, one)))
        while not reading.done():
            assert engine.health.status == "ready"
            await asyncio.sleep(0.02)
        assert reading.result() == reference(one.prompt, one.sampling)
        assert engine.health.restarts == 0


async def test_a_stuck_step_is_ended() -> None:
    async with running(watchdog=Watchdog(stuck_after=0.6)) as engine:
        await asyncio.sleep(0.8)  # idleness is not being stuck
        assert engine.health.restarts == 0
        engine.set_failpoint("slow_step=2:60")
        assert isinstance(await failure_of(tokens_of(submit(engine, request("a")))), EngineDied)
        assert "no step done" in engine.health.detail
        await engine.ready()
        assert await right(engine)


async def test_a_gateway_that_was_stopped_itself_blames_nobody() -> None:
    async with running(watchdog=Watchdog(late_after=0.5, frozen_after=0.9)) as engine:
        os.kill(pid_of(engine), signal.SIGSTOP)
        time.sleep(1.5)  # noqa: ASYNC251 - the point: our own event loop stands still
        os.kill(pid_of(engine), signal.SIGCONT)
        await asyncio.sleep(0.6)
        assert engine.health.restarts == 0
        assert await right(engine)


async def test_a_request_that_crashes_the_engine_twice_is_refused_and_a_third_crash_is_the_last() -> None:
    # Steps of no time at all would let the engine die before the frame that says who is in the batch has left it.
    slow = HashModelConfig(step_delay=0.01)
    config = EngineConfig(hash_model=slow, test_mode=True, failpoints=("crash=20",))
    async with running(config, restarts=RestartPolicy(limit=2, longest=0.1)) as engine:
        for attempt in range(2):
            one = GenerationRequest(
                request_id=f"attempt{attempt}",
                prompt=[1, 2, 3],
                sampling=SamplingParams(max_tokens=ENDLESS, seed=attempt),
            )
            assert isinstance(await failure_of(tokens_of(submit(engine, one))), EngineDied)
            await engine.ready()
        with pytest.raises(BadRequest, match="attempt1 is refused"):
            submit(engine, one)
        assert isinstance(await failure_of(tokens_of(submit(engine, request("other", ENDLESS)))), EngineDied)
        with pytest.raises(StartError, match=r"given up after 3 crashes.*SIGABRT"):
            await engine.ready()
        assert engine.health.status == "failed"
        with pytest.raises(EngineUnavailable, match="SIGABRT"):
            submit(engine, request("never"))
        with pytest.raises(EngineUnavailable):
            await engine.state()


async def test_requests_killed_from_outside_are_not_to_blame() -> None:
    async with running() as engine:
        for attempt in range(3):
            stream = submit(engine, request("same", ENDLESS))
            await started(stream)
            if attempt == 2:
                stream.abort()
                break
            os.kill(pid_of(engine), signal.SIGKILL)
            await failure_of(tokens_of(stream))
            await engine.ready()


async def test_an_engine_that_cannot_start_says_why_and_is_not_tried_again() -> None:
    config = EngineConfig(hash_model=HashModelConfig(vocab_size=3))
    with pytest.raises(StartError, match="vocabulary has 259"):
        async with running(config) as engine:
            pytest.fail(f"ready: {engine.health}")


async def test_an_engine_that_cannot_be_spawned_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    with pytest.raises(StartError, match=r"given up after 2 crashes.*nonexistent"):
        async with running(restarts=RestartPolicy(limit=1)) as engine:
            pytest.fail(f"ready: {engine.health}")


# ---- the border ------------------------------------------------------------------------------------------------------


async def test_strange_frames_and_strangers_at_the_socket_change_nothing() -> None:
    async with running() as engine:
        stream = submit(engine, one := request("a", 3000))
        await started(stream)
        assert engine._supervisor._life is not None
        child = engine._supervisor._life.child
        socket = child._parts.directory.path / "engine.sock"
        for frame in (b"", b"\x80\x04K\x01.", os.urandom(5000)):
            child._channel._socket.send(frame)
        stranger = zmq.Context()
        intruder = stranger.socket(zmq.PAIR)
        intruder.connect(f"ipc://{socket}")
        await asyncio.sleep(0.05)
        await tokens_of(stream)
        assert await right(engine)
        assert await tokens_of(submit(engine, request("b"))) == reference(
            request("b").prompt, request("b").sampling
        )
        stranger.destroy(linger=0)
        assert engine.health.restarts == 0
        assert one.request_id not in engine._streams


async def test_signals_meant_for_the_gateway_do_not_end_the_engine() -> None:
    async with running() as engine:
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(pid_of(engine), number)
        await asyncio.sleep(0.1)
        assert await right(engine)
        assert engine.health.restarts == 0


async def test_nothing_blocks_the_event_loop() -> None:
    detector = BlockBuster()
    detector.activate()
    try:
        engine = EngineProcess(CONFIG)
        await engine.start()
        info = await engine.ready()
        stream = submit(engine, request("a", ENDLESS))
        await started(stream)
        os.kill(info.pid, signal.SIGKILL)
        await failure_of(tokens_of(stream))
        await engine.ready()
        await engine.state()
        await engine.stop()
    finally:
        detector.deactivate()


# ---- ends ------------------------------------------------------------------------------------------------------------


async def test_stop_ends_what_is_in_flight_and_is_final() -> None:
    async with running() as engine:
        stream = submit(engine, request("a", ENDLESS))
        await started(stream)
        began = time.monotonic()
        await engine.stop()
        assert time.monotonic() - began < 1.5
        with pytest.raises(EngineDied, match="shutting down"):
            await tokens_of(stream)
        with pytest.raises(EngineUnavailable):
            submit(engine, request("b"))
        with pytest.raises(StartError):
            await engine.ready()
        await engine.stop()
        assert (engine.health.status, engine.health.detail) == ("stopped", "it was told to")


async def test_stop_while_starting() -> None:
    engine = EngineProcess(CONFIG)
    await engine.start()
    await asyncio.sleep(0.02)
    began = time.monotonic()
    await engine.stop()
    assert time.monotonic() - began < 1.5


async def test_stop_does_not_wait_long_for_a_frozen_engine() -> None:
    async with running(watchdog=Watchdog(stop_timeout=0.2)) as engine:
        os.kill(pid_of(engine), signal.SIGSTOP)
        began = time.monotonic()
        await engine.stop()
        assert time.monotonic() - began < 1.5


PARENT = """
import asyncio, sys
from engine.config import EngineConfig, HashModelConfig
from engine.process import EngineProcess

async def main():
    engine = EngineProcess(EngineConfig(hash_model=HashModelConfig()))
    await engine.start()
    print((await engine.ready()).pid, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.parametrize("stopped", [False, True])
def test_a_child_does_not_outlive_a_killed_parent(stopped: bool) -> None:
    environment = {**os.environ, "TMPDIR": tempfile.gettempdir()}
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True, env=environment
    )
    try:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        if stopped:
            os.kill(pid, signal.SIGSTOP)
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()
    deadline = time.monotonic() + 2
    while not gone(pid):
        assert time.monotonic() < deadline, "the child lives on"
        time.sleep(0.01)
    PrivateDirectory().close()  # whoever comes next removes what the dead could not


def test_started_by_hand_it_says_so() -> None:
    child = subprocess.run(
        [sys.executable, "-m", "engine"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert child.returncode == 1
    assert "started by its gateway" in child.stderr


# ---- accounts --------------------------------------------------------------------------------------------------------


async def test_the_account_of_an_aborted_request_comes_after_its_reader_has_left() -> None:
    async with running() as engine:
        stream = submit(engine, request("a", ENDLESS))
        closed: list[RequestStream] = []
        stream.when_ended = closed.append
        await started(stream)
        stream.abort()
        assert not closed
        await until(lambda: bool(closed), 5)
        account = stream.account
        assert account is not None
        assert account.started
        assert account.computed > 0
        assert account.generated > 0
        assert account.written <= len(stream.request.prompt)
        assert not engine._streams
        assert not engine._leaving


async def test_every_request_has_one_account_however_it_ends() -> None:
    async with running() as engine:
        accounts: list[str] = []
        streams = [submit(engine, request(f"r{i}", 30, n=1 + i % 2)) for i in range(12)]
        for i, stream in enumerate(streams):
            stream.when_ended = lambda ended: accounts.append(ended.request.request_id)
            if i % 3 == 0:
                stream.abort(i % 2 or None)
        for stream in streams:
            await tokens_of(stream)
        await until(lambda: len(accounts) == len(streams), 5)
        assert sorted(accounts) == sorted(stream.request.request_id for stream in streams)


async def test_no_account_comes_from_an_engine_that_died() -> None:
    async with running(restarts=RestartPolicy(longest=0.01)) as engine:
        reading, left = (submit(engine, request(name, ENDLESS)) for name in ("reading", "left"))
        closed: list[RequestStream] = []
        reading.when_ended = left.when_ended = closed.append
        await started(left)
        os.kill(pid_of(engine), signal.SIGSTOP)
        left.abort()
        os.kill(pid_of(engine), signal.SIGKILL)
        await failure_of(tokens_of(reading))
        assert set(closed) == {reading, left}
        assert reading.account is left.account is None
        assert not engine._leaving


# ---- questions about the cache ---------------------------------------------------------------------------------------


async def test_what_is_asked_of_the_cache_is_answered_between_steps() -> None:
    async with running() as engine:
        policy = CachePolicy(entries=(EntrySpec(entry_id="e", tokens=20, lease=Lease(ttl=60.0, tag="t")),))
        one = GenerationRequest(
            request_id="one",
            prompt=list(range(40)),
            sampling=SamplingParams(max_tokens=3),
            tenant="t",
            namespace=b"n",
            cache=policy,
        )
        busy = submit(engine, request("busy", ENDLESS))
        stream = submit(engine, one)
        await tokens_of(stream)
        assert stream.account is not None
        assert stream.account.entries == ("e",)
        found = await engine.look_up(one.prompt, namespace=b"n")
        assert found.device == 39
        assert (await engine.look_up(one.prompt, namespace=b"other")).device == 0
        assert found.saved >= 0
        report = await engine.entry("e", lease=Lease(ttl=90.0))
        assert report.entry is not None
        assert report.entry.lease.ttl == 90.0
        engine.lease_tip("one", Lease(ttl=60.0, pause=True))
        engine.lease_tip("nobody", Lease(ttl=60.0, pause=True))
        (tenant,) = (await engine.cache_report("t")).tenants
        assert tenant.bytes["device"] > 0
        assert engine.counters.cache.entries == 1
        flushed = await engine.flush_cache(FlushScope(tenant="t"))
        assert (flushed.tokens, flushed.entries) == ({"device": 42, "host": 0}, 1)
        assert (await engine.look_up(one.prompt, namespace=b"n")).device == 0
        busy.abort()


async def test_pins_over_the_share_fail_their_request_alone() -> None:
    config = structs.replace(CONFIG, pages=64, max_model_len=128, other_tenants=TenantLimits(pins=0.0))
    async with running(config) as engine:
        policy = CachePolicy(entries=(EntrySpec(entry_id="e", tokens=10, lease=Lease(pin="hard")),))
        stream = submit(engine, structs.replace(request("pins"), cache=policy))
        assert isinstance(await failure_of(tokens_of(stream)), PinsExhausted)
        await until(lambda: stream.account is not None, 5)
        assert await right(engine)
