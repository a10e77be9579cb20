import stat
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from engine.private_directory import PREFIX, PrivateDirectory


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_only_this_user_can_enter_and_it_goes_with_all_it_holds(temporary: Path) -> None:
    directory = PrivateDirectory()
    assert stat.S_IMODE(directory.path.stat().st_mode) == 0o700
    (directory.path / "socket").touch()
    directory.close()
    assert list(temporary.iterdir()) == []


def test_many_at_once_take_nothing_from_each_other() -> None:
    """A directory is there for a moment before it is locked, as a dead one would be."""

    def make_and_use(_: int) -> None:
        directory = PrivateDirectory()
        (directory.path / "socket").touch()
        directory.close()

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(make_and_use, range(400)))


def test_what_a_killed_process_left_is_removed_and_nothing_else(temporary: Path) -> None:
    in_use = PrivateDirectory()
    stale, foreign, file = temporary / f"{PREFIX}stale", temporary / "other", temporary / f"{PREFIX}file"
    for directory in (stale, foreign):
        directory.mkdir()
        (directory / "socket").touch()
    file.touch()
    (temporary / f"{PREFIX}link").symlink_to(foreign)
    new = PrivateDirectory()
    assert not stale.exists()
    assert (foreign / "socket").exists()
    assert file.exists()
    assert in_use.path.exists()
    for directory in (in_use, new):
        directory.close()
