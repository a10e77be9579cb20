"""What records and reasons cost: `python -m tests.bench.explain_cost [MODEL_DIR]`.

First what a request pays on the gateway's event loop, in microseconds of CPU time: a record of it, and the reason that
`x-cache` tells, for prompts that have nothing in common, conversations that go on, and prompts that part at their
beginning, which cost most. The record is made while the engine is at work already; the reason is what an answer waits for.
Then what asking for an explanation takes. Then what a chat of 2,000 tokens takes that is not cached, by the hash model
through the whole stack, with records and without. With MODEL_DIR the prompts are tokenised as that model does, which makes
texts four times as long of as many tokens.
"""

from __future__ import annotations

import http.client
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from engine.client import RequestStream
from engine.request import GenerationRequest, PromptCached, RequestEnded, RequestStarted, SamplingParams
from gateway.auth import Tenant
from gateway.caching.common import common_tokens
from gateway.caching.diagnoser import Diagnoser
from gateway.caching.explanation import wire
from gateway.caching.namespaces import Namespaces
from gateway.caching.recorder import Recorder
from gateway.caching.records import Origin, Record, Records
from gateway.caller import Caller
from gateway.chat_template import ChatTemplate, Message
from gateway.desk import Job, Submission
from gateway.generation import Generation
from gateway.pieces import TextOptions
from gateway.tokenizer import Tokenizer
from tests.fakes import FakeEngine

from .served import serve
from .text_cost import WORDS

TOKENS = 2_000
ROUNDS = 60
COLD = 600
STEADY = 2 << 20
"""Bytes of records, so that old ones soon make room for new ones, as in a server that has run for a while."""
JSON = {"Content-Type": "application/json"}


def main() -> None:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    tokenizer = Tokenizer.hash() if path is None else Tokenizer.load(path)
    template = ChatTemplate.hash(tokenizer) if path is None else ChatTemplate.load(path, tokenizer)
    assert template is not None
    bench = Bench(tokenizer, template)
    for name, turns in (
        ("unlike all others", bench.unlike),
        ("a conversation that goes on", bench.going_on),
        ("parts at its beginning", bench.parting),
    ):
        record, reason, end, said = bench.measure(turns())
        print(f"{name:30} record {record:6.0f} us  reason {reason:6.0f} us  end {end:4.0f} us  ({said})")
    print(f"{'an explanation, asked for':30} {bench.explaining():6.0f} us")
    if path is None:
        _compare()


class Bench:
    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._rng = random.Random(0)
        self._engine: Any = FakeEngine()
        self._records = Records(most_bytes=64 << 20, ttl=7200.0)
        self._diagnoser = Diagnoser(self._records, tokenizer, lambda: 16)
        self._recorder = Recorder(self._diagnoser, self._engine, Namespaces.of_this_process(), "m")
        self._number = 0

    def unlike(self) -> Iterator[list[Message]]:
        for _ in range(ROUNDS):
            yield [_say("user", self._words(TOKENS))]

    def going_on(self) -> Iterator[list[Message]]:
        talk = [_say("system", self._words(TOKENS // 2))]
        for turn in range(ROUNDS):
            if turn % 10 == 0:
                del talk[1:]
            talk.append(_say("user", self._words(TOKENS // 20)))
            yield talk
            talk.append(_say("assistant", self._words(TOKENS // 20)))

    def parting(self) -> Iterator[list[Message]]:
        system, asked = self._words(TOKENS // 2), self._words(TOKENS // 2)
        for number in range(ROUNDS):
            yield [_say("system", f"Request {number:08x}. {system}"), _say("user", asked)]

    def measure(self, turns: Iterator[list[Message]]) -> tuple[float, float, float, str]:
        """Medians of what a record, its reason and its end take, and the reason."""
        times: list[list[float]] = [[], [], []]
        said = ""
        for messages in turns:
            submission = self._submission([dict(message) for message in messages])
            generation = submission.generation
            name = generation.request.request_id
            times[0].append(_timed(partial(self._recorder.submitted, submission)))
            generation.start = RequestStarted(name, self._found(submission), 0.0)
            times[1].append(_timed(partial(self._recorder.started, submission)))
            generation.stored = PromptCached(name, len(generation.prompt))
            account = RequestEnded(name, True, 0, 0, 0, 0, 0.0)
            times[2].append(_timed(partial(self._recorder.ended, submission, account)))
            said = "" if generation.finding is None else generation.finding.reason
        record, reason, end = (1e6 * statistics.median(each) for each in times)
        return record, reason, end, said

    def explaining(self) -> float:
        record, baseline = self._latest(), self._latest(1)

        def explain() -> object:
            diagnosis = self._diagnoser.diagnose(record, baseline)
            return wire(record, baseline, diagnosis, self._tokenizer, given=True)

        return 1e6 * statistics.median(_timed(explain) for _ in range(ROUNDS))

    def _latest(self, before: int = 0) -> Record:
        found = self._records.find("t", f"chatcmpl-{self._number - before}")
        assert found is not None
        return found

    def _found(self, submission: Submission) -> int:
        """What a cache with room for all of it would have found."""
        mine = self._latest()
        others = [common_tokens(mine.ids, other.whole) for other in self._records.alike(mine)]
        return min(max(others, default=0), len(submission.job.prompt) - 1)

    def _submission(self, messages: list[Message]) -> Submission:
        self._number += 1
        prompt = self._template.encode(messages)
        origin = Origin(
            response_id=f"chatcmpl-{self._number}",
            text=prompt.text,
            messages=messages,
            frames=prompt.frames,
        )
        job = Job(
            prompt=prompt.ids,
            sampling=SamplingParams(max_tokens=1),
            text=TextOptions(),
            n=1,
            priority=0,
            origin=origin,
        )
        request = GenerationRequest(
            request_id=str(self._number), prompt=prompt.ids, sampling=job.sampling, tenant="t"
        )
        stream = RequestStream(request, lambda name, index: None)
        caller = Caller(Tenant("t"), f"req-{self._number}", 0.0, 0)
        return Submission(caller, job, Generation(stream, self._tokenizer, job.text))

    def _words(self, tokens: int) -> str:
        """Text of about so many tokens."""
        text = " ".join(self._rng.choices(WORDS, k=tokens))
        ids = self._tokenizer.encode(text, add_special=False)
        return self._tokenizer.decode(ids[:tokens])


def _say(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def _timed(work: Callable[[], object]) -> float:
    began = time.thread_time()
    work()
    return time.thread_time() - began


def _compare() -> None:
    """Two servers, one of which keeps no records, get the same prompts in turns."""
    flags = ("--pages", "4096", "--max-model-len", "4096")
    rng = random.Random(1)
    with (
        serve("hash", *flags, "--explain-bytes", str(STEADY)) as on,
        serve("hash", *flags, "--explain-bytes", "0") as off,
    ):
        taken: dict[int, list[float]] = {on.pid: [], off.pid: []}
        spent = {server.pid: -server.cpu_seconds()["gateway"] for server in (on, off)}
        connections = {
            server.pid: http.client.HTTPConnection(server.root.removeprefix("http://"))
            for server in (on, off)
        }
        for number in range(COLD):
            content = "".join(rng.choices("abcdefgh ", k=TOKENS))
            body = {"model": "hash", "messages": [_say("user", content)], "max_tokens": 1}
            for pid in (on.pid, off.pid) if number % 2 else (off.pid, on.pid):
                began = time.perf_counter()
                connections[pid].request("POST", "/v1/chat/completions", json.dumps(body), JSON)
                connections[pid].getresponse().read()
                taken[pid].append(time.perf_counter() - began)
        for connection in connections.values():
            connection.close()
        spent = {server.pid: spent[server.pid] + server.cpu_seconds()["gateway"] for server in (on, off)}
    times = {pid: 1e6 * statistics.median(each) for pid, each in taken.items()}
    print(
        f"{TOKENS} tokens that are not cached, answered by the hash model: {times[on.pid]:,.0f} us with records, "
        f"{times[off.pid]:,.0f} us without: {times[on.pid] / times[off.pid] - 1:+.2%}; CPU time of the gateway "
        f"{1e6 * spent[on.pid] / COLD:,.0f} and {1e6 * spent[off.pid] / COLD:,.0f} us"
    )


if __name__ == "__main__":
    main()
