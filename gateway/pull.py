"""Fetching a model with something to look at: a progress bar on a terminal, one line a stage elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from engine.model_store.store import LocalModel, ModelStore
from engine.model_store.worker import Progress as Stage


def pull(store: Path, ref: str | None, console: Console, *, offline: bool = False) -> LocalModel:
    """The model, fetched into the store if it is not there. Blocks. Raises ModelError."""
    models = ModelStore(store)
    found = models.locate(ref)
    if found is not None:
        return found
    with _shown(console) as report:
        return models.fetch(ref, report, offline=offline)


@contextmanager
def _shown(console: Console) -> Iterator[Callable[[Stage], None]]:
    if not console.is_terminal:
        yield _Lines(console).show
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        yield _Bars(progress).show


class _Lines:
    """A line as each stage begins."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._stage: str | None = None

    def show(self, stage: Stage) -> None:
        if stage.stage != self._stage:
            self._stage = stage.stage
            self._console.print(f"model: {stage.stage} …")


class _Bars:
    """A bar for each stage."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._tasks: dict[str, TaskID] = {}

    def show(self, stage: Stage) -> None:
        task = self._tasks.get(stage.stage)
        if task is None:
            task = self._tasks[stage.stage] = self._progress.add_task(stage.stage, total=None)
        self._progress.update(task, completed=stage.done, total=stage.total or None)
