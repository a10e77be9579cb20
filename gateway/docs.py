"""What the server offers, described by itself: `/openapi.json`, and `/docs` as one page that loads nothing else."""

from __future__ import annotations

import re
from dataclasses import dataclass
from html import escape
from typing import Any

import orjson
from aiohttp import web

from .anthropic.request import CountTokensRequest, MessagesRequest
from .caching.explain import ExplainRequest
from .caching.flush import FlushRequest
from .caching.object_fields import ChangeCache, CreateCache, MoveCache
from .openai.chat import ChatRequest
from .openai.completions import CompletionRequest
from .openai.fields import Wire
from .openai.stored import UpdateChat
from .openai.tokenize import DetokenizeRequest, TokenizeRequest
from .responses.request import AddItems, ConversationRequest, ResponseRequest, UpdateConversation
from .structured.check import SchemaCheckRequest


@dataclass(frozen=True, slots=True)
class Operation:
    method: str
    path: str
    summary: str
    body: type[Wire] | None = None


OPERATIONS = (
    Operation("POST", "/v1/chat/completions", "Answer a conversation, whole or streamed.", ChatRequest),
    Operation("GET", "/v1/chat/completions", "Completions that are kept, page by page."),
    Operation("GET", "/v1/chat/completions/{id}", "One of them."),
    Operation("POST", "/v1/chat/completions/{id}", "Change its metadata.", UpdateChat),
    Operation("DELETE", "/v1/chat/completions/{id}", "Forget it."),
    Operation("GET", "/v1/chat/completions/{id}/messages", "What it was asked with, page by page."),
    Operation("POST", "/v1/completions", "Continue a text, or score one.", CompletionRequest),
    Operation("POST", "/v1/responses", "Answer, and keep the answer to go on from.", ResponseRequest),
    Operation("POST", "/v1/responses/input_tokens", "How many tokens an input has.", ResponseRequest),
    Operation("GET", "/v1/responses/{id}", "A response that is kept."),
    Operation("DELETE", "/v1/responses/{id}", "Forget it."),
    Operation("GET", "/v1/responses/{id}/input_items", "What it was asked with, page by page."),
    Operation("POST", "/v1/responses/{id}/cancel", "End one that is made in the background."),
    Operation(
        "POST", "/v1/conversations", "Begin a conversation that responses are added to.", ConversationRequest
    ),
    Operation("GET", "/v1/conversations/{id}", "A conversation, without its items."),
    Operation("POST", "/v1/conversations/{id}", "Change its metadata.", UpdateConversation),
    Operation("DELETE", "/v1/conversations/{id}", "Forget it."),
    Operation("POST", "/v1/conversations/{id}/items", "Add to it.", AddItems),
    Operation("GET", "/v1/conversations/{id}/items", "What was said in it, page by page."),
    Operation("GET", "/v1/conversations/{id}/items/{item_id}", "One item of it."),
    Operation("DELETE", "/v1/conversations/{id}/items/{item_id}", "Take it out."),
    Operation(
        "POST", "/v1/messages", "Anthropic's: answer a conversation, whole or streamed.", MessagesRequest
    ),
    Operation(
        "POST", "/v1/messages/count_tokens", "Anthropic's: how many tokens a prompt has.", CountTokensRequest
    ),
    Operation(
        "POST",
        "/v1/schemas/check",
        "What would become of a schema or grammar, keyword by keyword.",
        SchemaCheckRequest,
    ),
    Operation("GET", "/v1/models", "The names this server answers to."),
    Operation("GET", "/v1/models/{model}", "One of them; ids may contain slashes."),
    Operation("POST", "/v1/tokenize", "Token ids of a prompt or a conversation.", TokenizeRequest),
    Operation("POST", "/v1/detokenize", "The text of token ids.", DetokenizeRequest),
    Operation("POST", "/v1/caches", "Bring a prompt into the cache and keep it there.", CreateCache),
    Operation("GET", "/v1/caches", "The caches there are."),
    Operation("GET", "/v1/caches/{id}", "One of them, and how much of it is cached where."),
    Operation("PATCH", "/v1/caches/{id}", "Change its lifetime, pin, priority or tag.", ChangeCache),
    Operation("DELETE", "/v1/caches/{id}", "Promise nothing more of it."),
    Operation("POST", "/v1/caches/{id}/warm", "Compute what is missing of it."),
    Operation("POST", "/v1/caches/{id}/demote", "Move it to a lower tier.", MoveCache),
    Operation("POST", "/v1/caches/{id}/promote", "Move it to a higher tier.", MoveCache),
    Operation("POST", "/v1/caches/{id}/export", "Download it."),
    Operation("POST", "/v1/caches/import", "Upload one; the body is the file."),
    Operation("POST", "/v1/caches/lookup", "What a chat or completions request would find. Changes nothing."),
    Operation(
        "POST",
        "/v1/caches/explain",
        "Why a request's prompt was cached as far as it was, and where it parts from an earlier one.",
        ExplainRequest,
    ),
    Operation("GET", "/v1/caches/explain", "The same, with response_id and baseline_id in the query."),
    Operation("POST", "/v1/caches/flush", "Let nobody find these pages again.", FlushRequest),
    Operation("GET", "/v1/caches/stats", "What of the cache is whose, and what became of it."),
    Operation("GET", "/health", "The same as /health/ready. Needs no key."),
    Operation("GET", "/health/live", "The process answers. Needs no key."),
    Operation("GET", "/health/ready", "The server takes work (200) or does not (503). Needs no key."),
    Operation("GET", "/version", "The server's version."),
    Operation("GET", "/metrics", "Figures for Prometheus."),
    Operation("GET", "/admin/state", "The exact state of queue, engine and cache. Needs the admin key."),
    Operation("POST", "/admin/flush", "Let nobody find anything that is cached now. Needs the admin key."),
)


class Docs:
    """Both documents are made once."""

    def __init__(self, version: str) -> None:
        document = _document(version)
        self._json = orjson.dumps(document, option=orjson.OPT_INDENT_2)
        self._page = _page(document).encode()

    async def openapi(self, request: web.Request) -> web.Response:
        return web.Response(body=self._json, content_type="application/json")

    async def page(self, request: web.Request) -> web.Response:
        return web.Response(
            body=self._page,
            content_type="text/html",
            charset="utf-8",
            headers={"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"},
        )


def _document(version: str) -> dict[str, Any]:
    schemas: dict[str, Any] = {"Error": _ERROR}
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Headwater", "version": version},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}],
    }


def _operation(operation: Operation, schemas: dict[str, Any]) -> dict[str, Any]:
    error = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}}
    entry: dict[str, Any] = {
        "summary": operation.summary,
        "responses": {
            "200": {"description": "Done."},
            "default": {"description": "What went wrong.", **error},
        },
    }
    if names := re.findall(r"\{(\w+)\}", operation.path):
        entry["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
        ]
    if operation.body is not None:
        schema = operation.body.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas.update(schema.pop("$defs", {}))
        schemas[operation.body.__name__] = schema
        reference = {"$ref": f"#/components/schemas/{operation.body.__name__}"}
        entry["requestBody"] = {"required": True, "content": {"application/json": {"schema": reference}}}
    return entry


_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}

_STYLE = """
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1b1f24}
h2{margin:2rem 0 .2rem;font:600 1rem ui-monospace,monospace}table{border-collapse:collapse;width:100%}
td{border-top:1px solid #ddd;padding:.25rem .5rem;vertical-align:top}td:first-child,td:nth-child(2){font-family:ui-monospace,monospace}
"""


def _page(document: dict[str, Any]) -> str:
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><title>Headwater API</title>",
        f"<style>{_STYLE}</style><h1>Headwater {escape(document['info']['version'])}</h1>",
        "<p>The machine-readable form of this page is at <code>/openapi.json</code>.</p>",
    ]
    for operation in OPERATIONS:
        parts.append(
            f"<h2>{operation.method} {escape(operation.path)}</h2><p>{escape(operation.summary)}</p>"
        )
        if operation.body is not None:
            parts.append(_fields(document["components"]["schemas"][operation.body.__name__]))
    return "".join(parts)


def _fields(schema: dict[str, Any]) -> str:
    required = set(schema.get("required", ()))
    rows = []
    for name, field in schema["properties"].items():
        note = "required" if name in required else _default(field)
        limits = _limits(field)
        text = escape(", ".join(filter(None, (note, limits, field.get("description", "")))))
        rows.append(f"<tr><td>{escape(name)}<td>{escape(_type(field))}<td>{text}")
    return f"<table>{''.join(rows)}</table>"


def _default(field: dict[str, Any]) -> str:
    """As it is written in JSON; empty if the field is simply absent."""
    default = field.get("default")
    return "" if default is None else f"default {orjson.dumps(default).decode()}"


def _type(field: dict[str, Any]) -> str:
    if "anyOf" in field:
        return " | ".join(_type(option) for option in field["anyOf"] if option.get("type") != "null")
    if field.get("type") == "array":
        return f"[{_type(field.get('items', {}))}]"
    return str(field.get("type") or field.get("$ref", "any").rpartition("/")[2])


def _limits(field: dict[str, Any]) -> str:
    signs = (
        ("minimum", "≥"),
        ("exclusiveMinimum", ">"),
        ("maximum", "≤"),
        ("exclusiveMaximum", "<"),
    )
    return ", ".join(f"{sign} {field[name]}" for name, sign in signs if name in field)
