"""A directory in Hugging Face layout, looked at before anything of it is used."""

from __future__ import annotations

from pathlib import Path

from ..errors import ModelError
from ..json_file import read_json_object

WEIGHTS = "model.safetensors"
WEIGHTS_INDEX = "model.safetensors.index.json"
_TEXT_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
)
_PICKLED = (".bin", ".pt", ".pth", ".ckpt")


def serving_files(directory: Path) -> list[str]:
    """The names of the files of a model that serving reads, sorted. Raises ModelError naming what is missing or refused.

    Only safetensors are accepted: pickled weights can run code. A config that asks for remote code is refused.
    """
    for name in ("config.json", "tokenizer.json"):
        if not (directory / name).is_file():
            raise ModelError(f"{directory} has no {name}")
    for name in ("config.json", "tokenizer_config.json"):
        if (directory / name).is_file() and "auto_map" in read_json_object(directory / name):
            raise ModelError(
                f"{directory / name} asks for remote code (auto_map): Headwater does not run code from models"
            )
    text = [name for name in _TEXT_FILES if (directory / name).is_file()]
    return sorted(text + _weight_files(directory))


def _weight_files(directory: Path) -> list[str]:
    if (directory / WEIGHTS_INDEX).is_file():
        return [WEIGHTS_INDEX, *_shards(directory)]
    if (directory / WEIGHTS).is_file():
        return [WEIGHTS]
    if any(path.suffix in _PICKLED for path in directory.iterdir()):
        raise ModelError(
            f"{directory} has only pickled weights ({', '.join(_PICKLED)}): Headwater reads safetensors only"
        )
    raise ModelError(f"{directory} has neither {WEIGHTS} nor {WEIGHTS_INDEX}")


def _shards(directory: Path) -> list[str]:
    weight_map = read_json_object(directory / WEIGHTS_INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelError(f"{directory / WEIGHTS_INDEX} has no weight_map")
    shards = sorted({str(name) for name in weight_map.values()})
    for name in shards:
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise ModelError(
                f"{directory / WEIGHTS_INDEX} names {name!r}, which is not a safetensors file beside it"
            )
        if not (directory / name).is_file():
            raise ModelError(f"{directory} lacks {name}, which its index names")
    return shards
