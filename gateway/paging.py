"""Lists that are read page by page: `after`, `limit` and `order` of OpenAI's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .errors import InvalidRequest
from .openai.fields import wrong_type

MOST = 100
USUAL = 20


@dataclass(frozen=True, slots=True)
class Paging:
    after: str | None
    limit: int
    descending: bool

    def page(self, items: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The page of these, which are in ascending order. Raises InvalidRequest if `after` is none of them."""
        ordered = list(reversed(items)) if self.descending else list(items)
        if self.after is not None:
            place = next((i for i, item in enumerate(ordered) if item["id"] == self.after), None)
            if place is None:
                raise InvalidRequest(f"There is no item '{self.after[:100]}' here.", param="after")
            ordered = ordered[place + 1 :]
        return listed(ordered[: self.limit], more=len(ordered) > self.limit)


def listed(items: Sequence[Mapping[str, Any]], *, more: bool) -> dict[str, Any]:
    return {
        "object": "list",
        "data": list(items),
        "first_id": items[0]["id"] if items else None,
        "last_id": items[-1]["id"] if items else None,
        "has_more": more,
    }


def read_paging(query: Mapping[str, str], *, descending: bool = True) -> Paging:
    """`descending` is the order if none is asked for. Raises InvalidRequest."""
    order = query.get("order")
    if order not in (None, "asc", "desc"):
        raise InvalidRequest("Supported values are: 'asc' and 'desc'.", param="order")
    text = query.get("limit", str(USUAL))
    if not (text.isascii() and text.isdecimal()):
        raise wrong_type("limit", "an integer", text)
    limit = int(text[:9])
    if not 1 <= limit <= MOST:
        raise InvalidRequest(f"Invalid 'limit': expected 1 to {MOST}, but got {text[:9]}.", param="limit")
    return Paging(query.get("after"), limit, descending if order is None else order == "desc")
