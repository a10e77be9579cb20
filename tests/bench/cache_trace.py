"""How much of what could be found in the prefix cache is found when it is too small, by the order in which pages go.

    python -m tests.bench.cache_trace [--seeds 3] [--shortages 2,3,5] [--traces NAME,...]

The traces (`TRACES`) are made up from a seed, from what is published of agents' habits, and have fixed times, so that every
order of eviction is asked the same. `fleet` and `rush` follow measurements of coding agents at work (`FLEET` names them): 50
agents of 20 turns alive at once, with tools that return after milliseconds or minutes, sub-agents, and people who come back
after a minute or after hours. The others are simpler; `agents` and `busy` are easy for the least recently used order. Each is replayed through the real `PrefixCache` in simulated time: match, allocate,
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, count
from zlib import crc32

from cache.cursor import Cursor
from cache.eviction import Evictor, RecomputeCost
from cache.lease import Lease
from cache.node import Key, Node
from cache.prefix_cache import PrefixCache
from tests.fakes import ManualClock

PAGE = 16
ROOT = b"trace"
TOOL_PAUSE = 120.0  # seconds
PREFILL_RATE, DECODE_RATE = 10_000, 50  # tokens a second


# ---- traces ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Call:
    """A call of the model: `tokens[:prompt]` is asked, the rest answered; `text` begins with these `length` tokens, and what
    is behind them is of later calls. The same client makes the next one `pause` seconds after the answer, because the `tools`
    that it called returned or, if there are none, somebody went on. `known` of the prompt was said before. One of the tools
    may be a sub-agent, which makes its own calls meanwhile (`delegated`): then the next one waits for the last of these, too."""

    text: Sequence[int]
    length: int
    prompt: int
    known: int
    pause: float
    tools: tuple[str, ...] = ()
    delegated: Sequence[Call] = ()

    @property
    def tokens(self) -> Sequence[int]:
        return self.text[: self.length]

    @property
    def seconds(self) -> float:
        return (self.prompt - self.known) / PREFILL_RATE + (self.length - self.prompt) / DECODE_RATE


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


@dataclass(frozen=True, slots=True)
class Habits:
    """Of coding agents. Pairs are medians and spreads of log-normal distributions, as in `Author._spread`."""

    shares: Mapping[str, float]  # of the calls of tools, in per cent
    seconds: Mapping[str, tuple[float, float]]  # until they return
    person: tuple[float, float]  # seconds until somebody goes on
    answers: float  # the share of the model's calls that end without a tool
    another: float  # the chance of one more tool in the same answer, for each
    result: tuple[float, float]  # tokens
    message: tuple[float, float]
    answer: tuple[float, float]


FLEET = Habits(
    shares={
        "read_file": 20,
        "search": 19,
        "edit_file": 12,
        "plan": 8.5,
        "shell": 25,
        "run_tests": 12,
        "web": 1.7,
        "sub_agent": 1.5,
        "ask_user": 0.8,
    },
    seconds={
        "read_file": (0.2, 1.0),
        "search": (0.25, 0.9),
        "edit_file": (0.045, 0.6),
        "plan": (0.04, 0.5),
        "shell": (0.5, 1.6),
        "run_tests": (20, 1.2),
        "web": (7, 0.8),
    },
    person=(84, 2.1),
    answers=0.12,
    another=0.17,
    result=(400, 1.5),
    message=(300, 1.6),
    answer=(230, 1.28),
)
"""From TraceLab (arXiv 2606.30560; artifacts of github.com/uw-syfi/TraceLab): 351,029 calls of the model in 4,156 sessions of
people at work. 12 % of the calls begin with a person's message; 1.2 tools a call, 2 in the 90th percentile, 4 in the 99th; a
tool returns after 0.3 s in the median, 13.6 s in the 90th percentile, 13.2 s on average; a person after 84 s and 1,236 s; an
answer has 520 tokens on average and takes 5.7 s in the median; the context grows by 652 tokens in the median, 4,122 in the
90th percentile and 1,738 on average when a tool has returned, by about as much when a person speaks.

Shares and times of single tools from AgentCgroup (arXiv 2602.09345; github.com/yunwei37/agentcgroup-paper, the table of 1,095
calls): files are read in 0.34 s on average, searched in 0.2 to 0.6, changed in 0.05, shells return in 3.8 s of which tests
take 73 %, the web in 7.5 to 12, sub-agents in 100. Tests are slower here than there, by as much as makes all tools together
agree with TraceLab; that people are asked in the midst of it is from there too, how often is not published.
"""


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
            pause = self._tool_pause() if waits else self._turn_pause()
            calls.append(Call(tokens, len(tokens), prompt, known, pause, ("tool",) if waits else ()))
            said, known = tokens, len(tokens)
            asked = self._text(100, 3000) if waits else self._text(30, 300)
            if not waits and self._rng.random() < 0.25:
                said, known = system, len(system)
        return calls

    def fleet(self, places: int, agents: int, within: float, turns: int = 20) -> list[Client]:
        """Coding agents of four types, `places` of them alive at once: whenever one is through with its `turns` calls and its
        person has thought of something new, the next begins. The first ones do `within` so many seconds. `FLEET` says what is
        known of their habits."""
        types = [self._text(2000, 6000) for _ in range(4)]
        helper = self._text(2000, 6000)
        calls: list[list[Call]] = [[] for _ in range(places)]
        for agent in range(agents):
            calls[agent % places] += self._coder(self._rng.choice(types), turns, helper)
        return [Client(self._rng.uniform(0, within), each) for each in calls]

    def _coder(self, system: Sequence[int], turns: int, helper: Sequence[int] = ()) -> list[Call]:
        """Without a `helper` to delegate to it is a sub-agent itself, and asks nobody anything."""
        shares = FLEET.shares if helper else {tool: FLEET.shares[tool] for tool in FLEET.seconds}
        calls: list[Call] = []
        text = list(system)
        known = 0
        for left in range(turns, 0, -1):
            asked = FLEET.result if calls and calls[-1].tools else FLEET.message
            text += self._tokens(round(self._spread(asked)))
            prompt = len(text)
            text += self._tokens(round(self._spread(FLEET.answer)))
            answers = left == 1 or (bool(helper) and self._rng.random() < FLEET.answers)
            tools = () if answers else self._tools(shares)
            pause = max((self._return_of(tool) for tool in tools), default=self._spread(FLEET.person))
            delegated = self._coder(helper, self._rng.randint(4, 12)) if "sub_agent" in tools else ()
            calls.append(Call(text, len(text), prompt, known, pause, tools, delegated))
            known = len(text)
        return calls

    def _tools(self, shares: Mapping[str, float]) -> tuple[str, ...]:
        """The names of the tools that one answer calls."""
        number = 1
        while self._rng.random() < FLEET.another:
            number += 1
        return tuple(sorted(set(self._rng.choices(list(shares), list(shares.values()), k=number))))

    def _return_of(self, tool: str) -> float:
        if tool == "ask_user":
            return self._spread(FLEET.person)
        return self._spread(FLEET.seconds[tool]) if tool in FLEET.seconds else 0.0

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
                tokens += self._text(50, 200)
                call = Call(tokens, len(tokens), prompt, len(instruction), 0.0)
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
            prompt = len(tokens)
            tokens += self._text(50, 300)
            call = Call(tokens, len(tokens), prompt, prompt - 60, 0.0)
            clients.append(Client(self._rng.uniform(0, seconds), [call]))
        return clients

    def _text(self, low: int, high: int) -> list[int]:
        """Lengths are spread evenly over their logarithm."""
        return self._tokens(round(self._between(low, high)))

    def _tokens(self, length: int) -> list[int]:
        return self._rng.choices(range(1 << 17), k=max(length, 1))

    def _spread(self, about: tuple[float, float]) -> float:
        """Of a log-normal distribution: its median, and the standard deviation of the logarithm."""
        return about[0] * math.exp(self._rng.gauss(0, about[1]))

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
    coming = [(client.start, next(order), Turn(client.calls)) for client in clients]
    heapq.heapify(coming)
    free = [0.0] * slots  # when each slot is
    served = []
    while coming:
        at, _, turn = heapq.heappop(coming)
        call = turn.call
        start = max(at, heapq.heappop(free))
        end = start + call.seconds
        heapq.heappush(free, end)
        served.append(Served(start, end, call))
        following = turn.after(end)
        if following is not None:
            heapq.heappush(coming, (following[0], next(order), following[1]))
    return served


@dataclass(frozen=True, slots=True)
class Turn:
    """The call of a client that comes next: `calls[index]`. When there are no more, `resumed` is whose sub-agent it was, which
    goes on at `earliest` at the earliest."""

    calls: Sequence[Call]
    index: int = 0
    resumed: Turn | None = None
    earliest: float = 0.0

    @property
    def call(self) -> Call:
        return self.calls[self.index]

    def after(self, end: float) -> tuple[float, Turn] | None:
        """What follows this call, which has ended, and when."""
        following = None
        if self.index + 1 < len(self.calls):
            following = Turn(self.calls, self.index + 1, self.resumed, self.earliest)
        elif self.resumed is not None:
            return max(end, self.earliest), self.resumed
        then = end + self.call.pause
        if self.call.delegated:
            return end, Turn(self.call.delegated, 0, following, then)
        return None if following is None else (then, following)


# ---- orders of eviction ----------------------------------------------------------------------------------------------


def ours(clock: Callable[[], float]) -> Evictor:
    """What is compared is tokens, so each is taken to cost the same wherever it stands."""
    return Evictor(clock, RecomputeCost(slope=0.0))


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
    fresh = cache.allocate(-(-call.length // PAGE) - len(match.pages))
    if match.tail is not None:
        cache.release([match.tail])  # copied
    if fresh is None:
        cache.release(match.pages)
        return 0, None
    table = match.pages + fresh
    cache.publish(cursor, call.tokens, table, call.prompt)
    return match.tokens(PAGE), table


def _end(cache: PrefixCache, call: Call, cursor: Cursor, table: list[int], *, told: bool) -> None:
    tip = cache.publish_tail(cursor, call.tokens, table, call.length)
    cache.release(table)
    if told and call.tools and tip is not None:
        kind = crc32(",".join(call.tools).encode())
        cache.lease_tip(tip, Lease(ttl=TOOL_PAUSE, pause=True, kind=kind))


# ---- the table -------------------------------------------------------------------------------------------------------


def _agents(seed: int) -> list[Served]:
    return schedule(Author(seed).agents(), slots=16)


def _fleet(seed: int) -> list[Served]:
    return schedule(Author(seed).fleet(places=50, agents=100, within=600), slots=8)


def _rush(seed: int) -> list[Served]:
    return schedule(Author(seed).fleet(places=50, agents=50, within=60), slots=8)


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
    "fleet": Kind("50 coding agents alive at once, 100 in all, 20 turns each, tools by name", _fleet),
    "rush": Kind("50 of them x 20 turns begun within a minute on eight places: calls queue", _rush),
    "agents": Kind(
        "50 agents x 20 turns within ten minutes, one kind of tool, no call ever waits for a place", _agents
    ),
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
        lru, learned, best = (
            replay(trace, pages, order, told=kind.told)
            for order in (LeastRecentlyUsed, ours, lambda clock: UsedLastFirst(clock, future))
        )
        yield (
            f"{seed:4} {shortage:6g} {pages:7} {lru.found / ideal:7.1%} {learned.found / ideal:7.1%}"
            f" {best.found / ideal:7.1%} {learned.found / lru.found:9.2f} {best.found / lru.found:9.2f}"
            f" {learned.found / best.found:9.1%} {learned.crowded_out:8}"
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
