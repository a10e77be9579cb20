"""How much of what could be found in the prefix cache is found when it is too small, by the order in which pages go.

    python -m tests.bench.cache_trace [--seeds 3] [--shortages 2,3,5] [--traces NAME,...]

The traces (`TRACES`) are made up from a seed, from what is published of agents' habits, and have fixed times, so that every
order of eviction is asked the same. Each is replayed through the real `PrefixCache` in simulated time: match, allocate,
publish, release, and after a call of a tool the lease that the gateway asks for. The pool has one part in `shortage` of the
pages that would have to be kept at the busiest moment to lose nothing that is used again.

Printed are the tokens found, of those that an endless pool would find: in least recently used order, in ours, and in the best
order there is for someone who knows the future. That is Belady's: of the idle leaves the one that is used again last goes
first. Why it is a bound: pages are of one size, a use of a page is a use of all pages above it, so a page's next use is never
before that of its parent, and Belady's order over all idle pages takes leaves only; being idle at all does not depend on the
order, as the times are given, so the choice is which of the gaps between a page's uses to bridge, a room for each that is
bridged, and giving up the one that ends last is optimal for that (Belady 1966; intervals over a limited number of places).
Pages count alike there, though the partly filled one at the end of a request holds fewer tokens: what is printed as optimum
can be exceeded by less than a page for each request.
"""

from __future__ import annotations

import argparse
import heapq
import math
import random
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, count

from cache.eviction import Evictor
from cache.lease import Lease
from cache.prefix_cache import Cursor, PrefixCache
from cache.radix import Key, Node
from tests.fakes import ManualClock

PAGE = 16
ROOT = b"trace"
TOOL_PAUSE = Lease(ttl=120.0, pause=True)
PREFILL_RATE, DECODE_RATE = 10_000, 50  # tokens a second


# ---- traces ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Call:
    """A call of the model: `tokens[:prompt]` is asked, the rest answered. The same client makes the next one `pause` seconds
    after the answer, because its tools returned (`waits`) or somebody went on. `known` of the prompt was said before."""

    tokens: Sequence[int]
    prompt: int
    known: int
    pause: float
    waits: bool = False

    @property
    def seconds(self) -> float:
        return (self.prompt - self.known) / PREFILL_RATE + (len(self.tokens) - self.prompt) / DECODE_RATE


@dataclass(frozen=True, slots=True)
class Client:
    start: float
    calls: Sequence[Call]


@dataclass(frozen=True, slots=True)
class Served:
    """A call at its time."""

    start: float
    end: float
    call: Call


class Author:
    """Makes up clients. All randomness is of one seed; no two texts agree by chance."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)

    def agents(self, number: int = 50, turns: int = 20) -> list[Client]:
        """Agents of four types, started within ten minutes; those of a type share system prompt and tools. Three calls in four
        end in a call of a tool, the others in an answer that a person reads and replies to, or, one time in four, is content
        with: the next conversation begins with the system prompt alone. Nobody knows how long a conversation will be."""
        types = [self._text(2000, 6000) for _ in range(4)]
        return [
            Client(self._rng.uniform(0, 600), self._agent(self._rng.choice(types), turns))
            for _ in range(number)
        ]

    def _agent(self, system: list[int], turns: int) -> list[Call]:
        calls: list[Call] = []
        said = system
        known = 0
        asked = self._text(30, 300)
        for _ in range(turns):
            waits = self._rng.random() < 0.75
            tokens = said + asked
            prompt = len(tokens)
            tokens += self._text(50, 200) if waits else self._text(100, 600)
            calls.append(
                Call(tokens, prompt, known, self._tool_pause() if waits else self._turn_pause(), waits)
            )
            said, known = tokens, len(tokens)
            asked = self._text(100, 3000) if waits else self._text(30, 300)
            if not waits and self._rng.random() < 0.25:
                said, known = system, len(system)
        return calls

    def sweep(self, workers: int, start: float, seconds: float) -> list[Client]:
        """A batch job: each worker sends one document after the other, never the same again, under one instruction."""
        instruction = self._text(300, 800)
        clients = []
        for _ in range(workers):
            calls: list[Call] = []
            busy = 0.0
            while busy < seconds:
                tokens = instruction + self._text(2000, 8000)
                prompt = len(tokens)
                call = Call(tokens + self._text(50, 200), prompt, len(instruction), 0.0)
                calls.append(call)
                busy += call.seconds
            clients.append(Client(start + self._rng.random(), calls))
        return clients

    def questions(self, number: int, seconds: float, documents: int = 300) -> list[Client]:
        """Single questions, each about one of some documents, a few of which are asked about most (Zipf's law)."""
        instruction = self._text(500, 1500)
        texts = [self._text(1000, 8000) for _ in range(documents)]
        asked = self._rng.choices(texts, [1 / rank for rank in range(1, documents + 1)], k=number)
        clients = []
        for text in asked:
            tokens = instruction + text + self._text(20, 100)
            call = Call(tokens + self._text(50, 300), len(tokens), len(tokens) - 60, 0.0)
            clients.append(Client(self._rng.uniform(0, seconds), [call]))
        return clients

    def _text(self, low: int, high: int) -> list[int]:
        """Lengths are spread evenly over their logarithm."""
        length = round(self._between(low, high))
        return self._rng.choices(range(1 << 17), k=length)

    def _tool_pause(self) -> float:
        """86 % of tools return within a second and 95 % within ten, as a router of such traffic has measured."""
        share = self._rng.random()
        if share < 0.86:
            return self._between(0.05, 1)
        return self._between(1, 10) if share < 0.95 else self._between(10, 300)

    def _turn_pause(self) -> float:
        """A person reads, thinks and types: a minute in the median, between 20 s and 3 min in two cases of three."""
        return self._rng.lognormvariate(math.log(60), 1.1)

    def _between(self, low: float, high: float) -> float:
        return math.exp(self._rng.uniform(math.log(low), math.log(high)))


def schedule(clients: Sequence[Client], slots: int) -> list[Served]:
    """When a server that runs `slots` calls at once, first come first served, would start each. What it finds in its cache is
    taken for granted here, so the times do not depend on what any order of eviction keeps."""
    order = count()
    coming = [(client.start, next(order), client, 0) for client in clients]
    heapq.heapify(coming)
    free = [0.0] * slots  # when each slot is
    served = []
    while coming:
        at, _, client, index = heapq.heappop(coming)
        call = client.calls[index]
        start = max(at, heapq.heappop(free))
        end = start + call.seconds
        heapq.heappush(free, end)
        served.append(Served(start, end, call))
        if index + 1 < len(client.calls):
            heapq.heappush(coming, (end + call.pause, next(order), client, index + 1))
    return served


# ---- orders of eviction ----------------------------------------------------------------------------------------------


class LeastRecentlyUsed(Evictor):
    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(clock)
        self._heap: list[tuple[float, int, Node]] = []
        self._seat = count(1)

    def offer(self, node: Node) -> None:
        node.seat = next(self._seat)
        heapq.heappush(self._heap, (self.rank(node), node.seat, node))

    def rank(self, node: Node) -> float:
        return node.used

    def withdraw(self, node: Node) -> None:
        node.seat = 0

    def resumed(self, node: Node) -> int:
        return 0

    def next(self, *_: object, **__: object) -> Node | None:
        while self._heap:
            _, seat, node = heapq.heappop(self._heap)
            if node.seat == seat:
                node.seat = 0
                return node
        return None


class Future:
    """When each page of a trace will be used. `needed` pages would have to be kept at the busiest moment."""

    def __init__(self, trace: Sequence[Served]) -> None:
        self._names: dict[tuple[int, Key], int] = {}  # by the page above (-1: none) and its tokens
        self._uses: list[list[float]] = []
        tails: dict[int, list[tuple[Key, int]]] = {}  # below a page: the ends of calls
        gone: list[float] = []  # when nobody needs a page any more
        for served in sorted(trace, key=lambda served: served.start):
            above = -1
            tokens = served.call.tokens
            for at in range(0, len(tokens), PAGE):
                key = tuple(tokens[at : at + PAGE])
                name = self._names.setdefault((above, key), len(gone))
                if name == len(gone):
                    gone.append(0.0)
                    self._uses.append([])
                gone[name] = max(gone[name], served.end)
                self._uses[name].append(served.start)
                for tail, other in tails.get(above, ()):
                    if other != name and tail[0] == key[0] and at < served.call.prompt:
                        self._uses[other].append(served.start)
                        gone[other] = max(gone[other], served.start)
                if len(key) < PAGE:
                    tails.setdefault(above, []).append((key, name))
                above = name
        self.pages = len(gone)
        moments = [(uses[0], 1) for uses in self._uses] + [(end, -1) for end in gone]
        self.needed = max(accumulate(change for _, change in sorted(moments)))

    def name(self, above: int, key: Key) -> int:
        return self._names[above, key]

    def next_use(self, name: int, now: float) -> float:
        uses = self._uses[name]
        at = bisect_right(uses, now)
        return uses[at] if at < len(uses) else math.inf


class UsedLastFirst(LeastRecentlyUsed):
    """The offline optimum."""

    def __init__(self, clock: Callable[[], float], future: Future) -> None:
        super().__init__(clock)
        self._future = future
        self._names: dict[Node, int] = {}  # of whole pages

    def rank(self, node: Node) -> float:
        return -self._future.next_use(self._name(node), self._clock())

    def _name(self, node: Node) -> int:
        path: list[Node] = []
        while node is not node.root and node not in self._names:
            path.append(node)
            node = node.parent
        name = self._names.get(node, -1)
        for below in reversed(path):
            name = self._future.name(name, below.key)
            if len(below.key) == PAGE:
                self._names[below] = name
        return name

    def next(self, *_: object, **__: object) -> Node | None:
        while (node := super().next()) is not None:
            self._names.pop(node, None)
            return node
        return None


# ---- replay ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Outcome:
    """Tokens of prompts found, and calls for which there was no room: all pages were held by others."""

    found: int
    crowded_out: int


def replay(
    trace: Sequence[Served], pages: int, order: Callable[[Callable[[], float]], Evictor], *, told: bool = True
) -> Outcome:
    """`told`: the cache is told which calls wait for their tools."""
    clock = ManualClock()
    cache = PrefixCache(pages, PAGE, clock=clock, evictor=order(clock))
    events = [(served.start, 1, at) for at, served in enumerate(trace)]
    heapq.heapify(events)
    running: dict[int, tuple[Cursor, list[int]]] = {}
    found = crowded_out = 0
    while events:
        clock.now, starts, at = heapq.heappop(events)
        served = trace[at]
        if not starts:
            _end(cache, served.call, *running.pop(at), told=told)
            continue
        cursor = Cursor(ROOT)
        hit, table = _start(cache, served.call, cursor)
        if table is None:
            crowded_out += 1
            continue
        found += hit
        running[at] = (cursor, table)
        heapq.heappush(events, (served.end, 0, at))
    assert cache.idle == cache.tree_pages, "something is held still"
    return Outcome(found, crowded_out)


def _start(cache: PrefixCache, call: Call, cursor: Cursor) -> tuple[int, list[int] | None]:
    match = cache.match(cursor, call.tokens[: call.prompt])
    fresh = cache.allocate(-(-len(call.tokens) // PAGE) - len(match.pages))
    if match.tail is not None:
        cache.release([match.tail])  # copied
    if fresh is None:
        cache.release(match.pages)
        return 0, None
    table = match.pages + fresh
    cache.publish(cursor, call.tokens, table, call.prompt)
    return match.tokens(PAGE), table


def _end(cache: PrefixCache, call: Call, cursor: Cursor, table: list[int], *, told: bool) -> None:
    tip = cache.publish_tail(cursor, call.tokens, table, len(call.tokens))
    cache.release(table)
    if told and call.waits and tip is not None:
        cache.lease_tip(tip, TOOL_PAUSE)


# ---- the table -------------------------------------------------------------------------------------------------------


def _agents(seed: int) -> list[Served]:
    return schedule(Author(seed).agents(), slots=16)


def _busy(seed: int) -> list[Served]:
    return schedule(Author(seed).agents(), slots=3)


def _sweep(seed: int) -> list[Served]:
    author = Author(seed)
    return schedule(author.agents() + author.sweep(4, start=60, seconds=900), slots=8)


def _questions(seed: int) -> list[Served]:
    return schedule(Author(seed).questions(1000, seconds=1500), slots=8)


@dataclass(frozen=True, slots=True)
class Kind:
    says: str
    make: Callable[[int], list[Served]]
    told: bool = True


TRACES = {
    "agents": Kind("50 agents x 20 turns, no call ever waits for a place", _agents),
    "busy": Kind("the same on a server that is always busy: calls queue", _busy),
    "sweep": Kind("the same beside a batch job of one-off documents, on eight places", _sweep),
    "blind": Kind("as sweep, but nobody says which calls wait for tools", _sweep, told=False),
    "questions": Kind("1000 single questions about 300 documents, no conversations", _questions),
}


def rows(kind: Kind, seed: int, shortages: Sequence[float]) -> Iterator[str]:
    trace = kind.make(seed)
    future = Future(trace)
    ideal = replay(trace, future.pages + 1000, LeastRecentlyUsed).found
    for shortage in shortages:
        pages = round(future.needed / shortage)
        lru, ours, best = (
            replay(trace, pages, order, told=kind.told)
            for order in (LeastRecentlyUsed, Evictor, lambda clock: UsedLastFirst(clock, future))
        )
        yield (
            f"{seed:4} {shortage:6g} {pages:7} {lru.found / ideal:7.1%} {ours.found / ideal:7.1%}"
            f" {best.found / ideal:7.1%} {ours.found / lru.found:9.2f} {best.found / lru.found:9.2f}"
            f" {ours.found / best.found:9.1%} {ours.crowded_out:8}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--shortages", default="2,3,5")
    parser.add_argument("--traces", default=",".join(TRACES))
    arguments = parser.parse_args()
    for name in arguments.traces.split(","):
        kind = TRACES[name]
        print(f"\n{name}: {kind.says}")
        print("seed  short   pages     LRU    ours optimum  ours/LRU  opt./LRU ours/opt.  crowded")
        for seed in range(arguments.seeds):
            for row in rows(kind, seed, [float(part) for part in arguments.shortages.split(",")]):
                print(row, flush=True)


if __name__ == "__main__":
    main()
