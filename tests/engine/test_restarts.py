from engine.restarts import RestartPolicy, Restarts


def test_delays_grow_from_none_and_then_it_gives_up() -> None:
    restarts = Restarts(RestartPolicy())
    assert [restarts.crashed(now) for now in range(6)] == [0, 1, 2, 4, 8, None]
    assert restarts.total == 6


def test_delays_have_a_bound() -> None:
    restarts = Restarts(RestartPolicy(limit=20))
    assert [restarts.crashed(0) for _ in range(10)][-3:] == [60, 60, 60]


def test_crashes_long_ago_are_forgotten() -> None:
    restarts = Restarts(RestartPolicy(window=10))
    assert [restarts.crashed(now) for now in (0, 9, 20, 40)] == [0, 1, 0, 0]


def test_refusals_grow_to_a_bound_are_never_too_many_and_are_no_crashes() -> None:
    restarts = Restarts(RestartPolicy(limit=1, longest=8.0))
    assert [restarts.refused() for _ in range(6)] == [1.0, 2.0, 4.0, 8.0, 8.0, 8.0]
    assert min(restarts.refused() for _ in range(2000)) == 8.0
    assert restarts.crashed(0.0) == 0.0
    assert restarts.refused() == 1.0
    assert restarts.total == 2008
