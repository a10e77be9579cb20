"""Backends whose grammars say what they do: in place of `grammar.backends.route`, in the compiler and in its workers.

A grammar is a Choice: the names of the backends to try, then `|`, then what happens at `compile`. The one text that fits
is token 65 three times.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from grammar.backends.base import Bits
from grammar.errors import BadGrammar, BadSchema, MatcherError, TooComplex
from grammar.spec import BackendName, Choice, Grammar
from grammar.vocabulary import Vocabulary

TOKEN = 65
LENGTH = 3


def script(what: str, *names: BackendName, note: str = "") -> Grammar:
    """`note` makes one script several grammars."""
    return Choice((*(names or ("llguidance",)), "|", what, note))


def candidates(grammar: Grammar) -> Sequence[BackendName]:
    assert isinstance(grammar, Choice)
    return grammar.options[: grammar.options.index("|")]  # type: ignore[return-value]


def make(name: BackendName, vocabulary: Vocabulary) -> ScriptedBackend:
    if name == "outlines":
        raise ImportError("there is no such backend")
    return ScriptedBackend(name)


@dataclass(frozen=True)
class ScriptedBackend:
    name: BackendName

    def takes(self, grammar: Grammar) -> bool:
        return True

    def compile(self, grammar: Grammar) -> ScriptedGrammar:
        what = _what(grammar)
        match what:
            case "hang":
                while True:
                    pass
            case "sleep":
                time.sleep(3600)
            case "eat":
                held = [bytearray(64 << 20) for _ in range(1 << 20)]
                raise AssertionError(len(held))
            case "grow":
                len(b"x" * (56 << 20))
            case "crash":
                ctypes.string_at(0)
            case "abort":
                os.abort()
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "exit":
                os._exit(3)
            case "orphan":
                os.kill(os.getppid(), signal.SIGKILL)
                time.sleep(3600)
            case "bug":
                raise ZeroDivisionError("a bug")
            case "panic":
                raise KeyboardInterrupt("a panic")
            case "bad":
                raise BadGrammar(f"{self.name} says no")
            case "bad schema":
                raise BadSchema("no such type", path="/a", keyword="type")
            case "too complex":
                raise TooComplex(f"{self.name} gives up")
            case _ if what.startswith(("take ", "again ")):
                time.sleep(float(what.split()[1]))
        return ScriptedGrammar(self.name, what)

    def export(self, compiled: ScriptedGrammar) -> bytes:
        if compiled.what.startswith("again "):
            return b""
        return f"{os.getpid()} {compiled.what}".encode()

    def load(self, grammar: Grammar, exported: bytes) -> ScriptedGrammar:
        if not exported:
            return self.compile(grammar)
        worker, what = exported.decode().split(" ", 1)
        if what == "unloadable":
            raise BadGrammar("damaged")
        if what == "panic at load":
            raise KeyboardInterrupt("a panic")
        return ScriptedGrammar(self.name, what, int(worker))


@dataclass(frozen=True)
class ScriptedGrammar:
    backend: BackendName
    what: str
    worker: int = 0

    @property
    def nbytes(self) -> int:
        return 1 << 20

    def start(self) -> ScriptedCursor:
        return ScriptedCursor(self.what)


class ScriptedCursor:
    def __init__(self, what: str) -> None:
        self._what = what
        self._accepted = 0

    def fill(self, row: Bits) -> None:
        row[:] = np.int32(0)
        if self._what == "dead end" or self._accepted == LENGTH:
            return
        if self._what == "stuck" and self._accepted == 2:
            raise MatcherError("no way on")
        if self._what == "slow mask" and self._accepted == 1:
            _burn(0.1)
        row[TOKEN // 32] = 1 << TOKEN % 32

    def accept(self, token: int) -> bool:
        if token != TOKEN or self._what == "lying mask":
            return False
        if self._what == "slow step" and self._accepted == 1:
            _burn(0.1)
        self._accepted += 1
        return True

    def rollback(self, count: int) -> None:
        self._accepted -= count

    def forced(self) -> Sequence[int]:
        return ()

    def accepting(self) -> bool:
        return self._accepted == LENGTH

    def exhausted(self) -> bool:
        return self._accepted == LENGTH


def _burn(seconds: float) -> None:
    began = time.thread_time()
    while time.thread_time() - began < seconds:
        pass


def _what(grammar: Grammar) -> str:
    assert isinstance(grammar, Choice)
    return grammar.options[grammar.options.index("|") + 1]
