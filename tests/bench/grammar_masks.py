"""What following a grammar costs a token: `python -m tests.bench.grammar_masks MODEL_DIR [EVERY]`.

For each engine what it may be given: JSONSchemaBench (`../shared/data/jsonschemabench`), every EVERY-th schema audited and
compiled, its valid instances followed token by token; an answer with calls of 32 tools; a grammar in EBNF; short choices.
CPU time of the thread in microseconds, so that a busy machine shows only in its caches. `first` is the mask before the
first token, `next` mask and accept for each other token, `forced` the question of what must follow.

A fresh cursor for each instance: nothing is warmer than with a client.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from grammar.backends.base import Backend, Compiled
from grammar.backends.route import candidates, make
from grammar.backends.spelling import Spelling
from grammar.contract import audit
from grammar.errors import GrammarError
from grammar.spec import BackendName, Choice, Ebnf, Grammar
from grammar.vocabulary import Vocabulary, load_vocabulary
from tests.bench.grammar_compile import tools_tree
from tests.grammar.arrange import Rendered, text

DATA = Path("../shared/data/jsonschemabench")
TALK = "I will look at both.\n"
CALL = '<tool_call>\n{"name": "tool_7", "arguments": {"city_7": "Aix-en-Provence", "unit": "celsius", "days": 12}}\n</tool_call>'
LABELS = Choice(("positive", "negative", "neutral", "off topic", "needs a human"))
GBNF = Ebnf(
    r"""
root   ::= value
value  ::= object | array | string | number | "true" | "false" | "null"
object ::= "{" ws (pair ("," ws pair)*)? "}"
pair   ::= string ":" ws value
array  ::= "[" ws (value ("," ws value)*)? "]"
string ::= "\"" ([^"\\\x00-\x1F] | "\\" ["\\/bfnrt])* "\""
number ::= "-"? [0-9]+ ("." [0-9]+)?
ws     ::= [ \n]{0,2}
"""
)
JSON = '{"name": "Aix-en-Provence", "inhabitants": 147478, "twins": ["Bath", "Perugia"], "capital": false}'
QUANTILES = (50, 90, 99, 100)

Nanoseconds = Callable[[], int]


@dataclass(slots=True)
class Costs:
    compile: list[int] = field(default_factory=list)
    start: list[int] = field(default_factory=list)
    first: list[int] = field(default_factory=list)
    next: list[int] = field(default_factory=list)
    forced: list[int] = field(default_factory=list)
    refused: int = 0
    unfollowed: int = 0


def main() -> None:
    path = Path(sys.argv[1])
    every = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    size = json.loads((path / "config.json").read_text())["vocab_size"]
    vocabulary = load_vocabulary(path, size=size)
    spell = Spelling(vocabulary)
    samples = [(grammar, [spell(t) for t in texts]) for grammar, texts in schemas(every)]
    kinds: dict[str, list[tuple[Grammar, list[list[int]]]]] = {
        "schemas": samples,
        "32 tools": [(tools_tree(), [spell(TALK + CALL), spell(CALL + "\n" + CALL)])],
        "EBNF": [(GBNF, [spell(JSON)])],
        "choices": [(LABELS, [spell(label) for label in LABELS.options])],
    }
    print(f"{size} tokens, {len(samples)} schemas, {sum(len(texts) for _, texts in samples)} instances")
    names: tuple[BackendName, ...] = ("llguidance", "xgrammar", "outlines")
    for name in names:
        backend = make(name, vocabulary)
        for kind, grammars in kinds.items():
            given = [(grammar, texts) for grammar, texts in grammars if name in candidates(grammar)]
            if given:
                show(f"{name}, {len(given)} of {kind}", measured(backend, vocabulary, given))


def schemas(every: int) -> Iterator[tuple[Grammar, list[str]]]:
    """What the audit makes of each schema, and its valid instances in the grammar's order and spelling."""
    lines = [line for file in sorted(DATA.glob("*.jsonl")) for line in file.read_text().splitlines()]
    for line in lines[::every]:
        row: dict[str, Any] = json.loads(line)
        try:
            grammar = audit(row["schema"]).grammar
        except GrammarError:
            continue
        rendered = Rendered(json.loads(grammar.schema))
        texts = []
        for test in row["tests"]:
            try:
                if test["valid"]:
                    texts.append(text(rendered.arranged(test["data"])))
            except ValueError:  # what is only checked afterwards may have no text in the grammar's order
                continue
        yield grammar, texts


def measured(
    backend: Backend, vocabulary: Vocabulary, samples: Iterable[tuple[Grammar, list[list[int]]]]
) -> Costs:
    costs = Costs()
    for grammar, instances in samples:
        began = time.thread_time_ns()
        try:
            compiled = backend.compile(grammar)
        except GrammarError:
            costs.refused += 1
            continue
        costs.compile.append(time.thread_time_ns() - began)
        for tokens in instances:
            follow(compiled, vocabulary, tokens, costs)
    return costs


def follow(compiled: Compiled, vocabulary: Vocabulary, tokens: list[int], costs: Costs) -> None:
    now: Nanoseconds = time.thread_time_ns
    row = np.empty(vocabulary.words, dtype=np.int32)
    began = now()
    cursor = compiled.start()
    costs.start.append(now() - began)
    for index, token in enumerate(tokens):
        began = now()
        try:
            cursor.fill(row)
            followed = cursor.accept(token)
        except GrammarError:
            followed = False
        spent = now() - began
        if not followed:
            costs.unfollowed += 1
            return
        (costs.next if index else costs.first).append(spent)
        began = now()
        cursor.forced()
        costs.forced.append(now() - began)


def show(what: str, costs: Costs) -> None:
    print(
        f"\n{what}: {len(costs.next)} tokens, {costs.refused} refused, {costs.unfollowed} not followed to the end"
    )
    print(f"  {'µs':8}" + "".join(f"{'max' if q == 100 else f'p{q}':>10}" for q in QUANTILES))
    for name in ("compile", "start", "first", "next", "forced"):
        values: list[int] = getattr(costs, name)
        if values:
            print(
                f"  {name:8}" + "".join(f"{value / 1e3:10,.1f}" for value in np.percentile(values, QUANTILES))
            )


if __name__ == "__main__":
    main()
