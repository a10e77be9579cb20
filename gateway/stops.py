"""Stop strings in a stream of text.

An Aho-Corasick automaton (Aho & Corasick, CACM 18(6), 1975) over the stop strings, so the cost is linear in the text
whatever the stops and however the text is cut into pieces. Only text that may still turn out to belong to a stop is held
back: the longest suffix that is a proper prefix of one.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence


class StopSearch:
    """Finds the earliest stop in a text that arrives in pieces, and the longest of those that begin there.

    `include` keeps the stop that was found at the end of the text. `stopped_by` is the one that was found, else empty; after
    it everything pushed is dropped.
    """

    __slots__ = ("_automaton", "_found", "_held", "_include", "_node", "stopped_by")

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        """Raises ValueError for an empty stop string."""
        if "" in stops:
            raise ValueError("a stop string is empty")
        self._automaton = _Automaton(stops) if stops else None
        self._include = include
        self._reset()

    def fresh(self) -> StopSearch:
        """A new search for the same stops (another choice of one request) that shares what was compiled."""
        twin = object.__new__(StopSearch)
        twin._automaton = self._automaton
        twin._include = self._include
        twin._reset()
        return twin

    def _reset(self) -> None:
        self.stopped_by = ""
        self._held = ""
        self._node = _ROOT
        self._found: tuple[int, int] | None = None  # of the best match so far: its start and end in `_held`

    @property
    def stopped(self) -> bool:
        return bool(self.stopped_by)

    def push(self, text: str) -> str:
        """The text that is now certain to come before any stop."""
        automaton = self._automaton
        if automaton is None:
            return text
        if self.stopped_by:
            return ""
        buffer = self._held + text
        node, found, open_depth, match_depth = (
            self._node,
            self._found,
            automaton.open_depth,
            automaton.match_depth,
        )
        position = len(self._held)
        end = len(buffer)
        while position < end:
            if node == _ROOT and found is None:
                start = automaton.first.search(buffer, position)
                if start is None:
                    break
                position = start.start()
            node = automaton.step(node, buffer[position])
            position += 1
            if match_depth[node]:
                found = _better(found, (position - match_depth[node], position))
            if (
                found is not None and open_depth[node] < position - found[0]
            ):  # no earlier or longer one is open
                return self._stop(buffer, found)
        certain = end - open_depth[node] if found is None else min(found[0], end - open_depth[node])
        self._node = node
        self._held = buffer[certain:]
        self._found = None if found is None else (found[0] - certain, found[1] - certain)
        return buffer[:certain]

    def flush(self) -> str:
        """The text has ended: what was held back, up to a stop."""
        if self._found is not None:
            return self._stop(self._held, self._found)
        text, self._held, self._node = self._held, "", _ROOT
        return text

    def _stop(self, buffer: str, found: tuple[int, int]) -> str:
        start, end = found
        self.stopped_by, self._held, self._found = buffer[start:end], "", None
        return buffer[: end if self._include else start]


def _better(found: tuple[int, int] | None, match: tuple[int, int]) -> tuple[int, int]:
    """The earlier start wins, then the later end. `match` ends after `found`."""
    return match if found is None or match[0] <= found[0] else found


_ROOT = 0


class _Automaton:
    """Nodes are the prefixes of the stops, numbered from the root, which is the empty one."""

    __slots__ = ("_fail", "_next", "first", "match_depth", "open_depth")

    def __init__(self, stops: Sequence[str]) -> None:
        self.first = re.compile(
            "[" + "".join(re.escape(c) for c in sorted({stop[0] for stop in stops})) + "]"
        )
        self._next: list[dict[str, int]] = [{}]
        self._fail: list[int] = [_ROOT]
        self.match_depth: list[int] = [0]
        """Length of the longest stop that ends at this node, 0 for none."""
        self.open_depth: list[int] = [0]
        """Length of the longest suffix of this node that is a proper prefix of a stop, 0 for none. Also 0 for a whole
        stop that none continues: the search ends there, and what could still begin inside it does not matter."""
        for stop in stops:
            self._add(stop)
        self._link()

    def step(self, node: int, character: str) -> int:
        """Longest suffix of `node + character` that is a node. Amortised O(1): each fall undoes an earlier climb."""
        following = self._next
        while character not in following[node]:
            if node == _ROOT:
                return _ROOT
            node = self._fail[node]
        return following[node][character]

    def _add(self, stop: str) -> None:
        node = _ROOT
        for character in stop:
            child = self._next[node].get(character)
            if child is None:
                child = len(self._next)
                self._next[node][character] = child
                self._next.append({})
                self._fail.append(_ROOT)
                self.match_depth.append(0)
                self.open_depth.append(0)
            node = child
        self.match_depth[node] = len(stop)

    def _link(self) -> None:
        """Breadth first, so that a node's shorter suffixes are complete before it needs them."""
        queue = deque((child, 1) for child in self._next[_ROOT].values())
        while queue:
            node, depth = queue.popleft()
            suffix = self._fail[node]
            self.match_depth[node] = self.match_depth[node] or self.match_depth[suffix]
            self.open_depth[node] = depth if self._next[node] else 0
            for character, child in self._next[node].items():
                self._fail[child] = self.step(suffix, character)
                queue.append((child, depth + 1))
