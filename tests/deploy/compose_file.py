"""`docker-compose.yml` as compose would read it, as far as ours needs: anchors, `${NAME:-default}` and `$$`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = ROOT / "docker-compose.yml"
DOCKERFILE = ROOT / "Dockerfile"

_VARIABLE = re.compile(r"\$(?:(\$)|\{([A-Z_]+)(?::-([^}]*))?\})")


def read(variables: Mapping[str, str] | None = None) -> dict[str, Any]:
    """With defaults for variables that are not given."""
    file: dict[str, Any] = yaml.safe_load(text(variables).replace("$$", "$"))
    return file


def text(variables: Mapping[str, str] | None = None) -> str:
    """The file with values for its variables; `$$` stays."""
    given = variables or {}
    return _VARIABLE.sub(
        lambda found: found[0] if found[1] else given.get(found[2]) or found[3] or "",
        COMPOSE.read_text("utf-8"),
    )


def variables() -> set[str]:
    """Those that the file asks the caller's environment for."""
    return {name for _, name, _ in _VARIABLE.findall(COMPOSE.read_text("utf-8")) if name}


def image_environment() -> dict[str, str]:
    """What the Dockerfile's last stage sets."""
    last = DOCKERFILE.read_text("utf-8").rpartition("\nFROM ")[2].replace("\\\n", " ")
    words = [word for line in last.splitlines() if line.startswith("ENV ") for word in line.split()[1:]]
    return dict(word.split("=", 1) for word in words)
