"""Pages for tests of the tiers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cache.tiers.page import PageMeta, page_chain

ROOT = b"r" * 32


def path_of(tokens: Sequence[int], *, page_size: int = 2, root: bytes = ROOT, **meta: Any) -> list[PageMeta]:
    """The pages of a prompt, from its root on."""
    parent = root
    pages: list[PageMeta] = []
    for at in range(len(tokens) // page_size):
        key = tuple(tokens[at * page_size : (at + 1) * page_size])
        chain = page_chain(parent, key)
        pages.append(PageMeta(chain=chain, parent=parent, root=root, tokens=key, **meta))
        parent = chain
    return pages
