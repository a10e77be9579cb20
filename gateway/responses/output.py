"""The items of an answer as they grow, and the events that tell of it.

Thoughts, a text and calls follow one another; each is an item, and one is open at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from typing import Any

from ..openai.logprobs import chat_logprobs
from ..pieces import Answer, Piece, TokenDetail
from ..tokenizer import Tokenizer
from ..tools.parser import Arguments, CallBegins, CallEnds, Content, Part, Reasoning
from .items import Item, new_item_id

Event = tuple[str, dict[str, Any]]
"""Its type, and what it says besides."""


class Output:
    """`items` are those of the answer so far."""

    def __init__(self, tokenizer: Tokenizer, response_id: str, *, logprobs: bool) -> None:
        self.items: list[Item] = []
        self._response_id = response_id
        self._tokenizer = tokenizer
        self._logprobs = logprobs
        self._open: Item | None = None
        self._calls: list[Item] = []

    def add(self, piece: Piece) -> list[Event]:
        """What is new. After its finish nothing comes any more."""
        parts = piece.parts or ((Content(piece.text),) if piece.text else ())
        events = list(self._parts(parts, piece.details if self._logprobs else ()))
        if piece.finish is not None:
            events += self._finish(piece)
        return events

    def whole(self, answer: Answer) -> list[Item]:
        """The items of an answer that nobody was told of before."""
        self.add(
            Piece(
                answer.index,
                answer.text,
                answer.details,
                answer.finish,
                answer.stop,
                answer.parts,
                answer.report,
            )
        )
        return self.items

    def _finish(self, piece: Piece) -> Iterator[Event]:
        if not self.items:
            yield from self._begin_message()
        if piece.report is not None:
            self._note_report(piece.report)
        yield from self._close("completed" if piece.finish == "stop" else "incomplete")

    def _note_report(self, report: dict[str, object]) -> None:
        messages = [item for item in self.items if item["type"] == "message"]
        (messages or self.items)[-1]["schema_check"] = report

    def _parts(self, parts: Iterable[Part], details: Sequence[TokenDetail]) -> Iterator[Event]:
        for part in parts:
            match part:
                case Content(text):
                    yield from self._content(text, details)
                    details = ()
                case Reasoning(text):
                    yield from self._reasoning(text)
                case CallBegins():
                    yield from self._begin_call(part)
                case Arguments(index, text):
                    yield self._arguments(self._calls[index], text)
                case CallEnds(index):
                    if self._calls[index] is self._open:
                        yield from self._close("completed")

    # -- one kind each -----------------------------------------------------------------------------------------------------

    def _content(self, text: str, details: Sequence[TokenDetail]) -> Iterator[Event]:
        if self._open is None or self._open["type"] != "message":
            yield from self._begin_message()
        item = self._opened()
        (part,) = item["content"]
        logprobs = self._told(details)
        part["text"] += text
        part["logprobs"] += logprobs
        yield self._of("response.output_text.delta", item, content_index=0, delta=text, logprobs=logprobs)

    def _begin_message(self) -> Iterator[Event]:
        item = {
            "id": self._new_id("message"),
            "type": "message",
            "status": "in_progress",
            "role": "assistant",
        }
        yield from self._begin({**item, "content": []})
        part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        yield self._of("response.content_part.added", self._opened(), content_index=0, part=deepcopy(part))
        self._opened()["content"].append(part)

    def _reasoning(self, text: str) -> Iterator[Event]:
        if self._open is None or self._open["type"] != "reasoning":
            begun = {"id": self._new_id("reasoning"), "type": "reasoning", "status": "in_progress"}
            yield from self._begin({**begun, "summary": [], "content": []})
            self._opened()["content"].append({"type": "reasoning_text", "text": ""})
        item = self._opened()
        item["content"][0]["text"] += text
        yield self._of("response.reasoning_text.delta", item, content_index=0, delta=text)

    def _begin_call(self, call: CallBegins) -> Iterator[Event]:
        kind = "function_call" if call.kind == "function" else "custom_tool_call"
        taken = {other["call_id"] for other in self._calls}
        call_id = call.id if call.id is not None and call.id not in taken else new_item_id("call")
        item: Item = {"id": self._new_id(kind), "type": kind, "status": "in_progress", "call_id": call_id}
        item |= {"name": call.name, "arguments" if kind == "function_call" else "input": ""}
        yield from self._begin(item)
        self._calls.append(item)

    def _arguments(self, call: Item, text: str) -> Event:
        call[_argument(call)] += text
        return self._of(f"response.{_words(call)}.delta", call, delta=text)

    def _new_id(self, kind: str) -> str:
        return new_item_id(kind, self._response_id)

    # -- opening and closing -------------------------------------------------------------------------------------------------

    def _begin(self, item: Item) -> Iterator[Event]:
        yield from self._close("completed")
        self._open = item
        self.items.append(item)
        yield self._of("response.output_item.added", item, item=deepcopy(item))

    def _close(self, status: str) -> Iterator[Event]:
        item, self._open = self._open, None
        if item is None:
            return
        item["status"] = status
        if item["type"] == "message":
            (part,) = item["content"]
            yield self._of(
                "response.output_text.done",
                item,
                content_index=0,
                text=part["text"],
                logprobs=part["logprobs"],
            )
            yield self._of("response.content_part.done", item, content_index=0, part=part)
        elif item["type"] == "reasoning":
            text = item["content"][0]["text"]
            yield self._of("response.reasoning_text.done", item, content_index=0, text=text)
        else:
            said = {_argument(item): item[_argument(item)]}
            said |= {"name": item["name"]} if item["type"] == "function_call" else {}
            yield self._of(f"response.{_words(item)}.done", item, **said)
        yield self._of("response.output_item.done", item, item=item)

    def _opened(self) -> Item:
        assert self._open is not None
        return self._open

    def _of(self, kind: str, about: Item, **more: Any) -> Event:
        index = next(i for i in range(len(self.items) - 1, -1, -1) if self.items[i] is about)
        of = {} if "item" in more else {"item_id": about["id"]}
        return kind, {**of, "output_index": index, **more}

    def _told(self, details: Sequence[TokenDetail]) -> list[object]:
        told = chat_logprobs(details, self._tokenizer)["content"] if details else []
        assert isinstance(told, list)
        return told


def _argument(item: Item) -> str:
    return "arguments" if item["type"] == "function_call" else "input"


def _words(item: Item) -> str:
    return "function_call_arguments" if item["type"] == "function_call" else "custom_tool_call_input"
