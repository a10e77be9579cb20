"""How far two sequences are the same. Comparing slices is done by the C library, so this costs some microseconds."""

from __future__ import annotations


def common_tokens(one: bytes, other: bytes) -> int:
    """Of token ids in four bytes each."""
    end = min(len(one), len(other))
    if one[:end] == other[:end]:
        return end // 4
    same, differ = 0, end  # what is the same, what is not
    while differ - same > 1:
        middle = (same + differ) // 2
        if one[same:middle] == other[same:middle]:
            same = middle
        else:
            differ = middle
    return same // 4


def common_characters(one: str, other: str) -> int:
    end = min(len(one), len(other))
    if one[:end] == other[:end]:
        return end
    same, differ = 0, end
    while differ - same > 1:
        middle = (same + differ) // 2
        if one[same:middle] == other[same:middle]:
            same = middle
        else:
            differ = middle
    return same
