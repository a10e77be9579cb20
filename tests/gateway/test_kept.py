"""What is kept for the next request, and what has to go for it."""

from __future__ import annotations

from gateway.kept import Kept


def kept() -> Kept[str, int]:
    return Kept(most=3, most_bytes=10)


def test_the_least_recently_used_go_first() -> None:
    some = kept()
    for number, key in enumerate("abc"):
        some.put(key, number, 1)
    assert some.get("a") == 0
    some.put("d", 3, 1)
    assert [some.get(key) for key in "abcd"] == [0, None, 2, 3]
    assert (len(some), some.nbytes) == (3, 3)


def test_bytes_are_bounded() -> None:
    some = kept()
    some.put("a", 1, 6)
    some.put("b", 2, 6)
    assert (some.get("a"), some.get("b"), some.nbytes) == (None, 2, 6)


def test_what_is_too_large_costs_nobody_their_place() -> None:
    some = kept()
    some.put("a", 1, 6)
    some.put("b", 2, 11)
    assert (some.get("a"), some.get("b"), some.nbytes) == (1, None, 6)


def test_a_key_is_counted_once() -> None:
    some = kept()
    some.put("a", 1, 6)
    some.put("a", 2, 3)
    assert (some.get("a"), some.nbytes, len(some)) == (2, 3, 1)
