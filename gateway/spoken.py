"""What was generated for clients that send the whole conversation again: its token ids, found by what was said.

With it a stateless chat goes on with the ids that it had (see `splicing`). It changes prompts: a conversation that is
remembered is spelled as it was generated, one that is not as the tokenizer spells it, whatever of either is cached. So it
is off unless the operator turns it on, and every answer tells which it was.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import orjson

from .chat_template import Message
from .kept import Kept
from .known_ids import KnownIds

MAX_KEPT = 1 << 20
OVERHEAD = 400
"""Bytes that an entry takes besides its ids."""


class Spoken:
    """Up to `most_bytes` of conversations' latest turns; 0 remembers none. A tenant finds its own."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._kept: Kept[bytes, KnownIds] = Kept(most=MAX_KEPT, most_bytes=most_bytes)

    @property
    def on(self) -> bool:
        return self._most_bytes > 0

    def find(self, tenant: str, messages: Sequence[Message]) -> KnownIds | None:
        """The latest turn of this conversation that is remembered."""
        if not self.on:
            return None
        found = None
        for message, digest in zip(messages, _digests(tenant, messages), strict=True):
            if message["role"] == "assistant":
                found = self._kept.get(digest) or found
        return found

    def keep(self, tenant: str, messages: Sequence[Message], known: KnownIds) -> None:
        """Remember a turn: `messages` up to the answer, which is the last."""
        *_, digest = _digests(tenant, messages)
        self._kept.put(digest, known, len(known.ids) + OVERHEAD)


def _digests(tenant: str, messages: Sequence[Message]) -> list[bytes]:
    """After each message: of all that was said so far. What clients do not send back, or send otherwise, is not in it:
    thoughts and the ids of calls."""
    digest = hashlib.sha256(tenant.encode())
    digests = []
    for message in messages:
        for part in (message["role"], message.get("name"), message.get("content") or "", *_calls(message)):
            data = b"" if part is None else str(part).encode("utf-8", "surrogatepass")
            digest.update(len(data).to_bytes(8, "little") + data)
        digests.append(digest.digest())
    return digests


def _calls(message: Message) -> list[object]:
    calls: Sequence[Mapping[str, Mapping[str, object]]] = message.get("tool_calls") or ()
    return [
        part for call in calls for part in (call["function"]["name"], _plain(call["function"]["arguments"]))
    ]


def _plain(arguments: object) -> object:
    """The same however the JSON is written: clients that have read it write it in their own way."""
    try:
        return orjson.dumps(orjson.loads(arguments)).decode() if isinstance(arguments, str) else arguments
    except orjson.JSONDecodeError:
        return arguments
