"""Who is next, and for how long somebody can be passed over."""

from __future__ import annotations

import pytest

from cache.cursor import Cursor
from engine.group import Group, Member, Tenant
from engine.request import GenerationRequest, SamplingParams
from engine.waiting import WaitingQueue


class Line:
    """Makes members and keeps their tenants."""

    def __init__(self) -> None:
        self.tenants: dict[str, Tenant] = {}
        self.cached: dict[int, int] = {}
        self.uid = 0

    def member(
        self, tenant: str = "a", *, priority: int = 0, cached: int = 0, preempted: bool = False
    ) -> Member:
        self.uid += 1
        request = GenerationRequest(
            request_id=str(self.uid), prompt=[1], sampling=SamplingParams(max_tokens=1), priority=priority
        )
        group = Group(request, self.tenants.setdefault(tenant, Tenant(tenant, 0)), None, 0.0)
        self.cached[self.uid] = cached
        return Member(
            uid=self.uid,
            request=request,
            index=0,
            tokens=[1],
            prompt_len=1,
            arrival=0.0,
            group=group,
            cursor=Cursor(None),
            limit=2,
            preempted=preempted,
        )

    def drain(self, queue: WaitingQueue) -> list[int]:
        order = []
        while (member := queue.next(lambda member: self.cached[member.uid])) is not None:
            queue.admit(member)
            member.group.tenant.served += 10
            order.append(member.uid)
        assert len(queue) == 0
        return order


@pytest.mark.parametrize(
    ("members", "order"),
    [
        pytest.param([{}, {}, {}], [1, 2, 3], id="first come, first served"),
        pytest.param([{"priority": 1}, {"priority": -1}, {}], [2, 3, 1], id="lower priority numbers first"),
        pytest.param([{"tenant": t} for t in "aaabb"], [1, 4, 2, 5, 3], id="tenants take turns"),
        pytest.param(
            [{"cached": c} for c in (0, 5, 9, 5)], [3, 2, 4, 1], id="the longest cached prefix first"
        ),
        pytest.param(
            [{}, {"cached": 5, "preempted": True}, {"cached": 9}],
            [2, 3, 1],
            id="but not before one preempted",
        ),
        pytest.param([{"preempted": True}, {"cached": 9}], [1, 2], id="who was preempted first is first"),
    ],
)
def test_order(members: list[dict[str, object]], order: list[int]) -> None:
    line, queue = Line(), WaitingQueue()
    for features in members:
        queue.add(line.member(**features))  # type: ignore[arg-type]
    assert line.drain(queue) == order


def test_a_place_is_by_arrival_not_by_when_it_was_added() -> None:
    line, queue = Line(), WaitingQueue()
    members = [line.member() for _ in range(5)]
    for at in (3, 0, 4, 1, 2):
        queue.add(members[at])
    assert [member.uid for member in queue] == [1, 2, 3, 4, 5]
    queue.remove(members[2])
    assert line.drain(queue) == [1, 2, 4, 5]


@pytest.mark.parametrize("features", [{"priority": 1}, {"tenant": "b"}, {}])
def test_nobody_is_passed_over_for_ever(features: dict[str, object]) -> None:
    """However many come later with a better claim, the oldest waits for `patience` of them at most."""
    line, queue = Line(), WaitingQueue(patience=5)
    oldest = line.member(**features)  # type: ignore[arg-type]
    oldest.group.tenant.served = 10**6 if "tenant" in features else 0
    queue.add(oldest)
    passed = 0
    while True:
        queue.add(line.member(cached=100))
        member = queue.next(lambda member: line.cached[member.uid])
        assert member is not None
        queue.admit(member)
        if member is oldest:
            break
        passed += 1
    assert passed == 5


def test_only_a_window_is_asked_about() -> None:
    line, queue = Line(), WaitingQueue(window=4)
    for _ in range(100):
        queue.add(line.member())
    asked = []
    queue.next(lambda member: asked.append(member.uid) or 0)
    assert asked == [1, 2, 3, 4]
