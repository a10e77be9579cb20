import select
import threading
import time

from engine.wakeup import Wakeup


def readable(wakeup: Wakeup) -> bool:
    return bool(select.select([wakeup.fileno()], [], [], 0)[0])


def test_it_is_readable_from_the_first_set_to_the_next_clear() -> None:
    wakeup = Wakeup()
    assert not readable(wakeup)
    wakeup.set()
    wakeup.set()
    assert readable(wakeup)
    wakeup.clear()
    assert not readable(wakeup)
    wakeup.clear()
    wakeup.close()


def test_another_thread_ends_a_wait() -> None:
    wakeup = Wakeup()
    began = time.monotonic()
    wakeup.wait(0.02)
    assert time.monotonic() - began >= 0.02
    threading.Timer(0.02, wakeup.set).start()
    wakeup.wait(30)
    assert time.monotonic() - began < 10
    wakeup.close()


def test_setting_it_after_its_end_touches_no_other_file() -> None:
    wakeup, other = Wakeup(), Wakeup()
    number = wakeup.fileno()
    wakeup.close()
    reopened = Wakeup()
    assert reopened.fileno() == number
    wakeup.set()
    assert not readable(reopened)
    reopened.close()
    other.close()
