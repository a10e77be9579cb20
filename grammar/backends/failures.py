"""What an engine's own exceptions become."""

from __future__ import annotations

import re

from ..errors import MatcherError

_PLACE = re.compile(r"^(?:\[[\d:]+\] )?\S+\.(?:cc|h):\d+: (?:Check failed: \(.*?\) is false: )?")
"""A time, a file of a library and what it checked."""

LONGEST = 400
"""Characters of a message that is passed on."""


def sentence(error: BaseException) -> str:
    """An engine's message in one line, without places in its source."""
    lines = _PLACE.sub("", str(error)).strip().splitlines()
    return lines[0][:LONGEST].rstrip() if lines else type(error).__name__


def broken(error: BaseException) -> MatcherError:
    """For what a matcher raised: it ends its own sequence, no other. A panic in Rust is no Exception, so callers catch
    everything. Raises again what is not the engine's."""
    if isinstance(error, KeyboardInterrupt | SystemExit):
        raise error
    return MatcherError(f"the grammar can no longer be followed: {sentence(error)}")
