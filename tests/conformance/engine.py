"""Contracts followed by the real engine, with the demo model's vocabulary where it is there, else with bytes."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from grammar.backends.base import Compiled
from grammar.backends.llguidance import LLGuidance
from grammar.contract import Contract, audit
from grammar.errors import BadGrammar, BadSchema, TooComplex
from grammar.vocabulary import Vocabulary, byte_vocabulary, load_vocabulary
from tests.grammar.arrange import Rendered, text

DATA = Path(__file__).parents[3] / "shared" / "data"
_MODEL = Path(os.environ.get("HEADWATER_STORE") or Path.home() / ".cache" / "headwater") / "models"


@dataclass(slots=True)
class Engine:
    backend: LLGuidance
    vocabulary: Vocabulary
    spell: Callable[[str], list[int]]

    @classmethod
    def load(cls) -> Engine:
        model = _MODEL / "smollm2-135m-instruct"
        if not (model / "tokenizer.json").exists():
            vocabulary = byte_vocabulary(256, {})
            return cls(LLGuidance(vocabulary), vocabulary, lambda each: list(each.encode()))
        vocabulary = load_vocabulary(model, size=49_152)
        ids = tokenizers.Tokenizer.from_file(str(model / "tokenizer.json"))
        return cls(
            LLGuidance(vocabulary), vocabulary, lambda each: ids.encode(each, add_special_tokens=False).ids
        )

    def accepts(self, compiled: Compiled, answer: str) -> bool:
        """As in decoding, a mask now and then: the library's allowance of work starts anew with each."""
        cursor = compiled.start()
        row = np.empty(self.vocabulary.words, dtype=np.int32)
        for index, token in enumerate(self.spell(answer)):
            if index % 32 == 0:
                cursor.fill(row)
            if not cursor.accept(token):
                return False
        return cursor.accepting()


@dataclass(slots=True)
class Case:
    """A schema and values that it accepts or does not."""

    name: str
    schema: Any
    tests: list[tuple[Any, bool]]


@dataclass(slots=True)
class Table:
    """What became of the cases."""

    exact: int = 0
    refused: list[tuple[str, str]] = field(default_factory=list)
    let_through: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    invalid: int = 0
    audit: list[float] = field(default_factory=list)
    compile: list[float] = field(default_factory=list)

    def print(self, title: str) -> None:
        total = self.exact + len(self.refused)
        print(
            f"\n{title}: {total} schemas, {self.exact} exact, {len(self.refused)} refused by name in strict"
        )
        print(f"  invalid values let through in strict: {len(self.let_through)} of {self.invalid}")
        print(f"  valid values lost: {len(self.lost)}")
        for name, seconds in (("audit", self.audit), ("compile", self.compile)):
            ordered = sorted(seconds)
            figures = ", ".join(f"p{q} {1000 * ordered[len(ordered) * q // 100]:.1f}" for q in (50, 95, 99))
            print(f"  {name} ms: {figures}, most {1000 * ordered[-1]:.1f}")
        for each in self.refused:
            print("  refused", *each)
        for each in [*self.let_through, *self.lost]:
            print("  WRONG", each)


def run(engine: Engine, cases: list[Case]) -> Table:
    table = Table()
    for case in cases:
        start = time.process_time()
        try:
            contract = audit(case.schema)
        except (BadSchema, TooComplex) as error:
            table.refused.append((case.name, str(error)))
            continue
        finally:
            table.audit.append(time.process_time() - start)
        start = time.process_time()
        try:
            compiled = engine.backend.compile(contract.grammar)
        except BadGrammar as error:
            table.refused.append((case.name, f"compiling: {str(error)[:80]}"))
            continue
        finally:
            table.compile.append(time.process_time() - start)
        _judge(engine, case, contract, compiled, table)
    return table


def _judge(engine: Engine, case: Case, contract: Contract, compiled: Compiled, table: Table) -> None:
    rendered = Rendered(json.loads(contract.grammar.schema))
    strict = not contract.checked
    if strict:
        table.exact += 1
    else:
        worst = contract.checked[0]
        table.refused.append((case.name, f"{worst.path} {worst.reason}"))
    for value, valid in case.tests:
        table.invalid += not valid
        if not valid and not strict:
            continue
        accepted = any(engine.accepts(compiled, each) for each in _texts(rendered, value))
        if accepted and not valid:
            table.let_through.append(f"{case.name}: {text(value)[:80]}")
        if valid and not accepted:
            table.lost.append(f"{case.name}: {text(value)[:80]}")


def _texts(rendered: Rendered, value: Any) -> Iterator[str]:
    """The value as the grammar would write it, if that can be told; else in all orders of keys that come to mind."""
    try:
        yield text(rendered.arranged(value))
    except ValueError:
        yield from dict.fromkeys(text(guess) for guess in rendered.guesses(value))
