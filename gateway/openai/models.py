"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

from dataclasses import dataclass

import orjson
from aiohttp import web

from engine.client import EngineClient

from ..errors import ApiError
from ..model import TextModel


@dataclass(frozen=True, slots=True)
class Models:
    """`max_model_len` is null until the engine was ready once. An alias lists the model it stands for as its root."""

    model: TextModel
    engine: EngineClient

    async def list(self, request: web.Request) -> web.Response:
        return _json({"object": "list", "data": [self._card(name) for name in self.model.names]})

    async def retrieve(self, request: web.Request) -> web.Response:
        name = request.match_info["model"]
        if name not in self.model.names:
            raise ApiError(
                404, f"The model '{name[:200]}' does not exist.", param="model", code="model_not_found"
            )
        return _json(self._card(name))

    def _card(self, name: str) -> dict[str, object]:
        info = self.engine.info
        return {
            "id": name,
            "object": "model",
            "created": self.model.served.created,
            "owned_by": "headwater",
            "root": self.model.id,
            "parent": None,
            "max_model_len": info.max_model_len if info else None,
            "digest": info.model_digest if info else None,
        }


def _json(body: dict[str, object]) -> web.Response:
    return web.Response(body=orjson.dumps(body), content_type="application/json")
