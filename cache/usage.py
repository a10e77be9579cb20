"""What is noted on a page when it is written and when it is used: when, by whom, how long it lives, how far down it may go.

Whoever has used all of a page's tokens has a say in that; whoever shares only its beginning has none.
"""

from __future__ import annotations

from math import inf

from .cursor import Cursor
from .lease import CachePolicy, Tier
from .node import SHARED, Node

_DEPTH: dict[Tier, int] = {"device": 0, "host": 1, "disk": 2}


def note_written(node: Node, cursor: Cursor, now: float) -> None:
    """All tokens of a page are this cursor's: those that a tail had before, too."""
    policy = cursor.policy
    node.used = now
    node.streak = cursor.streak
    node.group = policy.group
    node.lowest = policy.lowest
    node.max_age = policy.max_age
    node.expires = inf if policy.max_age is None else now + policy.max_age


def note_used(node: Node, policy: CachePolicy, now: float) -> None:
    """All tokens of a page were used by a request of this policy."""
    node.used = now
    group, lowest = policy.group, policy.lowest
    if node.group is not group and node.group != group:
        node.group = SHARED
    if node.max_age is not None:
        _live_longer(node, policy.max_age, now)
    if node.lowest is not lowest and _DEPTH[lowest] > _DEPTH[node.lowest]:
        node.lowest = lowest


def note_used_in_part(node: Node, now: float) -> None:
    """A page was used, or held until now, by somebody who has no say in it."""
    node.used = now
    if node.max_age is not None:
        node.expires = now + node.max_age


def _live_longer(node: Node, max_age: float | None, now: float) -> None:
    """A page that can expire was used, by somebody whose own pages live for `max_age`: it lives as long as the longest."""
    assert node.max_age is not None
    if max_age is None:
        node.max_age, node.expires = None, inf
    else:
        node.max_age = max(node.max_age, max_age)
        node.expires = now + node.max_age
