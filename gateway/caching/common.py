"""How far two sequences are the same. Comparing slices is done by the C library, so this costs some microseconds."""

from __future__ import annotations

FIRST = 256
"""So much is compared first, and four times as much each time: most pairs part early, or late."""


def common_tokens(one: bytes, other: bytes) -> int:
    """Of token ids in four bytes each."""
    return _common(one, other) // 4


def common_characters(one: str, other: str) -> int:
    return _common(one, other)


def _common(one: bytes | str, other: bytes | str) -> int:
    end = min(len(one), len(other))
    same, step = 0, FIRST
    differ = min(step, end)
    while one[same:differ] == other[same:differ]:
        if differ == end:
            return end
        same = differ
        step *= 4
        differ = min(same + step, end)
    while differ - same > 1:  # up to the one it is the same, up to the other not
        middle = (same + differ) // 2
        if one[same:middle] == other[same:middle]:
            same = middle
        else:
            differ = middle
    return same
