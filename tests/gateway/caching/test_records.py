from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.request import Evicted, RequestStarted
from gateway.caching.common import common_tokens
from gateway.caching.diagnoser import Diagnoser
from gateway.caching.records import Record, Records
from tests.fakes import ManualClock
from tests.gateway.caching.making import HASH, chat, completion, say


def records(most_bytes: int = 1 << 20, ttl: float = 100.0) -> tuple[Records, ManualClock]:
    clock = ManualClock()
    return Records(most_bytes=most_bytes, ttl=ttl, clock=clock), clock


def kept(all_: Records, text: str, tenant: str = "t", **facts: Any) -> Record:
    now = all_.clock()
    record = completion(
        text, at=now, tenant=tenant, **{"response_id": f"r-{text}", "request_id": f"q-{text}", **facts}
    )
    all_.keep(record)
    return record


class TestKept:
    def test_found_by_either_id_and_by_nobody_else(self) -> None:
        all_, _ = records()
        record = kept(all_, "a", index=1)
        assert all_.find("t", "r-a", 1) is record
        assert all_.find("t", "q-a", 1) is record
        for tenant, name, index in (
            ("u", "r-a", 1),
            ("u", "q-a", 1),
            ("t", "r-a", 0),
            ("t", "r-b", 1),
            ("", "", 1),
        ):
            assert all_.find(tenant, name, index) is None

    def test_of_a_request_id_used_twice_the_last(self) -> None:
        all_, _ = records()
        kept(all_, "a", request_id="q")
        second = kept(all_, "b", request_id="q")
        assert all_.find("t", "q") is second

    def test_a_while(self) -> None:
        all_, clock = records(ttl=10.0)
        kept(all_, "a")
        clock.now = 5.0
        second = kept(all_, "b")
        clock.now = 10.5
        assert all_.find("t", "r-a") is None
        assert all_.find("t", "q-a") is None
        assert all_.find("t", "r-b") is second
        clock.now = 20.0
        assert all_.find("t", "r-b") is None
        assert (len(all_), all_.nbytes) == (0, 0)

    def test_none_if_there_is_no_room(self) -> None:
        all_, _ = records(most_bytes=0)
        assert not all_.on
        kept(all_, "a")
        assert (len(all_), all_.nbytes) == (0, 0)

    def test_an_answer_counts_once_it_is_there(self) -> None:
        all_, _ = records(most_bytes=10_000)
        first, second = kept(all_, "a"), kept(all_, "b")
        second.answer.extend(range(1500))
        all_.recount(second)
        assert all_.find("t", "r-a") is None
        assert all_.nbytes == second.nbytes
        all_.recount(first)  # it ended after it was dropped
        assert all_.nbytes == second.nbytes

    def test_who_has_most_pays(self) -> None:
        all_, _ = records(most_bytes=30_000)
        quiet = [kept(all_, f"quiet{i}", "quiet") for i in range(3)]
        for i in range(100):
            kept(all_, f"loud{i}", "loud")
        assert all(all_.find("quiet", record.response_id) is record for record in quiet)
        assert all_.find("loud", "r-loud99") is not None
        assert all_.find("loud", "r-loud0") is None

    @given(
        steps=st.lists(
            st.tuples(
                st.sampled_from("abc"),
                st.integers(0, 400),
                st.sampled_from([0.0, 0.0, 1.0, 30.0]),
                st.sampled_from([None, "k", "l"]),
            ),
            max_size=40,
        )
    )
    def test_bounds_hold_and_nothing_is_left_behind(
        self, steps: list[tuple[str, int, float, str | None]]
    ) -> None:
        all_, clock = records(most_bytes=12_000, ttl=50.0)
        made: list[Record] = []
        for i, (tenant, size, passed, key) in enumerate(steps):
            clock.now += passed
            made.append(kept(all_, f"{i}" + "x" * size, tenant, key=key))
            assert all_.nbytes <= 12_000
            found = [each for each in made if all_.find(each.tenant, each.response_id) is each]
            assert sum(each.nbytes for each in found) == all_.nbytes
            assert len(found) == len(all_)
            assert all(each.born >= clock.now - 50.0 for each in found)
            for each in found:
                others = list(all_.alike(each))
                assert {other.tenant for other in others} <= {each.tenant}
                assert each not in others
                assert all(other in found for other in others)
        clock.now += 100.0
        assert all_.find("a", "none") is None
        assert (len(all_), all_.nbytes) == (0, 0)
        assert all_._tenants == {}
        assert not all_._order


class TestBaseline:
    @staticmethod
    def of(*earlier: Record) -> Diagnoser:
        all_, _ = records()
        for record in earlier:
            all_.keep(record)
        return Diagnoser(all_, HASH, lambda: 16)

    def test_is_the_one_with_most_in_common(self) -> None:
        """Though twenty others came between."""
        agents = [
            [say("system", f"You are agent {i}, and this is your task."), say("user", "begin")]
            for i in range(20)
        ]
        first = [chat(talk, answer="done", at=i) for i, talk in enumerate(agents)]
        diagnoser = self.of(*first)
        for i, talk in enumerate(agents):
            later = chat([*talk, say("assistant", "done"), say("user", "and?")], at=99.0)
            assert diagnoser.baseline(later) is first[i]

    def test_is_the_latest_of_equals(self) -> None:
        talk = [say("user", "hello there")]
        first = [chat(talk, at=i) for i in range(3)]
        assert self.of(*first).baseline(chat(talk, at=9.0)) is first[2]

    def test_is_none_of_the_same_time_or_later(self) -> None:
        """Nor itself: what is asked about later was asked about then."""
        talk = [say("user", "hello there")]
        first, second, third = (chat(talk, at=i) for i in range(3))
        diagnoser = self.of(first, second, third)
        assert diagnoser.baseline(second) is first
        assert diagnoser.baseline(first) is None

    def test_under_a_key_is_rather_one_of_the_key(self) -> None:
        """An agent whose instructions begin with the time has nothing else in common with its last turn."""

        def talk(time: str, task: str) -> list[Any]:
            return [say("system", f"It is {time}. You help."), say("user", task)]

        mine = chat(talk("21:50:01", "sort the files"), at=0.0, key="mine")
        others = [chat(talk(f"21:51:0{i}", "sing"), at=i + 1.0, key="other") for i in range(8)]
        later = chat(
            [*talk("21:52:00", "sort the files"), say("assistant", "ok"), say("user", "?")],
            at=20.0,
            key="mine",
            after=mine,
        )
        diagnoser = self.of(mine, *others)
        assert diagnoser.baseline(later) is mine
        found = diagnoser.reason(later)
        assert (found.reason, found.detail["kind"]) == ("volatile_pattern", "datetime")

    def test_that_went_on_meanwhile_is_compared_again(self) -> None:
        """What was compared while it was being answered does not hold any more when the request is admitted."""
        running = chat([say("user", "hello there")], ended=None, account=None, answer=[])
        record = chat(
            [say("user", "hello there"), say("assistant", "hm"), say("user", "?")], at=1.0, start=None
        )
        diagnoser = self.of(running, record)
        before = diagnoser.compare(record)
        assert (before.baseline, before.common, before.settled) == (running, running.tokens, False)
        running.answer.extend([*b"hm", HASH.stop_ids[0]])
        running.ended = 1.5
        record.start = RequestStarted("r", 0, 0.0, evicted=Evicted("pressure", 1.0))
        assert diagnoser.reason(record, before).common == running.tokens + 2
        assert diagnoser.compare(record).settled

    def test_of_another_tenant_is_none(self) -> None:
        talk = [say("user", "hello there")]
        diagnoser = self.of(chat(talk, tenant="u", key="k"))
        record = chat(talk, at=1.0, key="k")
        assert diagnoser.baseline(record) is None
        assert diagnoser.reason(record).reason == "cold"

    @given(
        texts=st.lists(st.text("ab", min_size=1, max_size=80), min_size=1, max_size=8),
        text=st.text("ab", min_size=1, max_size=80),
    )
    @pytest.mark.parametrize("answer", ["", "ab" * 20])
    def test_has_as_much_in_common_as_any(self, answer: str, texts: list[str], text: str) -> None:
        earlier = [completion(each, at=i, answer=answer) for i, each in enumerate(texts)]
        record = completion(text, at=99.0)
        found = self.of(*earlier).baseline(record)
        assert found is not None
        in_common = [common_tokens(record.ids, each.whole) for each in earlier[-6:]]
        assert common_tokens(record.ids, found.whole) >= max(in_common)
