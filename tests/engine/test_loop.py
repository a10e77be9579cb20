import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec import structs

from cache.lease import FlushScope
from engine import channel as channel_module
from engine.assemble import assemble
from engine.channel import Channel
from engine.config import EngineConfig, HashModelConfig
from engine.hash_model import IM_END, reference
from engine.heartbeat import Phase, Progress
from engine.loop import EngineLoop
from engine.request import (
    Abort,
    AskState,
    CheckGrammar,
    EngineInfo,
    FlushCache,
    GenerationRequest,
    GrammarReport,
    RequestStarted,
    SamplingParams,
    SequenceDelta,
    SetFailpoint,
    Shutdown,
    StartFailed,
    StateReport,
    StepOutput,
    Submit,
    ToClient,
    ToEngine,
)
from grammar.spec import Lark
from tests.fakes import FakeCompiler

CONFIG = EngineConfig(hash_model=HashModelConfig(), test_mode=True)


class Client:
    """The other end of a loop that runs in a thread."""

    def __init__(self, path: Path, config: EngineConfig) -> None:
        self.channel = Channel.bind(path)
        self.progress = Progress()
        self.compiler = FakeCompiler()
        self.ready: list[str] = []
        self.tokens: dict[str, list[int]] = {}
        self.ended: dict[str, str] = {}
        self.started: list[RequestStarted] = []
        self.frames = 0
        self._path = path
        self._config = config
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()
        self.channel.wait(5)
        assert self.channel.receive() == StartFailed("hello", permanent=False)

    def _serve(self) -> None:
        channel = Channel.connect(self._path)
        channel.send(StartFailed("hello", permanent=False))
        engine = assemble(self._config, compiler=self.compiler.start)
        EngineLoop(engine, channel, self.progress).run()
        engine.close()
        channel.close()

    def say(self, *messages: ToEngine) -> None:
        for message in messages:
            assert self.channel.send(message)

    def read_some(self) -> list[ToClient]:
        """What has arrived, after a short wait."""
        waited = iter((False, True))
        return self.read(lambda: next(waited))

    def read(self, until: Callable[[], bool], seconds: float = 10) -> list[ToClient]:
        messages: list[ToClient] = []
        deadline = time.monotonic() + seconds
        while not until():
            assert time.monotonic() < deadline, "waited in vain"
            self.channel.wait(0.05)
            while (message := self.channel.receive()) is not None:
                messages.append(message)
                self._note(message)
        return messages

    def _note(self, message: ToClient) -> None:
        assert not isinstance(message, EngineInfo)
        if isinstance(message, StepOutput):
            self.frames += 1
            self.started += message.started
            self.ready += [ready.request_id for ready in message.ready]
            for delta in message.deltas:
                self._note_delta(delta)
            for failed in message.failed:
                self.ended[failed.request_id] = failed.kind

    def _note_delta(self, delta: SequenceDelta) -> None:
        if self.ended.get(delta.request_id) == "engine_error" and delta.finish == "abort":
            return  # one that was already on its way
        assert delta.request_id not in self.ended, "a delta after the end"
        self.tokens.setdefault(delta.request_id, []).extend(delta.tokens)
        if delta.finish is not None:
            self.ended[delta.request_id] = delta.finish

    def state(self) -> StateReport:
        self.say(AskState(5))
        reports: list[StateReport] = []

        def answered() -> bool:
            return bool(reports)

        deadline = time.monotonic() + 10
        while not answered():
            assert time.monotonic() < deadline
            self.channel.wait(0.05)
            while (message := self.channel.receive()) is not None:
                self._note(message)
                if isinstance(message, StateReport):
                    reports.append(message)
        return reports[0]

    def end(self) -> None:
        while not self.channel.send(Shutdown()):
            self.channel.receive()
        deadline = time.monotonic() + 10
        while self._thread.is_alive() and time.monotonic() < deadline:
            self.channel.receive()
            self._thread.join(0.01)
        assert not self._thread.is_alive(), "the loop did not end"
        self.channel.close()


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    client = Client(tmp_path / "s", CONFIG)
    yield client
    client.end()


def request(name: str, max_tokens: int = 20, prompt: str = "a prompt for everyone") -> GenerationRequest:
    return GenerationRequest(
        request_id=name,
        prompt=list(prompt.encode()),
        sampling=SamplingParams(max_tokens=max_tokens, seed=len(name)),
    )


def test_requests_are_answered_and_the_state_is_exact(client: Client) -> None:
    requests = [request("x" * i, prompt=f"prompt {i}") for i in range(1, 9)]
    client.say(*(Submit(one) for one in requests))
    client.read(lambda: len(client.ended) == 8)
    for one in requests:
        assert client.tokens[one.request_id] == reference(one.prompt, one.sampling)
    assert {started.request_id for started in client.started} == set(client.tokens)
    state = client.state()
    assert (state.query_id, state.phase, state.pages_held) == (5, "idle", 0)
    assert state.counters.generated_tokens == 8 * 20
    assert state.counters.pages_free + state.counters.pages_tree == state.counters.pages_total
    assert state.rss_bytes > 2**20
    client.say(FlushCache(9, FlushScope()))
    assert client.state().counters.pages_free == state.counters.pages_total


def test_one_frame_a_step_and_one_more_when_somebody_is_admitted(client: Client) -> None:
    client.say(*(Submit(request(name)) for name in ("a", "b", "c")))
    client.read(lambda: len(client.ended) == 3)
    assert client.frames <= client.progress.steps + len(client.started)


def test_who_is_admitted_hears_of_it_before_a_long_step(client: Client) -> None:
    client.say(SetFailpoint("slow_step=1:0.8"), Submit(request("a")))
    client.read(lambda: bool(client.started) and client.progress.phase is Phase.RUNNING, seconds=0.7)
    assert client.progress.steps == 0
    client.read(lambda: "a" in client.ended)


def test_an_abort_ends_a_request_within_a_step_and_gives_its_pages_back(client: Client) -> None:
    client.say(SetFailpoint("slow_step=2:0.2"), Submit(request("a", 10_000)), Submit(request("b", 10_000)))
    client.read(lambda: bool(client.tokens.get("a")))
    client.say(Abort(("a", "b", "nobody")))
    client.read(lambda: len(client.ended) == 2)
    assert client.ended == {"a": "abort", "b": "abort"}
    state = client.state()
    assert (state.pages_held, state.counters.running, state.counters.waiting) == (0, 0, 0)
    assert state.counters.aborted == 2


def test_a_deadline_passes_while_nothing_else_happens(client: Client) -> None:
    late = GenerationRequest(
        request_id="late", prompt=[1], sampling=SamplingParams(max_tokens=30_000), deadline=0.1
    )
    client.say(Submit(late))
    client.read(lambda: bool(client.ended), seconds=2)
    assert client.ended == {"late": "deadline"}


def test_a_client_that_does_not_read_stops_the_engine_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_module, "MAX_FRAMES_IN_FLIGHT", 10)
    client = Client(tmp_path / "s", CONFIG)
    # Some hundred bytes a token: the sockets' own buffers take a part of the answer, never all of it.
    one = GenerationRequest(request_id="a", prompt=[1], sampling=SamplingParams(max_tokens=3000, logprobs=20))
    client.say(Submit(one))
    seen = -1
    while seen != client.progress.steps:
        seen = client.progress.steps
        time.sleep(0.2)
    assert 0 < seen < 2500
    client.read(lambda: "a" in client.ended)
    assert client.tokens["a"] == reference(one.prompt, one.sampling)
    client.end()


def test_a_failpoint_that_is_none_is_ignored(client: Client) -> None:
    client.say(SetFailpoint("rm -rf"), SetFailpoint("nan_logits=900"), Submit(request("a")))
    client.read(lambda: "a" in client.ended)
    assert client.ended == {"a": "length"}
    assert client.state().failpoints == ("nan_logits=900",)


def test_an_answer_too_large_for_a_frame_fails_alone(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = SamplingParams(max_tokens=5, prompt_logprobs=20)
    huge = GenerationRequest(request_id="huge", prompt=[40] * 300, sampling=whole)
    small = [request(f"small{i}", prompt=f"prompt {i}") for i in range(4)]
    monkeypatch.setattr(channel_module, "MAX_FRAME", 20_000)
    client.say(Submit(huge), *(Submit(one) for one in small))
    client.read(lambda: len(client.ended) == 5)
    assert client.ended.pop("huge") == "engine_error"
    assert set(client.ended.values()) == {"length"}
    for one in small:
        assert client.tokens[one.request_id] == reference(one.prompt, one.sampling)


# ---- grammars --------------------------------------------------------------------------------------------------------


def constrained(name: str, grammar: str = "3") -> GenerationRequest:
    sampling = SamplingParams(max_tokens=20, stop_token_ids=(IM_END,))
    return GenerationRequest(request_id=name, prompt=[1, 2, 3], sampling=sampling, grammar=Lark(grammar))


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.001)


def test_an_idle_loop_sleeps_while_a_grammar_compiles_and_wakes_when_it_is_done(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float | None] = []
    wait = Channel.wait

    def counted(
        channel: Channel[ToClient, ToEngine], timeout: float | None, other: int | None = None
    ) -> None:
        if other is not None:  # the engine's
            waits.append(timeout)
        wait(channel, timeout, other)

    monkeypatch.setattr(Channel, "wait", counted)
    client.say(Submit(constrained("a")))
    until(lambda: bool(client.compiler.pending))
    time.sleep(0.1)
    assert 0 < len(waits) < 4
    assert waits[-1] is None
    client.compiler.finish()
    client.read(lambda: "a" in client.ended)
    assert client.ready == ["a"]
    assert client.tokens["a"]


def test_a_deadline_passes_while_a_grammar_compiles(client: Client) -> None:
    client.say(Submit(structs.replace(constrained("a"), deadline=0.1)))
    client.read(lambda: bool(client.ended), seconds=2)
    assert client.ended == {"a": "deadline"}
    client.compiler.finish()
    assert client.state().counters.grammars.compiling == 0


def test_an_abort_and_the_end_do_not_wait_for_a_compilation(tmp_path: Path) -> None:
    client = Client(tmp_path / "s", CONFIG)
    client.say(Submit(constrained("a")), Submit(constrained("b")))
    until(lambda: len(client.compiler.pending) == 2)
    client.say(Abort(("a",)))
    client.read(lambda: bool(client.ended))
    assert client.ended == {"a": "abort"}
    client.end()
    assert client.compiler.closed
    client.compiler.finish()


def test_a_grammar_is_checked_between_other_things(client: Client) -> None:
    client.say(CheckGrammar(8, Lark("3")), CheckGrammar(9, Lark("none")), Submit(request("free")))
    until(lambda: len(client.compiler.pending) == 2)
    client.compiler.finish()
    reports: list[GrammarReport] = []
    while len(reports) < 2 or "free" not in client.ended:
        reports += [message for message in client.read_some() if isinstance(message, GrammarReport)]
    assert [(report.query_id, report.kind) for report in reports] == [(8, None), (9, "bad_grammar")]
