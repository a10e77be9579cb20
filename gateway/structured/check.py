"""POST /v1/schemas/check: what would become of a shape, without an answer in it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import orjson
from aiohttp import web
from pydantic import Field

from engine.client import EngineClient, failure_from
from engine.errors import GrammarRefused
from engine.request import GrammarReport, RequestFailed
from grammar.contract import Verdict

from ..body import read_json
from ..caller import CALLER
from ..config import Limits
from ..errors import InvalidRequest, Overloaded
from ..model import TextModel
from ..openai.fields import parse, wrong_type
from .asked import Object, ShapeFields
from .schemas import Audited
from .shapes import AnswerShape, Shapes, objection
from .source import Source
from .wishes import SchemaWish, Wish

MAX_AT_ONCE = 8
"""Checks the engine is asked for at the same time; more are turned away, so that answers wait for few of them."""


class SchemaCheckRequest(ShapeFields):
    """A schema, or any of the fields by which a request can ask for a shape."""

    model: str | None = None
    asked_schema: Object = Field(None, alias="schema", description="a JSON schema")
    strict: bool = Field(False, description="with schema: by OpenAI's strict rules")

    def only_wish(self) -> Wish:
        """Raises InvalidRequest, also when nothing is asked for."""
        wish = self.wish()
        if self.asked_schema is None:
            if wish is None:
                raise InvalidRequest(
                    "There is nothing to check: send 'schema', or one of the fields by which a request asks for a form.",
                    param="schema",
                    code="missing_required_parameter",
                )
            return wish
        if wish is not None:
            raise InvalidRequest(
                f"'schema' and '{wish.source.param}' are both to be checked; send one of them.",
                param=wish.source.param,
                code="conflicting_parameters",
            )
        if not isinstance(self.asked_schema, dict):
            raise wrong_type("schema", "an object", self.asked_schema)
        source = Source("schema", "schema", code="invalid_json_schema")
        return SchemaWish(source, self.asked_schema, "openai" if self.strict else "checked")


@dataclass(frozen=True, slots=True)
class _Findings:
    """What is known of a shape; what could not be found out is None. `error` is what a request with it is refused by."""

    error: InvalidRequest | None
    audited: Audited | None = None
    compiled: GrammarReport | None = None

    def wire(self, wish: Wish) -> dict[str, object]:
        schema, compiled = self.audited, self.compiled
        refuses = isinstance(wish, SchemaWish) and wish.demand != "checked"
        return {
            "object": "schema.check",
            "param": wish.source.param,
            "valid": self.error is None,
            "enforced": self.error is None and (schema is None or not schema.contract.checked),
            "error": None if self.error is None else self.error.wire(),
            "keywords": []
            if schema is None
            else [_keyword(one, refuses) for one in schema.contract.verdicts],
            "strict_openai": None if schema is None else _strict_openai(schema, wish.source),
            "backend": None if compiled is None else compiled.backend,
            "compile_ms": None if compiled is None else round(compiled.seconds * 1000, 3),
            "bytes": None if compiled is None else compiled.nbytes,
            "cached": None if compiled is None else compiled.cached,
        }


class SchemaChecks:
    def __init__(self, model: TextModel, shapes: Shapes, engine: EngineClient, limits: Limits) -> None:
        self._model = model
        self._shapes = shapes
        self._engine = engine
        self._limits = limits
        self._running = 0

    async def handle(self, request: web.Request) -> web.Response:
        caller = request[CALLER]
        asked = parse(SchemaCheckRequest, await read_json(request, self._limits), {})
        if asked.model is not None:
            self._model.check_name(asked.model)
        wish = await self._shapes.threads.run(asked.only_wish)
        if self._running >= MAX_AT_ONCE:
            raise Overloaded(f"There are {self._running} checks under way already.")
        self._running += 1
        try:
            async with caller.in_time():
                findings = await self._find(wish)
        finally:
            self._running -= 1
        return web.Response(body=orjson.dumps(findings.wire(wish)), content_type="application/json")

    async def _find(self, wish: Wish) -> _Findings:
        try:
            shape = await self._shapes.shape(_undemanding(wish))
        except InvalidRequest as error:
            return _Findings(error)
        report = await self._engine.check_grammar(shape.grammar)
        refused = _refusal(report, wish.source)
        return _Findings(
            _objection(shape, wish) or refused, shape.audited, None if refused is not None else report
        )


def _undemanding(wish: Wish) -> Wish:
    """The same with nothing demanded, so that all there is to say of it can be found out."""
    return replace(wish, demand="checked") if isinstance(wish, SchemaWish) else wish


def _objection(shape: AnswerShape, wish: Wish) -> InvalidRequest | None:
    if shape.audited is None or not isinstance(wish, SchemaWish):
        return None
    return objection(shape.audited, wish.source, wish.demand)


def _refusal(report: GrammarReport, source: Source) -> InvalidRequest | None:
    """Raises RequestFailure for what is not the grammar's fault."""
    if report.error is None:
        return None
    failure = failure_from(RequestFailed("", report.kind or "engine_error", report.error))
    if isinstance(failure, GrammarRefused):
        return source.refused(failure)
    raise failure


def _keyword(verdict: Verdict, refuses: bool) -> dict[str, object]:
    return {
        "path": verdict.path,
        "keyword": verdict.keyword,
        "outcome": "refused" if refuses and verdict.outcome == "checked" else verdict.outcome,
        "backend": verdict.backend,
        "reason": verdict.reason or None,
    }


def _strict_openai(audited: Audited, source: Source) -> dict[str, object]:
    error = objection(audited, source, "openai")
    return {"valid": error is None, "error": None if error is None else error.message}
