"""`headwater chat`: talk to a server in the terminal.

Works on a terminal and on piped input. Ctrl-C stops the answer, not the program; what was said until then stays in the
conversation.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import aiohttp

from .api_client import ApiError, base_url, first_model, open_session, raise_for_status, reason, stream_events

with contextlib.suppress(ImportError):
    import readline  # noqa: F401 - gives `input` its line editing and history

_HELP = "/reset forgets the conversation, /exit (or Ctrl-D) leaves, Ctrl-C stops an answer"
_PROMPT = "> "


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """`model` None is the first the server lists. `timeout` is for one answer, in seconds.

    Small models wander at the API's own temperature of 1, repeat themselves near 0, and may do either until the context
    is full: hence these defaults.
    """

    url: str = "http://127.0.0.1:8000/v1"
    model: str | None = None
    key: str | None = None
    system: str | None = None
    temperature: float = 0.7
    max_tokens: int = 512
    timeout: float = 600.0


def run_chat(
    options: ChatOptions,
    *,
    read: Callable[[str], str] | None = None,
    write: Callable[[str], object] | None = None,
) -> None:
    """Read a message, stream the answer, until `/exit` or the end of input.

    `read` takes a prompt and returns a line, or raises EOFError at the end and KeyboardInterrupt for Ctrl-C, like
    `input`; it and `write` are the standard streams if not given. Raises ApiError if no model can be found at the
    start.
    """
    read, write = read or _read_line, write or _write_text
    with asyncio.Runner() as runner:
        conversation = _Conversation(options, runner.run(_choose_model(options)))
        write(f"{conversation.model} at {base_url(options.url)} · {_HELP}\n")
        while True:
            try:
                text = read(_PROMPT).strip()
            except KeyboardInterrupt:
                write("\n")
                continue
            except EOFError:
                write("\n")
                return
            match text:
                case "":
                    continue
                case "/exit":
                    return
                case "/reset":
                    conversation.reset()
                    write("forgotten\n")
                case _ if text.startswith("/"):
                    write(f"{_HELP}\n")
                case _:
                    _answer(runner, conversation, text, write)


def _read_line(prompt: str) -> str:
    return input(prompt if sys.stdin.isatty() else "")


def _write_text(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


async def _choose_model(options: ChatOptions) -> str:
    if options.model is not None:
        return options.model
    async with open_session(options.key, timeout=30.0) as session:
        return await first_model(session, base_url(options.url))


def _answer(
    runner: asyncio.Runner, conversation: _Conversation, text: str, write: Callable[[str], object]
) -> None:
    answer = _Answer()
    note = ""
    try:
        runner.run(conversation.ask(text, answer, write))
    except KeyboardInterrupt:  # the runner has cancelled the request, and the server sees us leave
        note = "stopped"
    except ApiError as error:
        note = str(error)
    conversation.keep(text, answer.text)
    write(f"\n[{' · '.join(filter(None, [note, answer.summary()]))}]\n")


class _Answer:
    """What has arrived of one answer. Times are `perf_counter` seconds."""

    def __init__(self) -> None:
        self.text = ""
        self.pieces = 0
        self.first = self.last = 0.0
        self.usage: dict[str, object] = {}

    def add(self, text: str) -> None:
        self.last = time.perf_counter()
        self.first = self.first or self.last
        self.text += text
        self.pieces += 1

    def summary(self) -> str:
        """Tokens a second after the first one, and what the prompt cache saved. Empty without an answer."""
        if not self.pieces:
            return ""
        tokens = _count(self.usage.get("completion_tokens")) or self.pieces
        parts = [f"{tokens} tokens"]
        if tokens > 1 and self.last > self.first:
            parts.append(f"{(tokens - 1) / (self.last - self.first):.1f} tokens/s")
        details = self.usage.get("prompt_tokens_details")
        if isinstance(details, dict):
            cached = _count(details.get("cached_tokens"))
            parts.append(f"{cached} of {_count(self.usage.get('prompt_tokens'))} prompt tokens cached")
        return " · ".join(parts)


def _count(value: object) -> int:
    return value if isinstance(value, int) else 0


class _Conversation:
    """The messages so far, and how to go on."""

    def __init__(self, options: ChatOptions, model: str) -> None:
        self._options = options
        self._messages: list[dict[str, str]] = []
        self.model = model
        self.reset()

    def reset(self) -> None:
        system = self._options.system
        self._messages = [{"role": "system", "content": system}] if system else []

    def keep(self, question: str, answer: str) -> None:
        """Remember an exchange. One without any answer did not happen, so that it can be tried again."""
        if answer:
            self._messages += [
                {"role": "user", "content": question},
                {"role": "assistant", "content": answer},
            ]

    async def ask(self, question: str, answer: _Answer, write: Callable[[str], object]) -> None:
        """Stream the answer into `answer` and to `write`. Raises ApiError."""
        url = base_url(self._options.url)
        body = {
            "model": self.model,
            "messages": [*self._messages, {"role": "user", "content": question}],
            "temperature": self._options.temperature,
            "max_tokens": self._options.max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        try:
            async with (
                open_session(self._options.key, timeout=self._options.timeout) as session,
                session.post(f"{url}/chat/completions", json=body) as response,
            ):
                await raise_for_status(response)
                async for event in stream_events(response):
                    answer.usage = event.get("usage") or answer.usage
                    for choice in event.get("choices", ()):
                        if text := (choice.get("delta") or {}).get("content"):
                            answer.add(text)
                            write(text)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ApiError(f"no connection to {url}: {reason(error)}") from error
