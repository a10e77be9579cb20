"""How much hangs on an object: what has to stay bounded whatever clients send."""

from __future__ import annotations

import gc
from types import BuiltinFunctionType, FrameType, FunctionType, ModuleType

_CONTAINERS = (dict, list, tuple, set, frozenset)
_NO_STATE = (type, ModuleType, FunctionType, BuiltinFunctionType, FrameType)


def reach(*roots: object) -> int:
    """Objects that can be reached from these, code and what it is defined in left out, and numbers, texts and bytes that only
    containers of theirs hold counted by the containers' length."""
    seen: set[int] = set()
    left: list[object] = list(roots)
    count = 0
    while left:
        thing = left.pop()
        if id(thing) in seen or isinstance(thing, _NO_STATE):
            continue
        seen.add(id(thing))
        count += 1
        if isinstance(thing, _CONTAINERS):
            count += len(thing)
        # of containers also those that hold nothing but numbers and texts, which the collector leaves alone
        left += [
            each for each in gc.get_referents(thing) if gc.is_tracked(each) or isinstance(each, _CONTAINERS)
        ]
    return count
