"""Paths that are gone are watched like those that are there."""

from __future__ import annotations

from collections import Counter

from cache.ghosts import REMEMBERED, Ghost, Ghosts


def test_it_grows_older_step_by_step_until_it_is_taken() -> None:
    passed: Counter[tuple[int, int]] = Counter()
    ghosts = Ghosts(lambda fate, step: passed.update([(fate, step)]))
    ghosts.add(b"one", Ghost(7, 2, 100.0, 1))
    ghosts.add(b"two", Ghost(-1, 0, 101.0, 0))
    ghosts.advance(100.9)
    assert not passed
    ghosts.advance(102.0)
    assert passed == {(7, 1): 1, (7, 2): 1, (-1, 0): 1, (-1, 1): 1}
    taken = ghosts.take(b"one")
    assert taken is not None
    assert (taken.streak, taken.step) == (2, 3)
    assert ghosts.take(b"one") is None
    ghosts.advance(1e9)
    assert sum(count for (fate, _), count in passed.items() if fate == 7) == 2, "it is watched no more"
    assert sum(count for (fate, _), count in passed.items() if fate == -1) == 13


def test_a_path_that_goes_again_is_the_newer_one() -> None:
    ghosts = Ghosts(lambda fate, step: None)
    ghosts.add(b"one", Ghost(1, 0, 0.0, 0))
    ghosts.add(b"one", Ghost(2, 0, 50.0, 0))
    ghosts.advance(60.0)
    ghost = ghosts.take(b"one")
    assert ghost is not None
    assert (ghost.fate, ghost.step) == (2, 5)


def test_the_oldest_gives_way() -> None:
    ghosts = Ghosts(lambda fate, step: None)
    for place in range(REMEMBERED + 1):
        ghosts.add(b"%d" % place, Ghost(1, 0, 0.0, 0))
    assert len(ghosts) == REMEMBERED
    assert ghosts.take(b"0") is None
    assert ghosts.take(b"1") is not None
