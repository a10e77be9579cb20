"""The addresses below /v1/caches. Fixed words come before ids: no id is spelled like one of them."""

from __future__ import annotations

from ..routes import Route
from .caches import Caches
from .flush import Flush
from .lookup import Lookup
from .stats import Stats
from .transfer import Transfer


def cache_routes(
    caches: Caches, lookup: Lookup, flush: Flush, transfer: Transfer, stats: Stats
) -> list[Route]:
    return [
        Route("POST", "/v1/caches/lookup", lookup.handle),
        Route("POST", "/v1/caches/flush", flush.handle),
        Route("POST", "/v1/caches/import", transfer.take, work=True),
        Route("GET", "/v1/caches/stats", stats.handle),
        Route("POST", "/v1/caches", caches.create, work=True),
        Route("GET", "/v1/caches", caches.list),
        Route("GET", "/v1/caches/{id}", caches.get),
        Route("PATCH", "/v1/caches/{id}", caches.change),
        Route("DELETE", "/v1/caches/{id}", caches.delete),
        Route("POST", "/v1/caches/{id}/warm", caches.warm, work=True),
        Route("POST", "/v1/caches/{id}/demote", caches.demote),
        Route("POST", "/v1/caches/{id}/promote", caches.promote),
        Route("POST", "/v1/caches/{id}/export", transfer.export, work=True),
    ]
