"""A client that leaves costs nothing any more, whatever its request was doing, and disturbs nobody."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

import pytest

from . import wire
from .server import Server, wait_for
from .traffic import Ask, chat, check, completion, http

RUNNING = 6
STEP = 0.004
SECONDS_TO_NOTICE = 1.0
SLOW = ("--max-running", str(RUNNING), "--max-step-tokens", "64", "--hash-step-delay", str(STEP))


@pytest.fixture(scope="module")
def slow_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Six sequences at once, a prompt of 3,000 tokens takes 47 steps, a token 4 ms."""
    started = Server(tmp_path_factory.mktemp("slow"), "--drain-delay", "0", *SLOW)
    yield started
    started.stop()


class Leaver:
    """A connection with a request on it, brought into a phase and then cut."""

    def __init__(self, server: Server, ask: Ask, how: str) -> None:
        self.server = server
        self.ask = ask
        self.how = how

    def run(self, phase: Callable[[Leaver], None]) -> None:
        with wire.connected(self.server) as sock:
            self.sock = sock
            sock.sendall(wire.asking(self.ask))
            phase(self)
            wire.leave(sock, self.how)

    def engine(self, name: str) -> int:
        value: int = self.server.engine()[name]
        return value


def while_queued(leaver: Leaver) -> None:
    """Others fill every place, so it waits."""
    wait_for(lambda: leaver.engine("waiting") >= leaver.ask.body["n"], 3, "a queued request")


def in_prefill(leaver: Leaver) -> None:
    before = leaver.engine("prompt_tokens")
    wait_for(lambda: leaver.engine("prompt_tokens") > before or leaver.engine("running") > 2, 3, "a prefill")


def while_decoding(leaver: Leaver) -> None:
    if leaver.ask.body["stream"]:
        wire.read_until(leaver.sock, b'"text":"')
    else:
        before = leaver.engine("generated_tokens")
        wait_for(lambda: leaver.engine("generated_tokens") > before + 12, 3, "a decode")


def at_the_last_token(leaver: Leaver) -> None:
    """As soon as the end is to be seen: the finish in the stream, the first bytes of a whole answer."""
    wire.read_until(
        leaver.sock, b'"finish_reason":"length"' if leaver.ask.body["stream"] else b"HTTP/1.1 200"
    )


PHASES = {
    "queued": (while_queued, 30, 400),
    "prefill": (in_prefill, 3000, 400),
    "decode": (while_decoding, 30, 400),
    "last token": (at_the_last_token, 30, 8),
}


@pytest.mark.parametrize("how", ["FIN", "RST"])
@pytest.mark.parametrize("n", [1, 4])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("phase", PHASES)
async def test_leaving(slow_server: Server, phase: str, stream: bool, n: int, how: str) -> None:
    server = slow_server
    bring, prompt, answer = PHASES[phase]
    others = RUNNING if phase == "queued" else 2
    tag = f"{phase} {stream} {n} {how} "
    ask = completion((tag * 200)[:prompt], max_tokens=answer, n=n, stream=stream)
    stay = [chat(f"stay {tag} {k}", max_tokens=40, stream=k % 2 == 0) for k in range(others)]
    async with http() as session, asyncio.TaskGroup() as group:
        for one in stay:
            group.create_task(check(session, server, one))
        await asyncio.to_thread(wait_for, lambda: server.engine()["running"] == others, 3, "the others")
        await asyncio.to_thread(Leaver(server, ask, how).run, bring)
        left = time.monotonic()
        await asyncio.to_thread(
            wait_for, lambda: _alone(server, others), SECONDS_TO_NOTICE, "it to be noticed"
        )
        noticed = time.monotonic() - left
    await asyncio.to_thread(server.settled)
    print(
        f"{phase}, {'streamed' if stream else 'whole'}, n={n}, {how}: noticed after {noticed * 1000:.0f} ms"
    )


def _alone(server: Server, others: int) -> bool:
    """Nobody waits, no more run than those that stayed, and the gateway has forgotten the one that left."""
    state = server.state()
    engine, gateway = state["engine"], state["gateway"]
    counts = engine["running"], gateway["requests_open"]
    return engine["waiting"] == 0 and gateway["requests_queued"] == 0 and max(counts) <= others


def test_the_engine_stops_within_a_step(serve: Callable[..., Server]) -> None:
    """Steps of 0.1 s: the one under way when the client left is finished, and at most one more begins."""
    server = serve("--hash-step-delay", "0.1")
    for stream in (False, True):
        begun = server.engine()["generated_tokens"]
        with wire.connected(server) as sock:
            sock.sendall(wire.asking(completion("slowly", max_tokens=200, stream=stream)))
            wait_for(lambda start=begun: server.engine()["generated_tokens"] > start + 2, 5, "some steps")
            before = server.engine()["steps"]
            wire.leave(sock, "FIN")
        server.settled(2.0)
        assert server.engine()["steps"] - before <= 2
    assert server.engine()["aborted"] == 2


def test_one_choice_that_ends_early_leaves_the_others(server: Server) -> None:
    """A stop string found in one of four choices ends that one alone."""
    ask = chat("four of them", n=4, temperature=1.0, seed=9, max_tokens=80)
    stop = ask.choices[2].text[20:24]
    body = {**ask.body, "stop": stop}
    expected = {k: choice.stopped(stop) for k, choice in enumerate(ask.choices)}
    reply = server.post(ask.path, body)
    got = {
        choice["index"]: (choice["message"]["content"], choice["finish_reason"])
        for choice in reply.json()["choices"]
    }
    assert got == expected
