"""The traces of the eviction benchmark are what they say they are."""

from __future__ import annotations

from itertools import accumulate
from statistics import mean, median, quantiles

import pytest

from tests.bench.cache_trace import FLEET, Author, Call, Client, Served, schedule


def call(pause: float, *, tools: tuple[str, ...] = (), delegated: tuple[Call, ...] = ()) -> Call:
    """50 tokens of an answer take a second."""
    return Call(range(50), 50, 0, 0, pause, tools, delegated)


@pytest.fixture(scope="module")
def fleet() -> list[Served]:
    return schedule(Author(1).fleet(places=10, agents=20, within=60), slots=4)


@pytest.mark.parametrize(("pause", "goes_on"), [(0.5, 4.0), (9.0, 10.0)])
def test_who_delegates_waits_for_the_last_call_of_the_sub_agent_and_for_the_other_tools(
    pause: float, goes_on: float
) -> None:
    helper = (call(1.0, tools=("search",)), call(99.0))
    first = call(pause, tools=("shell", "sub_agent"), delegated=helper)
    served = schedule([Client(0.0, [first, call(0.0)])], slots=2)
    assert [each.start for each in served] == [0.0, 1.0, 3.0, goes_on]


def test_calls_wait_for_a_place() -> None:
    served = schedule([Client(0.0, [call(0.0)]), Client(0.1, [call(0.0)])], slots=1)
    assert [each.start for each in served] == [0.0, 1.0]


def test_every_agent_has_its_turns_and_the_next_begins_when_one_is_through(fleet: list[Served]) -> None:
    lives: dict[int, list[Served]] = {}
    for served in fleet:
        lives.setdefault(id(served.call.text), []).append(served)
    agents = [life for life in lives.values() if len(life) == 20]
    assert len(agents) == 20
    assert all(not life[-1].call.tools for life in agents), "nobody ends with a call of a tool"
    moments = sorted(
        [(life[0].start, 1) for life in agents]
        + [(life[-1].end + life[-1].call.pause, -1) for life in agents]
    )
    assert max(accumulate(change for _, change in moments)) == 10


def test_tools_return_and_people_come_back_as_was_measured() -> None:
    author = Author(2)
    steps = [author._tools(FLEET.shares) for _ in range(20_000)]
    returns = quantiles([author._return_of(tool) or 100.0 for step in steps for tool in step], n=10)
    assert 0.15 < returns[4] < 0.4
    assert 10 < returns[8] < 18
    people = [author._spread(FLEET.person) for _ in range(20_000)]
    assert 75 < median(people) < 95
    assert 1000 < quantiles(people, n=10)[8] < 1500


def test_contexts_grow_as_was_measured(fleet: list[Served]) -> None:
    grown = [served.call.length - served.call.known for served in fleet if served.call.known]
    assert 1200 < mean(grown) < 2300
