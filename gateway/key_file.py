"""Keys from files, for operators who keep secrets out of flags and the environment."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from engine.errors import StartError

from .config import Http, is_key


def with_file_keys(http: Http) -> Http:
    """The same settings with the keys of `api_key_file` among `api_keys`, and the one in `admin_key_file`. Raises StartError; a
    file without a key is one of the reasons, since it would open the server to everybody."""
    return _with_admin_key(_with_api_keys(http))


def _with_api_keys(http: Http) -> Http:
    if http.api_key_file is None:
        return http
    keys = _read(http.api_key_file)
    if not keys:
        raise StartError(f"{http.api_key_file} holds no API key")
    try:
        return Http(**{**dict(http), "api_keys": (*http.api_keys, *keys), "api_key_file": None})
    except ValidationError:
        raise StartError(f"{http.api_key_file}: an API key is printable ASCII without blanks") from None


def _with_admin_key(http: Http) -> Http:
    if http.admin_key_file is None:
        return http
    keys = _read(http.admin_key_file)
    if len(keys) != 1:
        raise StartError(f"{http.admin_key_file} has to hold one key, the admin key, and holds {len(keys)}")
    if http.admin_key is not None:
        raise StartError("the admin key is given twice, as itself and in a file")
    if not is_key(keys[0]):
        raise StartError(f"{http.admin_key_file}: the admin key is printable ASCII without blanks")
    return http.model_copy(update={"admin_key": keys[0], "admin_key_file": None})


def _read(path: Path) -> list[str]:
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise StartError(f"cannot read the keys in {path}: {error}") from None
    return [key for line in lines if (key := line.partition("#")[0].strip())]
