"""The child's end of a fetch: download what is missing, import it, record the digest of each file."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import ModelError
from .demo_source import DEMO_SOURCE, demo_gguf
from .gguf_import import import_gguf, imported_bytes
from .hf_layout import serving_files
from .hub_source import hub_snapshot
from .records import IMPORTER_VERSION, Record, Source, hash_file, write_record
from .reference import DemoModel, GGUFPath, HubModel, Reference, parse_reference
from .store import ModelStore
from .worker import Progress, ProgressCallback, Stage


def fetch(store: ModelStore, ref: str | None, report: ProgressCallback, *, offline: bool) -> None:
    """Make `store.locate(ref)` succeed. One process at a time does it for a model. Raises ModelError."""
    reference = parse_reference(ref)
    try:
        with _locked(store.lock_path(reference), report):
            if store.locate(ref) is None:
                _fetch(store, reference, report, offline=offline)
    except OSError as error:
        # The disk: full, read-only, not ours. A source that cannot be read has been named before.
        raise ModelError(
            f"cannot write to the model store {store.root}: {error.strerror or error}"
        ) from error


def _fetch(store: ModelStore, reference: Reference, report: ProgressCallback, *, offline: bool) -> None:
    if isinstance(reference, DemoModel):
        path = demo_gguf(store.sources, report, offline=offline)
        _import(path, DEMO_SOURCE, store.model_path(reference), report)
    elif isinstance(reference, GGUFPath):
        _import(reference.path, str(reference.path), store.model_path(reference), report)
    elif isinstance(reference, HubModel):
        path, commit = hub_snapshot(reference, report, offline=offline)
        _record(path, f"{reference.repo}@{commit}", store.record_path(reference), report)
    else:
        _record(reference.path, str(reference.path), store.record_path(reference), report)


def _import(path: Path, source: str, target: Path, report: ProgressCallback) -> None:
    """Written beside its place and moved there whole. The lock is held, so whatever lies in the way is a leftover."""
    needed = imported_bytes(path)  # a file that cannot be imported says so before it is read to its end
    target.parent.mkdir(parents=True, exist_ok=True)
    partial, old = target.with_name(f".{target.name}.partial"), target.with_name(f".{target.name}.old")
    _remove(partial, old)
    free = shutil.disk_usage(target.parent).free
    if free < needed * 1.02:
        raise ModelError(
            f"{target.parent} has {free >> 20} MiB free, and the import of {path.name} needs {needed >> 20} MiB"
        )
    try:
        partial.mkdir()
        file = hash_file(path, Meter("hashing", path.stat().st_size, report).advance, in_place=True)
        files = import_gguf(path, partial, Meter("importing", needed, report).advance)
        record = Record(".", Source(source, file), int(time.time()), files, IMPORTER_VERSION)
        write_record(partial / "headwater.json", record)
        if target.exists():
            target.rename(old)
        partial.rename(target)
        _sync_directory(target.parent)
    finally:
        _remove(partial, old)


def _record(directory: Path, source: str, record_path: Path, report: ProgressCallback) -> None:
    names = serving_files(directory)
    meter = Meter("hashing", sum((directory / name).stat().st_size for name in names), report)
    files = {name: hash_file(directory / name, meter.advance, in_place=True) for name in names}
    created = int((directory / "config.json").stat().st_mtime)
    write_record(record_path, Record(str(directory), Source(source), created, files))


class Meter:
    """Counts the bytes of one stage and reports about every half per cent."""

    def __init__(self, stage: Stage, total: int, report: ProgressCallback) -> None:
        self._stage = stage
        self._total = total
        self._report = report
        self._done = self._reported = 0
        report(Progress(stage, 0, total))

    def advance(self, size: int) -> None:
        self._done += size
        if self._done - self._reported >= self._total / 200 or self._done == self._total:
            self._reported = self._done
            self._report(Progress(self._stage, self._done, self._total))


@contextmanager
def _locked(path: Path, report: ProgressCallback) -> Iterator[None]:
    """An exclusive lock that ends with the process, however it ends. The file stays: removing it would race."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report(Progress("waiting"))
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _remove(*directories: Path) -> None:
    for directory in directories:
        if directory.exists():
            shutil.rmtree(directory)


def _sync_directory(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
