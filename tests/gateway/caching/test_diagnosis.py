from __future__ import annotations

from array import array
from typing import Any

import pytest
from msgspec import structs

from cache.lease import CachePolicy
from engine.request import Evicted
from gateway.caching.records import Instance, Record
from tests.gateway.caching.making import chat, completion, say, told

TALK = [
    say("system", "You are a helpful assistant that answers briefly."),
    say("user", "What is the capital of France?"),
    say("assistant", "Paris is the capital of France."),
    say("user", "And of Spain?"),
]
FIRST = TALK[:2]
NEXT = [*TALK, say("assistant", "Madrid."), say("user", "Thanks")]


def first(**facts: Any) -> Record:
    return chat(FIRST, answer=TALK[2]["content"], **facts)


def second(**facts: Any) -> Record:
    return chat(TALK, at=10.0, **facts)


class TestFound:
    def test_a_conversation_that_goes_on(self) -> None:
        baseline = first()
        found = told(second(after=baseline), baseline)
        assert (found.reason, found.place) == ("partial_hit", None)
        assert found.common == found.reusable == len(baseline.whole) // 4 - 1  # the last was never computed

    @pytest.mark.parametrize("forced", [1, 20, 25])
    def test_what_a_grammar_forced_at_the_end_was_never_computed(self, forced: int) -> None:
        baseline = first()
        account = baseline.account
        assert account is not None
        baseline.account = structs.replace(account, computed=account.computed - forced)
        found = told(second(after=baseline), baseline)
        assert (found.reason, found.place) == ("partial_hit", None)
        assert found.common == found.reusable == len(baseline.whole) // 4 - 1 - forced
        assert told(second(hit=0), baseline).reason == "evicted"

    def test_the_same_again(self) -> None:
        baseline = first()
        found = told(chat(FIRST, at=10.0, after=baseline), baseline)
        assert found.reason == "hit"

    def test_nothing_to_compare_with(self) -> None:
        assert told(first(), None).reason == "cold"
        assert told(first(hit=5), None).reason == "partial_hit"


class TestLost:
    @pytest.mark.parametrize(
        ("facts", "reason", "detail"),
        [
            ({"evicted": Evicted("pressure", 2.0, broken=True)}, "evicted", {"cause": "pressure", "age": 2.0, "broken": True}),
            ({"evicted": Evicted("quota", 2.0)}, "evicted", {"cause": "quota", "age": 2.0, "broken": False}),
            ({"evicted": Evicted("expired", 2.0)}, "expired", {"age": 2.0, "broken": False}),
            ({"evicted": Evicted("flushed", 2.0)}, "flushed", {"scope": "pages", "age": 2.0, "broken": False}),
            ({"generation": 1, "namespace": b"o"}, "flushed", {"scope": "tenant"}),
            ({"instance": Instance(2, 1)}, "restarted", {}),
            ({"model_digest": "e", "model": "n"}, "model_changed", {"from": "m", "to": "n"}),
            ({"adapter": b"a"}, "adapter_changed", {}),
            ({"salt": "s", "namespace": b"o"}, "namespace_changed", {"by": "cache_salt"}),
            ({"key": "k", "namespace": b"o"}, "prompt_cache_key_changed", {}),
            ({"namespace": b"o"}, "namespace_changed", {"by": "server"}),
            ({}, "evicted", {"cause": None}),
            ({"policy": CachePolicy(read=False)}, "bypass", {"why": "read"}),
        ],
    )  # fmt: skip
    @pytest.mark.parametrize("hit", [0, 48])
    def test_why(self, facts: dict[str, Any], reason: str, detail: dict[str, Any], hit: int) -> None:
        """Whether all or a part was lost; and no change is made up: the prompts go on alike."""
        baseline = first()
        found = told(second(hit=hit, **facts), baseline)
        assert (found.reason, dict(found.detail), found.place) == (reason, detail, None)

    def test_a_key_that_does_not_isolate_changes_nothing(self) -> None:
        baseline = first(key="a")
        assert told(second(after=baseline, key="b"), baseline).reason == "partial_hit"

    def test_lost_and_changed_is_lost_and_the_change_has_a_place(self) -> None:
        changed = [TALK[0], say("user", "What is the capital of Franke?"), *TALK[2:]]
        found = told(chat(changed, at=10.0, evicted=Evicted("pressure", 2.0)), first())
        assert found.reason == "evicted"
        assert found.place is not None
        assert (found.place.message, found.place.char) == (1, 27)

    @pytest.mark.parametrize("missing", [1, 15])
    def test_the_rest_of_a_page_is_not_lost(self, missing: int) -> None:
        baseline = first()
        found = told(second(hit=baseline.left - missing), baseline)
        assert found.reason == "partial_hit"

    def test_less_than_a_page_in_common_is_no_loss(self) -> None:
        """A beginning such as every prompt has."""
        baseline = completion("<|im_start|>a", key="k")
        assert told(completion("<|im_start|>a and more", at=9.0), baseline).reason == "cold"
        other = completion("<|im_start|>a and more", at=9.0, generation=1, namespace=b"o")
        assert told(other, baseline).reason == "flushed"

    def test_still_computing(self) -> None:
        baseline = first(ended=None)
        assert told(second(hit=0), baseline).reason == "in_flight"
        baseline = first(ended=11.0)
        assert told(second(hit=0), baseline).reason == "in_flight"

    def test_never_written(self) -> None:
        for policy in (CachePolicy(write=False), CachePolicy(write_tokens=20)):
            baseline = first(policy=policy)
            found = told(second(after=baseline), baseline)
            assert (found.reason, found.detail["why"]) == ("bypass", "baseline_write")

    def test_given_up_before_it_was_computed(self) -> None:
        baseline = first()
        account = structs.replace(baseline.account, written=32)
        baseline.stored, baseline.answer, baseline.account = None, array("I"), account
        found = told(second(hit=32), baseline)
        assert (found.reason, found.detail["baseline"]) == ("evicted", "unfinished")


def test_shallow_leaves_the_change_to_others() -> None:
    changed = [say("system", "Another."), *TALK[1:]]
    baseline = first()
    record = chat(changed, at=10.0, after=baseline)
    assert told(record, baseline).reason == "system_changed"
    assert told(record, baseline, shallow=True).reason == "partial_hit"


def test_completions() -> None:
    baseline = completion("The river and the stone.", answer=" Once more.")
    longer = completion("The river and the stone. Once more. And", after=baseline, at=1.0)
    assert told(longer, baseline).reason == "partial_hit"
    changed = completion("The river and the stove.", after=baseline, at=1.0)
    found = told(changed, baseline)
    assert found.reason == "message_edited"
    assert found.place is not None
    assert (found.place.segment, found.place.message, found.place.char, found.common) == (
        "prompt",
        None,
        21,
        21,
    )


def test_ids_without_a_text() -> None:
    baseline = completion("The river and the stone.")
    changed = completion("The river and the stove.", at=1.0, after=baseline)
    baseline.text = changed.text = None
    found = told(changed, baseline)
    assert found.place is not None
    assert (found.reason, found.place.char) == ("message_edited", 21)
