"""When loading beats computing, and how long a disk is waited for."""

from __future__ import annotations

import math

import pytest

from engine.load_costs import LONGEST_WAIT, PATIENCE, SLACK, LoadCosts, always_dear


def costs(per_token: float) -> LoadCosts:
    return LoadCosts(
        host_page=0.001, disk_page=0.01, page_size=10, recompute=lambda before, count: per_token * count
    )


@pytest.mark.parametrize(
    ("per_token", "host", "disk"), [(0.00009, False, False), (0.0005, True, False), (0.0012, True, True)]
)
def test_what_is_cheaper_is_done(per_token: float, host: bool, disk: bool) -> None:
    assert costs(per_token).host_pays(3, 4) == host
    assert costs(per_token).disk_pays(3, 4) == disk
    assert not costs(per_token).host_pays(3, 0), "nothing is no gain"


def test_what_comes_before_makes_computing_dearer() -> None:
    growing = LoadCosts(
        host_page=1.0, disk_page=1.0, page_size=10, recompute=lambda before, count: count * before / 100
    )
    assert not growing.host_pays(0, 5)
    assert growing.host_pays(2, 5)


@pytest.mark.parametrize(
    ("per_token", "expected"),
    [
        (0.0011, 0.011 * 4),  # computing itself
        (0.005, 0.01 * 4 * PATIENCE + SLACK),
        (0.05, 1.0),  # half of it
        (10.0, LONGEST_WAIT),
    ],
    ids=["no longer than computing", "a few times the usual", "half of the computing", "not for ever"],
)
def test_a_disk_is_waited_for_as_long_as_it_may_help(per_token: float, expected: float) -> None:
    assert costs(per_token).wait_for_disk(0, 4) == pytest.approx(expected)


def test_without_knowledge_a_disk_is_waited_for_as_usual() -> None:
    unknown = LoadCosts(host_page=0.001, disk_page=0.01, page_size=10, recompute=always_dear)
    assert unknown.recompute(0, 1) == math.inf
    assert unknown.wait_for_disk(0, 4) == pytest.approx(0.01 * 4 * PATIENCE + SLACK)


def test_what_reads_take_is_learned() -> None:
    some = costs(1.0)
    for _ in range(50):
        some.learn_disk(0.4, 4, 4)
    assert some.disk_page == pytest.approx(0.1, rel=0.01)


def test_a_read_that_nobody_waited_for_long_enough_does_not_end_the_tier() -> None:
    some = costs(0.0015)
    assert some.disk_pays(0, 100)
    some.learn_disk(0.9, 0, 100)
    assert some.disk_page == 0.01, "pages of which nothing is known are no slower than the usual"
    some.learn_disk(5.0, 1, 100)
    assert not some.disk_pays(0, 100)
    passed_over = 0
    while not some.disk_pays(0, 100):
        some.passed_over()
        passed_over += 1
    assert 3 < passed_over < 60
    assert some.disk_page > 0.01
    for _ in range(1000):
        some.passed_over()
    assert some.disk_page >= 0.01
