from __future__ import annotations

import errno
import signal
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import ClientConnectorError, ServerDisconnectedError
from aiohttp.client_reqrep import ConnectionKey

from gateway.api_client import ApiError, base_url, reason
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
    with pytest.raises(
        ApiError, match=r"^cannot reach http://127\.0\.0\.1:9/v1: Connection refused \(127\.0\.0\.1:9\)$"
    ):
        run_chat(ChatOptions(url="127.0.0.1:9"), read=lambda _: "", write=lambda _: None)


def test_a_server_that_is_gone_meanwhile() -> None:
    shown: list[str] = []
    lines = iter(["hi", "/exit"])
    options = ChatOptions(url="127.0.0.1:9", model="m")
    run_chat(options, read=lambda _: next(lines), write=shown.append)
    assert "\n[no connection to http://127.0.0.1:9/v1: Connection refused (127.0.0.1:9)]\n" in shown


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed ('::1', 9)"), "Connection refused ([::1]:9)"),
        (socket.gaierror(-2, "Name or service not known"), "Name or service not known ([::1]:9)"),
        (ssl.SSLError(1, "wrong version number"), "wrong version number ([::1]:9)"),
        (OSError("Multiple exceptions: one, two"), "Multiple exceptions: one, two ([::1]:9)"),
    ],
)  # fmt: skip
def test_why_there_is_no_connection(error: OSError, said: str) -> None:
    key = ConnectionKey("::1", 9, False, True, None, None, None)
    assert reason(ClientConnectorError(key, error)) == said


def test_why_there_is_no_answer() -> None:
    assert reason(TimeoutError()) == "no answer in time"
    assert reason(ServerDisconnectedError()) == "Server disconnected"


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
