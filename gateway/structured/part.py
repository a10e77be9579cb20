"""One object of a structural tag: its fields are taken one by one, and none may be left over."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NoReturn

from ..errors import InvalidRequest
from ..openai.fields import kind
from .source import Source


class Part:
    """Every method raises InvalidRequest that names the field by its path in the tag."""

    def __init__(self, source: Source, path: str, given: dict[str, object]) -> None:
        self.source = source
        self.path = path
        self.given = {key: value for key, value in given.items() if value is not None}

    @classmethod
    def of(cls, source: Source, path: str, value: object) -> Part:
        if not isinstance(value, dict):
            raise source.invalid(f"'{path}' should be an object, but is {kind(value)}.")
        return cls(source, path, value)

    @property
    def depth(self) -> int:
        return self.path.count(".")

    def at(self, name: str, position: int | None = None) -> str:
        step = name if position is None else f"{name}[{position}]"
        return f"{self.path}.{step}" if self.path else step

    def fail(self, problem: str) -> NoReturn:
        raise self._error(f"{problem}{f' (at {self.path})' if self.path else ''}.")

    def _error(self, problem: str) -> InvalidRequest:
        return self.source.invalid(problem)

    def take(self, name: str) -> object:
        if name not in self.given:
            raise self._error(f"'{self.at(name)}' is missing.")
        return self.given.pop(name)

    def end(self) -> None:
        for name in self.given:
            raise self._error(f"'{self.at(name[:100])}' is unknown.")

    def refuse(self, *names: str) -> None:
        """Fields that are served only in the form that asks for nothing."""
        for name in names:
            if self.given.pop(name, None):
                raise self._error(f"'{self.at(name)}' is not served.")

    def text(self, name: str) -> str:
        value = self.take(name)
        if not isinstance(value, str):
            raise self._error(f"'{self.at(name)}' should be a string, but is {kind(value)}.")
        return value

    def texts(self, name: str, *, optional: bool = False) -> list[str]:
        if optional and name not in self.given:
            return []
        values = self.take(name)
        if not isinstance(values, list) or not (values or optional):
            raise self._error(f"'{self.at(name)}' should be an array of strings.")
        for value in values:
            if not isinstance(value, str) or not value:
                raise self._error(f"'{self.at(name)}' should hold strings, none of them empty.")
        return values

    def word(self, name: str, words: Sequence[str]) -> str:
        """One of some words; the first is the default."""
        value = self.given.pop(name, words[0])
        if value not in words:
            raise self._error(f"'{self.at(name)}' should be {' or '.join(map(repr, words))}.")
        return str(value)

    def flag(self, name: str, *, default: bool = False) -> bool:
        value = self.given.pop(name, default)
        if not isinstance(value, bool):
            raise self._error(f"'{self.at(name)}' should be a boolean, but is {kind(value)}.")
        return value

    def number(self, name: str, *, default: int | None = None) -> int:
        value = self.take(name) if default is None else self.given.pop(name, default)
        if type(value) is not int:
            raise self._error(f"'{self.at(name)}' should be an integer, but is {kind(value)}.")
        return value

    def schema(self, name: str) -> dict[str, object]:
        value = self.take(name)
        if not isinstance(value, dict):
            raise self._error(f"'{self.at(name)}' should be a JSON schema, but is {kind(value)}.")
        return value

    def items(self, name: str) -> list[object]:
        values = self.take(name)
        if not isinstance(values, list) or not values:
            raise self._error(f"'{self.at(name)}' should be an array, not empty.")
        return values

    def parts(self, name: str) -> Iterator[Part]:
        for position, value in enumerate(self.items(name)):
            yield Part.of(self.source, self.at(name, position), value)
