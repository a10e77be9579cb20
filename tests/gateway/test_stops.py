from __future__ import annotations

import itertools
import sys
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gateway.stops
from gateway.stops import StopSearch

letters = st.text("abc", max_size=30)
stop_lists = st.lists(st.text("abc", min_size=1, max_size=5), min_size=1, max_size=4)


def naive(text: str, stops: list[str], *, include: bool) -> tuple[str, bool]:
    """Search the whole text at once: the earliest start, then the longest."""
    found = [(text.find(stop), -len(stop)) for stop in stops if stop in text]
    if not found:
        return text, False
    start, negative_length = min(found)
    return text[: start - negative_length if include else start], True


def naive_held(text: str, stops: list[str]) -> str:
    """The longest suffix that is a proper prefix of a stop."""
    return max(
        (text[len(text) - k :] for stop in stops for k in range(len(stop)) if text.endswith(stop[:k])),
        key=len,
    )


def run(search: StopSearch, chunks: list[str]) -> str:
    return "".join([search.push(chunk) for chunk in chunks]) + search.flush()


@given(text=letters, stops=stop_lists, cuts=st.lists(st.integers(0, 30)), include=st.booleans())
def test_any_chunking_equals_a_search_of_the_whole(
    text: str, stops: list[str], cuts: list[int], include: bool
) -> None:
    bounds = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    chunks = [text[a:b] for a, b in itertools.pairwise(bounds)]
    search = StopSearch(stops, include=include)
    assert (run(search, chunks), search.stopped) == naive(text, stops, include=include)


@given(text=letters, stops=stop_lists)
def test_holds_back_no_more_than_it_must(text: str, stops: list[str]) -> None:
    if any(stop in text for stop in stops):
        return
    search = StopSearch(stops)
    out = ""
    for i, letter in enumerate(text, 1):
        out += search.push(letter)
        assert out == text[: i - len(naive_held(text[:i], stops))]


@pytest.mark.parametrize(
    ("stops", "chunks", "pushed", "rest", "stopped"),
    [
        ([], ["a", "b"], ["a", "b"], "", False),
        (["\n\n"], ["one\n", "\ntwo"], ["one", ""], "", True),
        (["\n\n"], ["one\n", "two"], ["one", "\ntwo"], "", False),
        (["</end>"], ["a < b </", "em>"], ["a < b ", "</em>"], "", False),
        (["STOP"], ["ST"], [""], "ST", False),
        (["b", "abc"], ["xab", "d"], ["x", "a"], "", True),  # an earlier one was still possible
        (["b", "abc"], ["xab", "c"], ["x", ""], "", True),
        (["b", "abc"], ["xab"], ["x"], "a", True),
        (["é🎉"], ["aé", "🎉b"], ["a", ""], "", True),
        (["]", "^", "-"], ["a-b"], ["a"], "", True),
    ],
)
def test_table(stops: list[str], chunks: list[str], pushed: list[str], rest: str, stopped: bool) -> None:
    search = StopSearch(stops)
    assert [search.push(chunk) for chunk in chunks] == pushed
    assert search.flush() == rest
    assert search.stopped is stopped


def test_include_keeps_the_longest_that_starts_there() -> None:
    search = StopSearch(["ab", "abcd"], include=True)
    assert run(search, ["xabc", "dz"]) == "xabcd"
    assert run(search.fresh(), ["xabc", "z"]) == "xab"


def test_everything_after_a_stop_is_dropped() -> None:
    search = StopSearch(["x"])
    assert [search.push(text) for text in ("ax", "b", "x")] == ["a", "", ""]
    assert search.flush() == ""


def test_fresh_starts_over() -> None:
    search = StopSearch(["stop"], include=True)
    search.push("a st")
    assert run(search.fresh(), ["op"]) == "op"
    assert run(search, ["op"]) == "stop"


def test_an_empty_stop_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopSearch(["a", ""])


def lines_run(stops: list[str], chunks: list[str]) -> int:
    """Work done by the search, counted in lines of its own module."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        if frame.f_code.co_filename != gateway.stops.__file__:
            return None
        count += event == "line"
        return trace

    search = StopSearch(stops)
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        for chunk in chunks:
            search.push(chunk)
    finally:
        sys.settrace(before)
    assert not search.stopped
    return count


@pytest.mark.parametrize(
    ("stops", "unit"),
    [
        (["stop"], "no such word here, st, sto. "),
        (["a" * 64 + "b"], "a"),
        (["a" * 64 + "b", "a" * 32 + "c", "ab" * 16 + "c"], "aab"),
        (["ab" * 20 + "c"], "ab"),
    ],
)
@pytest.mark.parametrize("size", [1, 3, 50])
def test_work_is_linear(stops: list[str], unit: str, size: int) -> None:
    def chunks(n: int) -> list[str]:
        text = unit * (n // len(unit))
        return [text[i : i + size] for i in range(0, len(text), size)]

    one, two = lines_run(stops, chunks(3000)), lines_run(stops, chunks(6000))
    assert two < 2.1 * one
    assert two < 40 * 6000
