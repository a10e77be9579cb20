"""What a next turn continues from.

A transcript is whole: what was said before lies in it too, so that no later deletion takes anything out of a conversation
that goes on, and one read is enough.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ..known_ids import KnownIds


class Transcript(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`messages` are all that was said, as chat templates take them, the answer last. `parts` has the texts of those contents
    that came in several, by the index of their message. `known` are the ids of the last turn, if it had any."""

    messages: list[dict[str, Any]]
    parts: dict[int, list[str]] = {}
    known: KnownIds | None = None
