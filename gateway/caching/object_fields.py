"""What clients may say of a cache object: bodies of requests about them, and how long one is to live."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import orjson
from msgspec import structs
from pydantic import Field, WithJsonSchema

from cache.lease import DEFAULT_PRIORITY, Pin, Tier

from ..config import Limits
from ..errors import ApiError, InvalidRequest
from ..openai.fields import Wire
from ..tenants import TenantPolicy
from .content import digest
from .fields import MAX_KEY
from .lifetimes import LONGEST, read_ttl
from .objects import CacheObject, Held, is_id, new_id

Objects = Annotated[object, WithJsonSchema({"type": "array", "items": {"type": "object"}})]
Object = Annotated[object, WithJsonSchema({"type": "object"})]
Prompt = Annotated[
    object, WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "integer"}}]})
]


class LeaseFields(Wire):
    """How long an object lasts and what may become of it meanwhile; what is left out stays, or is the default."""

    ttl: str | None = Field(
        None, description="at least so long after its last use: 5m, 30m, 1h, 12h, 24h or <n>s"
    )
    expires_at: float | None = Field(None, description="or until then, in seconds of Unix time")
    pin: Pin | None = Field(
        None, description="soft goes last of all; hard never, but counts against a share and may be refused"
    )
    priority: int | None = Field(
        None, ge=0, le=100, description=f"lower goes first; default {DEFAULT_PRIORITY}"
    )
    tag: str | None = Field(None, description="a word of your own to list and flush by; empty: none")

    def check(self, limits: Limits, now: float) -> None:
        """What a type cannot say. Raises InvalidRequest."""
        if self.ttl is not None and self.expires_at is not None:
            raise InvalidRequest(
                "'ttl' and 'expires_at' exclude each other.",
                param="expires_at",
                code="conflicting_parameters",
            )
        if self.expires_at is not None and not now < self.expires_at <= now + LONGEST:
            raise InvalidRequest(
                f"Invalid 'expires_at': expected a time within the next {LONGEST} seconds, the clock here "
                f"says {math.floor(now)}.",
                param="expires_at",
            )
        if self.ttl is not None:
            read_ttl(self.ttl, param="ttl")
        if self.tag:  # an empty one takes it away
            check_label("tag", self.tag, limits)

    def applied(self, found: CacheObject, now: float, policy: TenantPolicy) -> CacheObject:
        """The object with what is asked for, as far as its tenant may have it. Raises InvalidRequest, ApiError 409."""
        if self.pin == "hard" and not policy.hard_pins:
            raise ApiError(409, "This tenant may pin nothing hard.", param="pin", code="pin_quota_exceeded")
        made = structs.replace(
            found,
            pin=found.pin if self.pin is None else self.pin,
            priority=found.priority if self.priority is None else self.priority,
            tag=found.tag if self.tag is None else self.tag,
        )
        if self.expires_at is not None:
            return structs.replace(made, ttl=None, expires_at=min(self.expires_at, now + policy.max_ttl))
        if self.ttl is not None:
            return _lasting(made, read_ttl(self.ttl, param="ttl"), now, policy)
        if made.pin == "none" and made.expires_at is None:
            return _lasting(made, policy.default_ttl, now, policy)
        return made


def _lasting(made: CacheObject, ttl: float, now: float, policy: TenantPolicy) -> CacheObject:
    ttl = min(ttl, policy.max_ttl)
    return structs.replace(made, ttl=ttl, expires_at=now + ttl)


class NewCache(LeaseFields):
    """What a new object is given besides its content."""

    name: str | None = Field(
        None, description="the same name and content again renews the object, another content is a 409"
    )
    cache_salt: str | None = Field(None, description="as the requests will have it")
    prompt_cache_key: str | None = Field(None, description="as the requests will have it")
    lowest: Tier | None = Field(
        None, description="the lowest tier its pages may go to: device, host or disk; default disk"
    )

    def check(self, limits: Limits, now: float) -> None:
        super().check(limits, now)
        for name, most in (("name", None), ("cache_salt", None), ("prompt_cache_key", MAX_KEY)):
            check_label(name, getattr(self, name), limits, most=most)
        if self.name is not None and is_id(self.name):
            raise InvalidRequest("Invalid 'name': it is spelled like an id.", param="name")

    def made(
        self, tenant: str, model: str, held: Held, *, generation: int, now: float, policy: TenantPolicy
    ) -> CacheObject:
        """The object that this asks for, with an id of its own. Raises InvalidRequest, ApiError 409."""
        made = CacheObject(
            id=new_id(),
            tenant=tenant,
            name=self.name,
            model=model,
            created_at=now,
            updated_at=now,
            last_used_at=now,
            expires_at=None,
            lowest=self.lowest or "disk",
            salt=self.cache_salt,
            key=self.prompt_cache_key,
            digest=digest(held.content, model, self.cache_salt, self.prompt_cache_key),
            tokens=len(held.prompt),
            generation=generation,
        )
        return self.applied(made, now, policy)


class CreateCache(NewCache):
    """`messages` with what belongs to them, or a `prompt`."""

    model: str
    messages: Objects = Field(None, description="what requests are to begin with")
    tools: Objects = Field(None, description="with messages, as the requests will have them")
    chat_template_kwargs: Object = Field(None, description="with messages, likewise")
    prompt: Prompt = Field(None, description="or a text or token ids, for completions")


class ImportCache(NewCache):
    """The query of an import: its body is the file."""


class ChangeCache(LeaseFields):
    """What is left out stays as it is."""


class MoveCache(Wire):
    """Where to: a lower tier for a demotion, a higher one for a promotion."""

    to: Tier | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """Which part of a list is asked for."""

    limit: int
    order: Literal["asc", "desc"]
    after: str | None
    name: str | None
    tag: str | None


MAX_PAGE = 100
_LIST_FIELDS = frozenset({"limit", "order", "after", "name", "tag"})


def read_page(query: dict[str, str]) -> Page:
    """The query of a list. Raises InvalidRequest."""
    for name in query.keys() - _LIST_FIELDS:
        raise InvalidRequest(
            f"Unknown parameter: '{name[:100]}'.", param=name[:100], code="unknown_parameter"
        )
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise InvalidRequest("Invalid 'order': expected 'asc' or 'desc'.", param="order")
    given = query.get("limit", "20")
    limit = int(given) if given.isascii() and given.isdecimal() and len(given) < 4 else 0
    if not 1 <= limit <= MAX_PAGE:
        raise InvalidRequest(f"Invalid 'limit': expected a whole number from 1 to {MAX_PAGE}.", param="limit")
    return Page(
        limit, "asc" if order == "asc" else "desc", query.get("after"), query.get("name"), query.get("tag")
    )


def read_import(query: Mapping[str, str]) -> dict[str, object]:
    """The query of an import as a body would have it."""
    return {
        name: _number(value) if name in ("expires_at", "priority") else value for name, value in query.items()
    }


def _number(text: str) -> object:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text


def check_label(name: str, value: str | None, limits: Limits, *, most: int | None = None) -> None:
    """Raises InvalidRequest for one that is empty or longer than `most` characters, or than labels are."""
    most = limits.max_string if most is None else most
    if value is None:
        return
    if not value:
        raise InvalidRequest(f"Invalid '{name}': it is empty.", param=name)
    if len(value) > most:
        raise InvalidRequest(
            f"Invalid '{name}': longer than {most} characters.",
            param=name,
            code="string_above_max_length",
        )
