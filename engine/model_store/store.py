"""The model store: from what an operator wrote to a directory that can be served.

<root>/models/<key>/         imported models, each with its record in headwater.json
<root>/records/<key>.json    records of directories that are used where they lie (local, or the hub's own cache)
<root>/sources/              downloaded files that models are imported from
<root>/locks/<key>.lock      one fetch of a model at a time, over all processes
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..errors import ModelError
from .hf_layout import serving_files
from .records import Record, read_record
from .reference import DemoModel, Directory, GGUFPath, Reference, parse_reference
from .worker import ProgressCallback, run_fetch


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model that is ready to be served from `path`, a directory in Hugging Face layout.

    `source` says where it came from, for people. `digests` maps each file that serving reads to its SHA-256 in hex.
    `created` is in seconds since the epoch.
    """

    id: str
    path: Path
    source: str
    digests: dict[str, str]
    created: int


class ModelStore:
    def __init__(self, root: Path) -> None:
        self.root = root

    def locate(self, ref: str | None) -> LocalModel | None:
        """The model if it is ready; None if `fetch` has to work for it. Fast: no network, no hashing, no torch.

        `ref` is a directory, a .gguf file, a hub id (`org/name` or `org/name@revision`), or None for the demo model.
        Raises ModelError if `ref` names nothing, or a directory that cannot be served.
        """
        reference = parse_reference(ref)
        names = set(serving_files(reference.path)) if isinstance(reference, Directory) else None
        record_path = self.record_path(reference)
        record = read_record(record_path)
        if record is None:
            return None
        directory = record_path.parent / record.path
        if not record.holds(directory) or names not in (None, record.files.keys()):
            return None
        if isinstance(reference, GGUFPath) and not _made_of(record, reference.path):
            return None
        digests = {name: file.sha256 for name, file in record.files.items()}
        return LocalModel(reference.id, directory.resolve(), record.source.name, digests, record.created)

    def fetch(self, ref: str | None, progress: ProgressCallback, *, offline: bool = False) -> LocalModel:
        """As `locate`, after doing whatever is missing: download, import, hash. Blocks, for minutes if the model is large.

        With `offline` a download is an error; importing what is on this machine is not. The work happens in a child process, so neither its memory nor its imports stay. Raises ModelError.
        """
        found = self.locate(ref)
        if found is None:
            run_fetch(self.root, ref, progress, offline=offline)
            found = self.locate(ref)
        if found is None:
            raise ModelError(f"{ref or 'the demo model'} changed while it was fetched: try again")
        return found

    # -- where things lie ----------------------------------------------------------------------------------------------

    def record_path(self, reference: Reference) -> Path:
        if isinstance(reference, DemoModel | GGUFPath):
            return self.model_path(reference) / "headwater.json"
        return self.root / "records" / f"{reference.key}.json"

    def model_path(self, reference: DemoModel | GGUFPath) -> Path:
        return self.root / "models" / reference.key

    def lock_path(self, reference: Reference) -> Path:
        return self.root / "locks" / f"{reference.key}.lock"

    @property
    def sources(self) -> Path:
        return self.root / "sources"


def _made_of(record: Record, path: Path) -> bool:
    return record.source.file is not None and record.source.file.describes(path)
