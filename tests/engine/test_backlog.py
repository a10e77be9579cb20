"""However requests come and go, what waits is within bounds and every place is given back exactly once."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.backlog import LONGEST_RETRY, SHORTEST_RETRY, Backlog, Place, QueueLimits, QueueState
from engine.errors import QueueFull
from engine.request import GenerationRequest, SamplingParams
from tests.fakes import ManualClock


def request(request_id: str, tokens: int = 10, tenant: str = "") -> GenerationRequest:
    return GenerationRequest(
        request_id=request_id, prompt=[0] * tokens, sampling=SamplingParams(max_tokens=1), tenant=tenant
    )


def submit(backlog: Backlog, *requests: GenerationRequest) -> None:
    for one in requests:
        with backlog.reserve(one.tenant, 1) as place:
            place.weigh(len(one.prompt))
            backlog.submit(one, place)


def counts(backlog: Backlog) -> tuple[int, int]:
    backlog.check()
    return backlog.state.requests, backlog.state.tokens


@pytest.mark.parametrize(
    ("limits", "waiting", "new", "reason"),
    [
        (QueueLimits(requests=2), "ab", request("c"), "queue_requests"),
        (QueueLimits(tokens=25), "ab", request("c"), "queue_tokens"),
        (QueueLimits(tenant_requests=1), "a", request("c"), "tenant_queue"),
        (QueueLimits(tenant_requests=1, requests=1), "a", request("c"), "tenant_queue"),
        (QueueLimits(tenant_requests=1), "a", request("c", tenant="other"), None),
        (QueueLimits(tokens=25), "", request("c", 26), None),
        (QueueLimits(requests=3, tokens=30), "ab", request("c"), None),
    ],
)
def test_bounds(limits: QueueLimits, waiting: str, new: GenerationRequest, reason: str | None) -> None:
    backlog = Backlog(limits)
    submit(backlog, *map(request, waiting))
    before = counts(backlog)
    if reason is None:
        submit(backlog, new)
        assert counts(backlog) == (before[0] + 1, before[1] + len(new.prompt))
    else:
        with pytest.raises(QueueFull, match=r"limit \d+") as raised:
            submit(backlog, new)
        assert raised.value.tenant is (reason == "tenant_queue")
        assert raised.value.retry_after == SHORTEST_RETRY
        assert counts(backlog) == before
    assert backlog.state.rejected == ({} if reason is None else {reason: 1})


def test_a_place_holds_room_before_its_prompts_are_known() -> None:
    backlog = Backlog(QueueLimits(requests=3))
    with backlog.reserve("t", 3) as place:
        assert backlog.state == QueueState(3, 0, QueueLimits(requests=3), {})
        assert backlog.state.full
        with pytest.raises(QueueFull):
            backlog.reserve("other", 1)
        place.weigh(20)
        backlog.submit(request("a", 10, "t"), place)
        assert counts(backlog) == (3, 20)
    assert counts(backlog) == (1, 10)  # the request keeps its share
    assert "a" in backlog


def test_what_starts_or_leaves_makes_room() -> None:
    backlog = Backlog(QueueLimits(requests=2))
    submit(backlog, request("a"), request("b"))
    backlog.start("a")
    backlog.remove("a")
    assert counts(backlog) == (1, 10)
    backlog.remove("b")
    backlog.start("b")
    backlog.start("never seen")
    assert counts(backlog) == (0, 0)


def test_a_lost_engine_takes_the_requests_and_leaves_the_places() -> None:
    backlog = Backlog(QueueLimits())
    submit(backlog, request("a"))
    with backlog.reserve("", 2) as place:
        place.weigh(20)
        backlog.submit(request("b"), place)
        backlog.clear()
        assert counts(backlog) == (1, 10)
        assert "b" not in backlog
        backlog.remove("b")  # its stream is told, and aborts
        backlog.submit(request("c"), place)
    assert counts(backlog) == (1, 10)


def test_retry_after_follows_the_pace_of_starts() -> None:
    clock = ManualClock()
    backlog = Backlog(QueueLimits(), clock)
    submit(backlog, *(request(str(i)) for i in range(40)))
    for i in range(20):
        clock.now = float(i)
        backlog.start(str(i))
    clock.now = 20.0
    # 20 starts in 20 seconds, 20 still waiting
    assert backlog.retry_after() == pytest.approx(20.0)
    clock.now = 20_000.0
    assert backlog.retry_after() == LONGEST_RETRY


def test_an_idle_hour_does_not_count_as_a_slow_pace() -> None:
    clock = ManualClock()
    backlog = Backlog(QueueLimits(), clock)
    submit(backlog, request("early"))
    backlog.start("early")
    clock.now = 3600.0
    submit(backlog, *(request(str(i)) for i in range(12)))
    backlog.start("0")
    clock.now += 0.1
    backlog.start("1")
    # 2 starts in 0.1 seconds, 10 still waiting
    assert backlog.retry_after() == SHORTEST_RETRY


LIMITS = QueueLimits(requests=10, tokens=100, tenant_requests=6)


class Queue(RuleBasedStateMachine):
    """Against a model that lists who holds what."""

    def __init__(self) -> None:
        super().__init__()
        self.backlog = Backlog(LIMITS)
        self.places: list[Place] = []
        self.held: list[list[int]] = []  # [requests, tokens] of each place
        self.submitted: dict[str, int] = {}  # tokens of each request
        self.names = 0

    @rule(tenant=st.sampled_from("abc"), requests=st.integers(1, 4))
    def reserve(self, tenant: str, requests: int) -> None:
        try:
            self.places.append(self.backlog.reserve(tenant, requests))
        except QueueFull:
            return
        self.held.append([requests, 0])

    @precondition(lambda self: self.places)
    @rule(which=st.integers(0, 20), tokens=st.integers(0, 60))
    def weigh(self, which: int, tokens: int) -> None:
        which %= len(self.places)
        try:
            self.places[which].weigh(tokens)
        except QueueFull:
            return
        self.held[which][1] += tokens

    @precondition(lambda self: any(requests for requests, _ in self.held))
    @rule(which=st.integers(0, 20), share=st.floats(0, 1))
    def submit(self, which: int, share: float) -> None:
        free = [i for i, (requests, _) in enumerate(self.held) if requests]
        which = free[which % len(free)]
        place, held = self.places[which], self.held[which]
        tokens = int(share * held[1])
        self.names += 1
        self.backlog.submit(request(str(self.names), tokens, place.tenant), place)
        self.submitted[str(self.names)] = tokens
        held[0] -= 1
        held[1] -= tokens

    @precondition(lambda self: self.places)
    @rule(which=st.integers(0, 20), again=st.booleans())
    def leave(self, which: int, again: bool) -> None:
        which %= len(self.places)
        del self.held[which]
        place = self.places.pop(which)
        for _ in range(1 + again):
            place.__exit__(None, None, None)

    @precondition(lambda self: self.names)
    @rule(which=st.integers(0, 20), started=st.booleans())
    def end(self, which: int, started: bool) -> None:
        """Waiting or gone."""
        name = str(self.names - which % self.names)
        (self.backlog.start if started else self.backlog.remove)(name)
        self.submitted.pop(name, None)

    @precondition(lambda self: self.submitted)
    @rule()
    def lose_the_engine(self) -> None:
        self.backlog.clear()
        self.submitted.clear()

    @invariant()
    def counts_are_right(self) -> None:
        requests = sum(held[0] for held in self.held) + len(self.submitted)
        tokens = sum(held[1] for held in self.held) + sum(self.submitted.values())
        assert counts(self.backlog) == (requests, tokens)
        assert requests <= LIMITS.requests
        assert all((str(n) in self.backlog) == (str(n) in self.submitted) for n in range(1, self.names + 1))

    def teardown(self) -> None:
        for place in self.places:
            place.__exit__(None, None, None)
        for name in self.submitted:
            self.backlog.start(name)
        assert counts(self.backlog) == (0, 0)


TestQueue = Queue.TestCase
TestQueue.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
