"""What an operator may write to name a model."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from ..errors import ModelError

DEMO_ID = "smollm2-135m-instruct"

_HUB_ID = re.compile(r"(?P<repo>[\w][\w.-]*/[\w][\w.-]*)(@(?P<revision>[\w][\w./-]*))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class DemoModel:
    """SmolLM2-135M-Instruct, Apache-2.0, the model that is served when none is named."""

    id: str = DEMO_ID
    key: str = DEMO_ID


@dataclass(frozen=True, slots=True)
class GGUFPath:
    path: Path

    @property
    def id(self) -> str:
        return self.path.stem

    @property
    def key(self) -> str:
        return _key(self.path.stem, str(self.path))


@dataclass(frozen=True, slots=True)
class Directory:
    path: Path

    @property
    def id(self) -> str:
        return self.path.name

    @property
    def key(self) -> str:
        return _key(self.path.name, str(self.path))


@dataclass(frozen=True, slots=True)
class HubModel:
    """`revision` is a branch, a tag or a commit; None is the repository's default branch."""

    repo: str
    revision: str | None = None

    @property
    def id(self) -> str:
        return self.repo

    @property
    def key(self) -> str:
        return _key(self.repo, f"{self.repo}@{self.revision}")


Reference = DemoModel | GGUFPath | Directory | HubModel
"""`id` is the name the model is served under, `key` a file name that is unique to the reference in one store."""


def parse_reference(text: str | None) -> Reference:
    """None is the demo model. What exists on disk wins over a hub id of the same spelling. Raises ModelError."""
    if text is None or text == DEMO_ID:
        return DemoModel()
    if not text.strip():
        raise ModelError("the model's name is empty")
    path = Path(text).expanduser()
    if path.is_dir():
        return Directory(path.resolve())
    if path.is_file() and path.suffix.lower() != ".gguf":
        raise ModelError(f"{text} is neither a directory nor a .gguf file")
    if path.is_file():
        return GGUFPath(path.resolve())
    match = _HUB_ID.fullmatch(text)
    if match is None or path.suffix.lower() == ".gguf":
        raise ModelError(f"{text} does not exist, and is not a model id of the form org/name")
    return HubModel(match["repo"], match["revision"])


def _key(name: str, identity: str) -> str:
    readable = re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-.")[:60]
    return f"{readable}-{hashlib.sha256(identity.encode()).hexdigest()[:10]}"
