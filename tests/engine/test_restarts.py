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
