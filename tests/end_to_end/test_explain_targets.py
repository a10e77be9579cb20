"""What `explain` has to find, as a table: a fault, and the reason, message, part, character and token that it must name.

The token is worked out here from what /tokenize says of both prompts, not from anything that explains.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from .server import Server, wait_for
from .test_explain import both, say, tool
from .thinker import write_thinker

SHOWS_THOUGHTS = """\
{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}\
{%- if m.reasoning_content %}{{ '<think>\\n' + m.reasoning_content + '\\n</think>\\n\\n' }}{% endif %}\
{{- m.content + '<|im_end|>\\n' }}{% endfor %}\
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

SHORT_LIVED = """
import gateway.caching.ask as ask
ask.RETENTIONS["in_memory"] = (1.0, "host")
from gateway.__main__ import cli
cli()
"""
"""A server whose shortest retention is a second."""

PARTS = [
    {"type": "text", "text": "Here is what the port wrote in its book: "},
    {"type": "text", "text": "four ships came in and one went out on Monday."},
]
TALK = [
    say("system", "You are the clerk of the harbour, and answer in one short sentence."),
    say("user", PARTS),
    say(
        "assistant", "Noted: four came in.", reasoning_content="Four in, one out, so three more than before."
    ),
    say("user", "And on Tuesday?"),
]

Messages = list[dict[str, Any]]


def edited(message: int, char: int, part: int | None = None) -> Messages:
    """One character is another."""
    changed = [dict(each) for each in TALK]
    content = changed[message]["content"]
    text = content if part is None else content[part]["text"]
    text = f"{text[:char]}#{text[char + 1 :]}"
    changed[message]["content"] = (
        text if part is None else [{**p, "text": text} if i == part else p for i, p in enumerate(content)]
    )
    return changed


def without_thoughts() -> Messages:
    return [{name: value for name, value in each.items() if name != "reasoning_content"} for each in TALK]


def nothing(server: Server, directory: Path) -> None:
    pass


def pressure(server: Server, directory: Path) -> None:
    for number in range(12):
        ask(server, [say("user", f"{number} fills the cache with something else " * 8)])


def flush(server: Server, directory: Path) -> None:
    reply = server.post("/v1/caches/flush", {"scope": {"tenant": "local"}})
    assert (reply.status, sum(reply.json()["pages"].values()) > 0) == (200, True)


def flush_group(server: Server, directory: Path) -> None:
    reply = server.post("/v1/caches/flush", {"scope": {"prompt_cache_key": "one"}})
    assert (reply.status, sum(reply.json()["pages"].values()) > 0) == (200, True)


def age(server: Server, directory: Path) -> None:
    time.sleep(1.2)


def restart(server: Server, directory: Path) -> None:
    engine = server.engine_pid()
    os.kill(engine, signal.SIGKILL)
    wait_for(lambda: server.is_ready() and server.engine_pid() != engine, 30.0, "another engine")


def replace_the_model(server: Server, directory: Path) -> None:
    write_talker(directory / "talker", seed=1)
    restart(server, directory)


@dataclass(frozen=True, slots=True)
class Fault:
    """`place` is segment, message, part and character."""

    reason: str
    now: Messages = field(default_factory=lambda: TALK)
    place: tuple[str, int | None, int | None, int] | None = None
    detail: dict[str, Any] = field(default_factory=dict)
    was_with: dict[str, Any] = field(default_factory=dict)
    now_with: dict[str, Any] = field(default_factory=dict)
    inject: Callable[[Server, Path], None] = nothing
    server: str = "hash"


def offered(names: str) -> dict[str, Any]:
    return {"tools": [tool(name) for name in names], "tool_choice": "none"}


KEY = {"prompt_cache_key": "one"}

FAULTS = {
    "edited char of the system message": Fault("system_changed", edited(0, 12), ("system", 0, 0, 12), {"message": 0}),
    "edited char of the first part": Fault("message_edited", edited(1, 7, 0), ("message", 1, 0, 7), {"message": 1}),
    "edited char of the second part": Fault("message_edited", edited(1, 30, 1), ("message", 1, 1, 30), {"message": 1}),
    "edited char of an answer": Fault("message_edited", edited(2, 9), ("message", 2, 0, 9), {"message": 2}),
    "reordered tools": Fault(
        "tools_changed", TALK, None, {"change": "reordered", "tool": "c"}, offered("abc"), offered("acb")
    ),
    "dropped reasoning": Fault(
        "reasoning_dropped", without_thoughts(), ("reasoning", 2, None, 0), {"message": 2}, server="talker"
    ),
    "changed model": Fault("model_changed", inject=replace_the_model, server="talker"),
    "changed key": Fault("prompt_cache_key_changed", was_with=KEY, now_with={"prompt_cache_key": "two"}, server="isolating"),
    "evicted": Fault("evicted", detail={"cause": "pressure"}, inject=pressure),
    "flushed with its tenant": Fault("flushed", detail={"scope": "tenant"}, inject=flush),
    "flushed by its key": Fault("flushed", detail={"scope": "pages"}, was_with=KEY, now_with=KEY, inject=flush_group),
    "expired": Fault("expired", was_with={"prompt_cache_retention": "in_memory"}, inject=age, server="short-lived"),
    "restarted": Fault("restarted", inject=restart),
}  # fmt: skip


def write_talker(directory: Path, seed: int = 0) -> Path:
    write_thinker(directory, seed)
    (directory / "chat_template.jinja").write_text(SHOWS_THOUGHTS)
    return directory


@pytest.fixture
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    kind = request.param
    flags = ["--drain-delay", "0", "--pages", "96", "--max-model-len", "1024"]
    options: dict[str, Any] = {}
    if kind == "talker":
        options["model"] = str(write_talker(tmp_path / "talker"))
    elif kind == "isolating":
        (tmp_path / "tenants.yaml").write_text("default: {prompt_cache_key: isolate}\n")
        flags += ["--tenants", str(tmp_path / "tenants.yaml")]
    elif kind == "short-lived":
        options["program"] = ("-c", SHORT_LIVED)
    started = Server(tmp_path, *flags, **options)
    yield started
    started.stop()


def ask(server: Server, messages: Messages, **fields: Any) -> dict[str, Any]:
    body = {"messages": messages, "max_tokens": 4, "seed": 1, "temperature": 0, **fields}
    reply = server.post("/v1/chat/completions", {"model": model_of(server), **body})
    assert reply.status == 200, reply
    return {**reply.json(), "x-cache": reply.headers["x-cache"]}


def model_of(server: Server) -> str:
    name: str = server.get("/v1/models").json()["data"][0]["id"]
    return name


def tokens(server: Server, messages: Messages, given: dict[str, Any]) -> list[int]:
    body = {"messages": messages, **({"tools": given["tools"]} if "tools" in given else {})}
    reply = server.post("/tokenize", body)
    assert reply.status == 200, reply
    ids: list[int] = reply.json()["tokens"]
    return ids


@pytest.mark.parametrize(
    ("server", "fault"), [(fault.server, fault) for fault in FAULTS.values()], ids=FAULTS, indirect=["server"]
)
def test_the_fault_is_named(server: Server, fault: Fault, tmp_path: Path) -> None:
    one, other = tokens(server, TALK, fault.was_with), tokens(server, fault.now, fault.now_with)
    first = ask(server, TALK, **fault.was_with)
    fault.inject(server, tmp_path)
    found = both(server, ask(server, fault.now, **fault.now_with), first)
    assert found["reason"] == fault.reason, found
    assert fault.detail.items() <= found["detail"].items()
    changes = one != other
    place = found["first_divergence"]
    if not changes:
        assert place is None
        assert found["common_tokens"] >= len(one)
        lost = len(one) - 1 if fault.inject is pressure else 1
        assert found["hit_tokens"] < lost, "it was lost, and all of it unless there was no room"
        return
    parted = next(at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    assert place["token"] == parted == found["hit_tokens"]
    if fault.place is not None:
        assert (place["segment"], place["message"], place["part"], place["char"]) == fault.place
    else:
        assert (place["segment"], place["part"]) == ("tools", 1)
