"""Rows of a mask that do not depend on the place in a grammar."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ..vocabulary import Vocabulary
from .base import Bits


def row_without(vocabulary: Vocabulary, barred: frozenset[int]) -> Bits:
    """All tokens but these, and nothing beyond the vocabulary."""
    allowed = np.zeros(32 * vocabulary.words, dtype=np.bool_)
    allowed[: vocabulary.size] = True
    allowed[list(barred)] = False
    return np.packbits(allowed, bitorder="little").view(np.int32)


def unspelled(vocabulary: Vocabulary) -> frozenset[int]:
    """The tokens that add nothing to a text. Looks at all of them, which is milliseconds for a large vocabulary."""
    return frozenset(token for token, raw in enumerate(vocabulary.tokens) if not raw)


def row_of(vocabulary: Vocabulary, tokens: Iterable[int]) -> Bits:
    """These tokens alone."""
    allowed = np.zeros(32 * vocabulary.words, dtype=np.bool_)
    allowed[list(tokens)] = True
    return np.packbits(allowed, bitorder="little").view(np.int32)
