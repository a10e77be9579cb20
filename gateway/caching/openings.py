"""What a request begins with because it names a cache object (`cache.id`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from cache.lease import EntrySpec

from ..chat_template import Message
from ..errors import ApiError, InvalidRequest
from ..tenants import Tenants
from .ask import CacheAsk
from .objects import CacheObject, CacheObjects, Held

PARAM = "cache.id"


@dataclass(frozen=True, slots=True)
class Opening:
    """`ids` are the tokens that the prompt has to begin with, `messages`, `tools` and `variables` what they were rendered
    from; `messages` None is an object that was made of a text."""

    ids: list[int]
    messages: Sequence[Message] | None
    tools: Sequence[object] | None
    variables: Mapping[str, object]

    def of_messages(self) -> Sequence[Message]:
        """Those it is made of. Raises ApiError 409 if it is made of a text."""
        if self.messages is None:
            raise ApiError(
                409,
                "This cache was made of a text, not of messages: use it with /v1/completions.",
                param=PARAM,
                code="cache_prefix_mismatch",
            )
        return self.messages

    def check(self, prompt: list[int]) -> None:
        """Raises ApiError 409 unless the prompt begins with the object's tokens: nothing else was cached."""
        if prompt[: len(self.ids)] == self.ids:
            return
        pairs = enumerate(zip(self.ids, prompt, strict=False))
        parts_at = next((i for i, (ours, theirs) in pairs if ours != theirs), len(prompt))
        raise ApiError(
            409,
            f"The prompt parts from the cache's {len(self.ids)} tokens at token {parts_at}: this model's chat template "
            "writes the cached messages otherwise when these messages, tools or variables come with them.",
            param=PARAM,
            code="cache_prefix_mismatch",
        )


NO_OPENING = Opening([], [], None, {})


@dataclass(frozen=True, slots=True)
class Openings:
    objects: CacheObjects
    tenants: Tenants
    model: str

    async def of(self, tenant: str, ask: CacheAsk, *, looking: bool = False) -> tuple[Opening, CacheAsk]:
        """What the request begins with, and what it asks of the cache where that is kept. Only `looking` is no use of it.

        Raises ApiError 404 or 410 for an object that there is not (any more), 409 for one of another model, InvalidRequest
        for a request that looks for it elsewhere.
        """
        if ask.object_id is None:
            return NO_OPENING, ask
        if looking:
            found = await self.objects.live(tenant, ask.object_id, param=PARAM)
            held = await self.objects.content(found, param=PARAM)
        else:
            found, held = await self.objects.use(tenant, ask.object_id, param=PARAM)
        if found.model != self.model:
            raise ApiError(
                409,
                f"The cache was made with the model '{found.model}'.",
                param=PARAM,
                code="cache_prefix_mismatch",
            )
        return _opening(held), self._where(found, ask)

    def _where(self, found: CacheObject, ask: CacheAsk) -> CacheAsk:
        """With the id of the object, whatever it was named by; with its salt, and its key where keys are kept apart; and with
        its lease, so that an engine that has lost its entry has it again."""
        salt = _same("cache_salt", found.salt, ask.salt)
        key = ask.key
        if self.tenants.policy(found.tenant).prompt_cache_key == "isolate":
            key = _same("prompt_cache_key", found.key, ask.key)
        entry = EntrySpec(entry_id=found.id, tokens=found.tokens, lease=found.lease(self.objects.clock()))
        return replace(ask, salt=salt, key=key, object_id=found.id, opening=entry)


def _opening(held: Held) -> Opening:
    content = held.content
    return Opening(held.prompt, content.messages, content.tools, content.variables)


def _same(param: str, made_with: str | None, asked: str | None) -> str | None:
    """Raises InvalidRequest where the request says another than the object was made with."""
    if asked is not None and asked != made_with:
        raise InvalidRequest(
            f"The cache was made with another '{param}': nothing of it is found with this one.",
            param=param,
            code="conflicting_parameters",
        )
    return made_with
