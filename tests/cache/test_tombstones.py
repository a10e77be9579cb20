from __future__ import annotations

from cache.tombstones import Gone, Tombstones


def name(number: int) -> bytes:
    return number.to_bytes(32, "big")[::-1]


def test_what_went_is_known_until_it_comes_back() -> None:
    stones = Tombstones()
    stones.add(name(1), "pressure", 10.0, broken=True)
    assert stones.find(name(1), 15.0) == Gone("pressure", 5.0, True)
    assert stones.find(name(2), 15.0) is None
    stones.forget(name(1))
    stones.forget(name(2))
    assert stones.find(name(1), 15.0) is None


def test_what_happened_last_counts() -> None:
    stones = Tombstones()
    stones.add(name(1), "pressure", 10.0)
    stones.add(name(1), "flushed", 5.0)  # a page that was flushed before is reclaimed only now
    assert stones.find(name(1), 12.0) == Gone("pressure", 2.0, False)
    stones.add(name(1), "quota", 11.0)
    assert stones.find(name(1), 12.0) == Gone("quota", 1.0, False)


def test_the_oldest_are_forgotten() -> None:
    stones = Tombstones(3)
    for number in range(5):
        stones.add(name(number), "pressure", float(number))
    assert [stones.find(name(number), 9.0) is not None for number in range(5)] == [
        False,
        False,
        True,
        True,
        True,
    ]
    assert len(stones) == 3
    stones.add(name(2), "pressure", 6.0)
    stones.add(name(9), "pressure", 7.0)
    assert stones.find(name(2), 9.0) is not None, "one that went again is young again"
    assert stones.find(name(3), 9.0) is None
