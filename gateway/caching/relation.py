"""Whether two prompts that begin alike have to do with each other: most begin with the same instructions and mean nothing by
it. Cheap, because it is asked of every request that nobody named a baseline for."""

from __future__ import annotations

from .telling import Telling, texts_of

TELLING = 16
"""Characters, or tokens, that two texts do not have in common by accident."""


def related(now: Telling, was: Telling) -> bool:
    """Whether they come under one `prompt_cache_key`, or something behind what differs first is the same again."""
    ours, theirs = now.record, was.record
    if ours.key is not None and ours.key == theirs.key:
        return True
    if now.messages is None or was.messages is None:
        return ours.ids[-4 * TELLING :] == theirs.ids[-4 * TELLING :]
    pairs = zip(now.messages, was.messages, strict=False)
    first = next((index for index, (one, other) in enumerate(pairs) if one != other), None)
    if first is None:
        return True  # one goes on where the other ends, or what differs is no message
    return (
        any(one == other for one, other in pairs) or _missing(now, was, first) or _ends_alike(now, was, first)
    )


def _ends_alike(now: Telling, was: Telling, first: int) -> bool:
    """Whether what differs first ends with the same, or some tools are the same and others not."""
    one, other = ("".join(texts_of(side.message(first))) for side in (now, was))
    if min(len(one), len(other)) >= TELLING and one[-TELLING:] == other[-TELLING:]:
        return True
    return now.tools != was.tools and not set(now.tools).isdisjoint(was.tools)


def _missing(now: Telling, was: Telling, first: int) -> bool:
    """Whether the history goes on with what came later in the other's."""
    rest = (now.messages or ())[first : first + 2]
    return first > 0 and any(message in rest for message in (was.messages or ())[first + 1 :])
