"""Whether two prompts that begin alike have to do with each other: most begin with the same instructions and mean nothing by
it. Cheap, because it is asked of every request that nobody named a baseline for: it looks at gists, not at messages."""

from __future__ import annotations

from collections.abc import Sequence

from ..chat_template import Message
from .records import ENDING, Gists, Record
from .segments import joined

TELLING = 16
"""Tokens that two prompts do not end with by accident."""


def gists(messages: Sequence[Message] | None) -> Gists | None:
    """Of the contents."""
    if messages is None:
        return None
    contents = [joined(message["content"]) for message in messages]
    return Gists(tuple(map(hash, contents)), tuple([content[-ENDING:] for content in contents]))


def related(record: Record, baseline: Record) -> bool:
    """Whether they come under one `prompt_cache_key`, or something behind what differs first is the same again. That two
    messages are the same is said of their contents."""
    if record.key is not None and record.key == baseline.key:
        return True
    ours, theirs = record.gists, baseline.gists
    if ours is None or theirs is None:
        return record.ids[-4 * TELLING :] == baseline.ids[-4 * TELLING :]
    pairs = zip(ours.digests, theirs.digests, strict=False)
    first = next((index for index, (one, other) in enumerate(pairs) if one != other), None)
    if first is None:
        return True  # one goes on where the other ends, or what differs is no content
    return (
        any(one == other for one, other in pairs)
        or _ends_alike(ours.endings[first], theirs.endings[first])
        or (first > 0 and not set(ours.digests[first : first + 2]).isdisjoint(theirs.digests[first + 1 :]))
        or _share_tools(record, baseline)
    )


def _ends_alike(one: str, other: str) -> bool:
    return len(one) == ENDING and one == other


def _share_tools(record: Record, baseline: Record) -> bool:
    """Whether some tools are the same and others not."""
    if record.tools is None or baseline.tools is None or record.tools is baseline.tools:
        return False
    ours, theirs = record.tools.lines, baseline.tools.lines
    return list(ours) != list(theirs) and not set(ours).isdisjoint(theirs)
