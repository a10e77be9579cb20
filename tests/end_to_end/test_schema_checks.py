"""The dry run against the real thing: what `/v1/schemas/check` says of a shape is what a request with it meets."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .server import Server

CHECK, COMPLETE = "/v1/schemas/check", "/v1/completions"
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
SHORT = {"type": "string", "pattern": "^[ab]?$"}
UNIQUE = {"type": "array", "items": SHORT, "uniqueItems": True, "minItems": 2, "maxItems": 3}
WIDE = {"enum": [f"value {number}" for number in range(20_000)]}


def response_format(schema: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, **more}}


@pytest.mark.parametrize(
    "shape",
    [
        {"response_format": response_format(PERSON, strict=True)},
        {"response_format": response_format(UNIQUE)},
        {"response_format": response_format(UNIQUE, strict=True)},
        {"response_format": response_format({"type": "strng"})},
        {"response_format": response_format({"$ref": "#/$defs/none"}, strict=True)},
        {"response_format": {"type": "json_object"}},
        {"guided_json": UNIQUE},
        {"guided_json": PERSON},
        {"json_schema": WIDE},
        {"guided_choice": ["yes", "no"]},
        {"regex": "(yes|no)?"},
        {"regex": "("},
        {"structured_outputs": {"grammar": 'start: "up" | "down"'}},
        {"structured_outputs": {"grammar": "start: nobody"}},
        {
            "structural_tag": {
                "format": {"type": "sequence", "elements": [{"type": "const_string", "value": "a"}]}
            }
        },
    ],
    ids=lambda shape: json.dumps(shape)[:60],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_request_meets_what_was_said(server: Server, shape: dict[str, Any], stream: bool) -> None:
    said = server.post(CHECK, shape)
    assert said.status == 200
    met = server.post(
        COMPLETE, {"model": "hash", "prompt": "x", "max_tokens": 60, "seed": 1, "stream": stream, **shape}
    )
    if said.json()["valid"]:
        assert met.status == 200, met.body
        assert met.headers["x-schema-contract"] == ("enforced" if said.json()["enforced"] else "checked")
    else:
        assert (met.status, met.error) == (400, said.json()["error"])


def test_a_second_time_it_is_there_already(server: Server) -> None:
    schema = {**PERSON, "title": "t", "properties": {**PERSON["properties"], "asked": {"const": "twice"}}}
    schema["required"] = [*schema["properties"]]
    first, second = (server.post(CHECK, {"schema": schema, "strict": True}).json() for _ in range(2))
    assert (first["cached"], second["cached"]) == (False, True)
    assert (first["backend"], first["bytes"]) == (second["backend"], second["bytes"])
    assert first["compile_ms"] > 0
    assert {one["outcome"] for one in first["keywords"]} == {"enforced", "annotation"}


def test_what_is_checked_is_told_of_a_finished_answer(server: Server) -> None:
    shape = response_format(UNIQUE)
    body = {"model": "hash", "prompt": "x", "response_format": shape, "max_tokens": 60, "n": 8, "seed": 3}
    choices = server.post(COMPLETE, body).json()["choices"]
    found = set()
    for choice in choices:
        value = json.loads(choice["text"])
        valid = len(set(value)) == len(value)
        assert choice["finish_reason"] == "stop"
        assert choice["schema_check"]["valid"] is valid
        assert [problem["keyword"] for problem in choice["schema_check"]["problems"]] == ["uniqueItems"] * (
            not valid
        )
        found.add(valid)
    assert found == {True, False}
