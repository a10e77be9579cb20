import os
import time

import pytest

from engine.heartbeat import INTERVAL, Beat, BeatReader, Phase, Progress, Vitals, Watchdog, start_heartbeat

WATCHDOG = Watchdog(start_timeout=100, late_after=2, frozen_after=3.5, stuck_after=60)


def run(vitals: Vitals, start: float, seconds: float, beat: Beat | None) -> str | None:
    """Ask as the supervisor does, with beats all along unless `beat` is None; the first verdict, if any."""
    for tick in range(1, round(seconds / INTERVAL) + 1):
        now = start + tick * INTERVAL
        if beat is not None:
            vitals.beat(beat, now)
        if (verdict := vitals.lost(now)) is not None:
            return verdict
    return None


def ready_vitals() -> Vitals:
    vitals = Vitals(WATCHDOG, 0.0)
    vitals.ready(0.0)
    return vitals


def test_a_beat_crosses_the_pipe() -> None:
    reading, writing = os.pipe()
    reader = BeatReader(reading)
    progress = Progress()
    progress.steps = 2**40
    progress.enter(Phase.RUNNING)
    try:
        assert reader.read() is None
        thread = start_heartbeat(writing, progress)
        deadline = time.monotonic() + 2
        while (beat := reader.read()) is None and time.monotonic() < deadline:
            time.sleep(0.005)
        assert beat is not None
        assert (beat.steps, beat.phase) == (2**40, Phase.RUNNING)
        assert 0 <= beat.seconds < 2
    finally:
        reader.close()
    thread.join(2)  # nobody reads any more
    assert not thread.is_alive()
    os.close(writing)


def test_the_newest_whole_beat_counts_and_a_closed_pipe_is_the_end() -> None:
    reading, writing = os.pipe()
    reader = BeatReader(reading)
    from engine.heartbeat import _BEAT

    os.write(writing, _BEAT.pack(1, 1, 0.0) + _BEAT.pack(2, 4, 0.5) + _BEAT.pack(3, 1, 0.0)[:5])
    assert reader.read() == Beat(2, Phase.RUNNING, 0.5)
    os.write(writing, _BEAT.pack(3, 1, 0.0)[5:])
    assert reader.read() == Beat(3, Phase.IDLE, 0.0)
    os.close(writing)
    with pytest.raises(EOFError):
        reader.read()
    reader.close()


def test_a_silent_engine_is_late_then_lost() -> None:
    vitals = ready_vitals()
    assert run(vitals, 0, 2, None) is None
    assert not vitals.late(2.0)
    assert vitals.late(2.25)
    assert run(vitals, 2, 1.5, None) is None
    assert run(vitals, 3.5, 1, None) == "no heartbeat for 3.8 s"
    assert not vitals.stuck


def test_a_long_step_with_beats_is_alive_until_it_is_too_long() -> None:
    vitals = ready_vitals()
    running = Beat(5, Phase.RUNNING, 0.0)
    assert run(vitals, 0, 60, running) is None
    assert run(vitals, 60, 1, running) == "no step done for 60 s (running for 0 s)"
    assert vitals.stuck


def test_progress_or_idleness_is_not_stuck() -> None:
    vitals = ready_vitals()
    for minute in range(3):
        assert run(vitals, minute * 59, 59, Beat(minute, Phase.RUNNING, 0.0)) is None
    assert run(vitals, 177, 600, Beat(2, Phase.IDLE, 0.0)) is None


def test_while_starting_only_the_start_timeout_counts() -> None:
    vitals = Vitals(WATCHDOG, 0.0)
    assert run(vitals, 0, 100, None) is None
    assert not vitals.late(100)
    assert run(vitals, 100, 1, None) == "not ready after 100 s"


def test_time_the_watcher_slept_through_does_not_count() -> None:
    vitals = ready_vitals()
    running = Beat(5, Phase.RUNNING, 0.0)
    assert run(vitals, 0, 10, running) is None
    # Both were stopped for ten minutes, and the engine beats again a little later than we look.
    assert vitals.lost(610.0) is None
    assert not vitals.late(610.0)
    assert run(vitals, 610, 1.75, None) is None
    assert run(vitals, 611.75, 48, running) is None  # and the step goes on where it was
    assert run(vitals, 611.75, 60, None) is not None
