"""Models of the Hugging Face hub, in the hub client's own cache, so that what other tools downloaded is not downloaded again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from tqdm.auto import tqdm

from ..errors import ModelError
from .reference import HubModel
from .worker import Progress, ProgressCallback

# Weights and the files that describe them, of the top directory only: repositories also carry other formats and copies.
_WANTED = ["*.json", "*.safetensors", "chat_template.jinja"]
_UNWANTED = ["*/*", "consolidated*.safetensors"]


def hub_snapshot(model: HubModel, report: ProgressCallback, *, offline: bool) -> tuple[Path, str]:
    """The hub's own cache directory of a model, downloaded unless complete, and its commit. Raises ModelError."""
    name = model.repo if model.revision is None else f"{model.repo}@{model.revision}"
    try:
        path = snapshot_download(
            model.repo,
            revision=model.revision,
            local_files_only=offline,
            allow_patterns=_WANTED,
            ignore_patterns=_UNWANTED,
            tqdm_class=_reporting_bar(report),
        )
    except GatedRepoError as error:
        raise ModelError(f"{name} is gated: accept its terms on the hub and set HF_TOKEN") from error
    except RepositoryNotFoundError as error:
        raise ModelError(f"{name} does not exist here or on the hub, or is private (set HF_TOKEN)") from error
    except RevisionNotFoundError as error:
        raise ModelError(f"{name}: the repository has no such revision") from error
    except Exception as error:  # the client documents no root of what it and its HTTP library raise
        if offline and isinstance(error, LocalEntryNotFoundError):
            raise ModelError(f"{name} is not on this machine, and downloads are switched off") from error
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise ModelError(
            f"{name} is not on this machine and cannot be had from the hub: {reason[0]}"
        ) from error
    return Path(path), Path(path).name


def _reporting_bar(report: ProgressCallback) -> type[Any]:
    """A tqdm class that draws nothing and passes bytes on: the shape in which the hub's client tells its progress."""

    class ReportingBar(tqdm):  # type: ignore[misc]  # tqdm is not typed
        def display(self, *_: object, **__: object) -> None:
            if self.unit == "B" and self.total:
                report(Progress("downloading", int(self.n), int(self.total)))

    return ReportingBar
