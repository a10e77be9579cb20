"""Bringing a prompt into the cache without answering it."""

from __future__ import annotations

from dataclasses import dataclass

from cache.lease import CachePolicy, EntrySpec
from engine.backlog import Place
from engine.errors import Unavailable
from engine.request import SamplingParams

from ..caller import Caller
from ..desk import Desk, Job
from ..generation import Usage
from ..pieces import TextOptions
from .objects import CacheObject


@dataclass(frozen=True, slots=True)
class Prefill:
    desk: Desk

    async def run(
        self,
        caller: Caller,
        place: Place,
        found: CacheObject,
        prompt: list[int],
        now: float,
        *,
        priority: int = 0,
    ) -> Usage:
        """Returns once the whole prompt is in the cache, as the entry of the object with its lease; what it took.

        Raises PinsExhausted and whatever else a request may end with, and Unavailable if the cache could not take it.
        """
        entry = EntrySpec(entry_id=found.id, tokens=len(prompt), lease=found.lease(now))
        job = Job(
            prompt=prompt,
            sampling=SamplingParams(max_tokens=0),
            text=TextOptions(discard=True),
            n=1,
            cache_salt=found.salt,
            cache_key=found.key,
            cache_id=found.id,
            priority=priority,
            cache=CachePolicy(entries=(entry,), lowest=found.lowest),
        )
        async with self.desk.submit(caller, place, [job]) as (generation,):
            await generation.collect()
        if generation.stored is None or found.id not in generation.stored.entries:
            raise Unavailable(
                "The prompt was computed, but the cache did not keep it: it is off, or was flushed."
            )
        return generation.usage
