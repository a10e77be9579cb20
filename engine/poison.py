"""Requests that bring the engine down.

A request whose content was in the batch at two crashes in a row is refused for a while, so that a client which sends it
again and again cannot keep everybody else from being served. Who was in the batch is known from the frames that arrived:
a crash within the microseconds between an admission and its frame blames nobody, and the next one has to.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import msgspec

from .request import GenerationRequest

REFUSED_FOR = 600.0
"""Seconds. Batch mates of a poisonous request may be caught with it: they must not be shut out for ever."""

_encode = msgspec.msgpack.Encoder(order="deterministic").encode


class PoisonGuard:
    def __init__(self) -> None:
        self._suspects: set[bytes] = set()  # in the batch at the last crash and not seen to finish since
        self._refused: dict[bytes, float] = {}  # until when

    def crashed(self, batch: Iterable[GenerationRequest], now: float) -> None:
        digests = {_digest(request) for request in batch}
        self._refused = {digest: until for digest, until in self._refused.items() if until > now}
        self._refused.update(dict.fromkeys(self._suspects & digests, now + REFUSED_FOR))
        self._suspects = digests

    def finished(self, request: GenerationRequest) -> None:
        """It ended well: whatever crashed the engine, it was not this alone."""
        if self._suspects:
            self._suspects.discard(_digest(request))

    def refuses(self, request: GenerationRequest, now: float) -> bool:
        return bool(self._refused) and self._refused.get(_digest(request), now) > now


def _digest(request: GenerationRequest) -> bytes:
    """Of what the engine computes. The seed is left out: a client that gave none gets a new one each time."""
    sampling = msgspec.structs.replace(request.sampling, seed=0)
    return hashlib.blake2b(
        _encode((request.prompt, sampling, request.n, request.adapter, request.grammar)), digest_size=16
    ).digest()
