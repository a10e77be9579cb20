"""How long a client waits for its grammar: `python -m tests.bench.grammar_compile [MODEL_DIR]`.

Audits every schema of JSONSchemaBench (`../shared/data/jsonschemabench`) and compiles what came of it through the
compiler, one after the other as a client sees it: queue, worker process, trial and all. Then tools, a cached grammar, the
time until a server that has just started answers its first, and what the processes hold in memory. Without a model it uses
the hash model's vocabulary of bytes, whose masks are cheaper.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from gateway.tools.arguments.style import ToolShape
from gateway.tools.families import HERMES
from gateway.tools.structure import structure
from grammar import contract
from grammar.compiler import Compilation, Compiler
from grammar.errors import GrammarError
from grammar.spec import ANY_OBJECT, Ebnf, Grammar
from grammar.vocabulary import byte_vocabulary, load_vocabulary

DATA = Path("../shared/data/jsonschemabench")
TOOLS = 32
QUANTILES = (0.5, 0.9, 0.95, 0.99, 1.0)


def main() -> None:
    if len(sys.argv) > 1:
        path = Path(sys.argv[1])
        size = json.loads((path / "config.json").read_text())["vocab_size"]
        vocabulary = load_vocabulary(path, size=size)
    else:
        vocabulary = byte_vocabulary(259, {})
    began = time.perf_counter()
    compiler = Compiler(vocabulary, wake=lambda: None)
    compiler.submit(ANY_OBJECT).result()
    print(f"first grammar of all, processes started for it: {milliseconds(time.perf_counter() - began)}")
    print_memory()
    measure_schemas(compiler)
    measure_tools(compiler)
    measure_other_engine(compiler)
    print_memory()
    compiler.close()


def measure_schemas(compiler: Compiler) -> None:
    audits, compilations, costs = [], [], []
    refused: Counter[str] = Counter()
    for schema in schemas():
        began = time.perf_counter()
        try:
            grammar = contract.audit(schema).grammar
        except GrammarError as error:
            refused[f"by the audit, {type(error).__name__}"] += 1
            continue
        finally:
            audits.append(time.perf_counter() - began)
        began, spent = time.perf_counter(), cpu_seconds()
        try:
            compiler.submit(grammar).result()
            compilations.append(time.perf_counter() - began)
            costs.append(cpu_seconds() - spent)
        except GrammarError as error:
            refused[f"by {grammar.backends[0]}, {type(error).__name__}"] += 1
    print_quantiles("audit", audits)
    print_quantiles("compile", compilations)
    print_quantiles("compile, CPU time of all processes", costs)
    print(f"refused: {dict(refused)}")


def measure_tools(compiler: Compiler) -> None:
    grammar = tools_tree()
    spent = cpu_seconds()
    first = waited(compiler, grammar)
    cost = cpu_seconds() - spent
    again = min(waited(compiler, grammar) for _ in range(20))
    print(
        f"{TOOLS} tools: first {milliseconds(first)}, {milliseconds(cost)} of CPU, cached {milliseconds(again)}"
    )


def tools_tree() -> Grammar:
    """An answer that may call any of them."""
    tools = [
        ToolShape(f"tool_{number}", contract.audit(parameters(number)).grammar, parameters(number))
        for number in range(TOOLS)
    ]
    return structure(HERMES, tools, mode="auto", allowed=[tool.name for tool in tools])


def measure_other_engine(compiler: Compiler) -> None:
    for text in ('root ::= "a" | "b" root', 'root ::= "c" | "d" root'):
        try:
            print(f"EBNF: {milliseconds(waited(compiler, Ebnf(text)))}")
        except GrammarError as error:
            print(f"EBNF: {error}")


def schemas() -> list[Any]:
    files = sorted(DATA.glob("*.jsonl"))
    return [json.loads(line)["schema"] for file in files for line in file.read_text().splitlines()]


def parameters(number: int) -> dict[str, Any]:
    """Five arguments, as tools in the field have on average."""
    return {
        "type": "object",
        "properties": {
            f"city_{number}": {"type": "string", "description": "Where."},
            "unit": {"enum": ["celsius", "fahrenheit"]},
            "days": {"type": "integer", "minimum": 1, "maximum": 14},
            "detailed": {"type": "boolean"},
            "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 5},
        },
        "required": [f"city_{number}", "unit"],
        "additionalProperties": False,
    }


def waited(compiler: Compiler, grammar: Grammar) -> float:
    began = time.perf_counter()
    future: Future[Compilation] = compiler.submit(grammar)
    future.result()
    return time.perf_counter() - began


def print_quantiles(what: str, seconds: list[float]) -> None:
    ordered = sorted(seconds)
    values = [ordered[min(int(len(ordered) * q), len(ordered) - 1)] for q in QUANTILES]
    print(
        f"{what}: {len(ordered)} schemas, "
        + ", ".join(f"p{100 * q:g} {milliseconds(value)}" for q, value in zip(QUANTILES, values, strict=True))
    )


def print_memory() -> None:
    """Proportional set sizes: pages that processes share are divided among them."""
    template = next(iter(children(os.getpid())), None)
    if template is None:
        return
    workers = children(template)
    print(
        f"memory: template {proportional(template)} MB, workers {[proportional(pid) for pid in workers]} MB,"
        f" this process {proportional(os.getpid())} MB"
    )


def children(pid: int) -> list[int]:
    """Of any of its threads."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


def cpu_seconds() -> float:
    """Spent by this process and its workers: what a wait would be on an idle machine, nearly."""
    template = next(iter(children(os.getpid())))
    nanoseconds = [int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) for pid in children(template)]
    return time.process_time() + sum(nanoseconds) / 1e9


def proportional(pid: int) -> int:
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return int(next(line.split()[1] for line in rollup if line.startswith("Pss:"))) // 1024


def milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.2f} ms"


if __name__ == "__main__":
    main()
