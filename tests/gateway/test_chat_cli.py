from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from gateway.api_client import ApiError, base_url
from gateway.chat_cli import ChatOptions, run_chat
from tests.gateway.scripted_server import Plan, ScriptedServer, in_thread

USAGE = {"prompt_tokens": 30, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 20}}
HELLO = Plan(["Hel", "lo ", "you"], usage=USAGE)


def chat(
    answer: Callable[[dict[str, Any]], Plan], lines: list[str | type[BaseException]], **options: Any
) -> tuple[str, ScriptedServer]:
    """What the terminal showed, and the server."""
    server = ScriptedServer(answer)
    shown: list[str] = []
    left = iter(lines)

    def read(prompt: str) -> str:
        line = next(left, EOFError)
        if not isinstance(line, str):
            raise line
        shown.append(f"{prompt}{line}\n")
        return line

    write = options.pop("write", shown.append)
    with in_thread(server) as url:
        run_chat(ChatOptions(url=url, **options), read=read, write=write)
        time.sleep(0.05)  # for the server to notice who left
    return "".join(shown), server


def test_streams_and_remembers() -> None:
    shown, server = chat(lambda _: HELLO, ["hi", "", "again"], system="Be kind.")
    assert shown.count("Hello you") == 2
    assert "3 tokens" in shown
    assert "20 of 30 prompt tokens cached" in shown
    assert server.bodies[0]["model"] == "toy"
    assert [m["content"] for m in server.bodies[1]["messages"]] == ["Be kind.", "hi", "Hello you", "again"]


def test_asks_for_likely_words_and_no_more_than_wanted() -> None:
    _, server = chat(lambda _: HELLO, ["hi"])
    assert (server.bodies[0]["temperature"], server.bodies[0]["max_tokens"]) == (0.7, 512)
    _, server = chat(lambda _: HELLO, ["hi"], temperature=1.0, max_tokens=7)
    assert (server.bodies[0]["temperature"], server.bodies[0]["max_tokens"]) == (1.0, 7)


def test_commands() -> None:
    shown, server = chat(lambda _: HELLO, ["hi", "/reset", "/what", "anew", "/exit", "never"])
    assert [[m["content"] for m in body["messages"]] for body in server.bodies] == [["hi"], ["anew"]]
    assert "forgotten" in shown
    assert shown.count("/reset forgets") == 2  # at the start, and for a command nobody knows
    assert "never" not in shown


def test_interrupt_at_the_prompt_stays() -> None:
    shown, _ = chat(lambda _: HELLO, [KeyboardInterrupt, "hi"])
    assert "Hello you" in shown


def test_interrupt_stops_the_answer_only() -> None:
    shown: list[str] = []

    def write(text: str) -> None:
        shown.append(text)
        if text == "two ":
            signal.raise_signal(signal.SIGINT)

    slow = Plan(["one ", "two ", *["more "] * 500], pause=0.02)
    plans = iter([slow, HELLO])
    _, server = chat(lambda _: next(plans), ["count", "go on"], write=write)
    text = "".join(shown)
    assert "one two \n[stopped" in text
    assert "Hello you" in text
    assert server.gone == 1
    assert [m["content"] for m in server.bodies[1]["messages"]] == ["count", "one two ", "go on"]


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (Plan(status=503), "[no room]"),
        (Plan(end='data: {"error": {"message": "engine died"}}\n\n'), "[engine died]"),
        (Plan(end=""), "[the answer was cut off]"),
    ],
)
def test_a_failed_request_can_be_tried_again(plan: Plan, message: str) -> None:
    plans = iter([plan, HELLO])
    shown, server = chat(lambda _: next(plans), ["hi", "hi"])
    assert message in shown
    assert [m["content"] for m in server.bodies[1]["messages"]] == ["hi"]


def test_piped_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import io

    monkeypatch.setattr("sys.stdin", io.StringIO("hi\n"))
    with in_thread(ScriptedServer(lambda _: HELLO)) as url:
        run_chat(ChatOptions(url=url))
    assert "\nHello you\n[3 tokens" in capsys.readouterr().out


def test_no_server() -> None:
    with pytest.raises(ApiError, match=r"cannot reach http://127\.0\.0\.1:9/v1"):
        run_chat(ChatOptions(url="127.0.0.1:9"), read=lambda _: "", write=lambda _: None)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("localhost:8000", "http://localhost:8000/v1"),
        ("http://h/", "http://h/v1"),
        ("https://h/v1/", "https://h/v1"),
        ("http://h/team/openai", "http://h/team/openai"),
    ],
)
def test_base_url(given: str, meant: str) -> None:
    assert base_url(given) == meant
