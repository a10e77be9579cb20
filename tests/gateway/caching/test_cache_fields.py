"""What a request may ask of the cache, on both endpoints: every refusal, every acceptance, and what reaches the engine."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from cache.lease import Lease
from gateway.caching.fields import MAX_KEY, MAX_TAG
from tests.fakes import FakeEngine
from tests.gateway.live import MODEL, Gateway, Start

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
ENDPOINTS: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2},
    TEXT: {"prompt": "hi", "max_tokens": 2},
}
MARKED = {"type": "text", "text": "word. ", "prompt_cache_breakpoint": {"mode": "explicit"}}
FUNCTION = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
PREWARM = {"prompt_cache_options": {"prewarm": True}}


def marked(value: Any) -> dict[str, Any]:
    part = {"type": "text", "text": "x", "prompt_cache_breakpoint": value}
    return {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, part]}]}


AT = "messages[0].content[1].prompt_cache_breakpoint"

REFUSED_ANYWHERE: list[tuple[dict[str, Any], str, str]] = [
    ({"prompt_cache_key": ""}, "prompt_cache_key", "invalid_value"),
    ({"prompt_cache_key": 5}, "prompt_cache_key", "invalid_type"),
    ({"prompt_cache_key": "k" * (MAX_KEY + 1)}, "prompt_cache_key", "string_above_max_length"),
    ({"prompt_cache_options": []}, "prompt_cache_options", "invalid_type"),
    ({"prompt_cache_options": {"mode": "automatic"}}, "prompt_cache_options.mode", "invalid_value"),
    ({"prompt_cache_options": {"mode": 1}}, "prompt_cache_options.mode", "invalid_value"),
    ({"prompt_cache_options": {"ttl": 1800}}, "prompt_cache_options.ttl", "invalid_type"),
    *(
        ({"prompt_cache_options": {"ttl": ttl}}, "prompt_cache_options.ttl", "invalid_value")
        for ttl in ("", "30", "30M", "0s", "-5s", "1.5s", " 5m", "5m ", "2h", "forever", "99999999s", "٣s")
    ),
    ({"prompt_cache_options": {"prewarm": "yes"}}, "prompt_cache_options.prewarm", "invalid_type"),
    ({"prompt_cache_options": {"scope": "org"}}, "prompt_cache_options.scope", "unknown_parameter"),
    (
        {"prompt_cache_options": {"comparison_response_id": "resp_1"}},
        "prompt_cache_options.comparison_response_id",
        "unsupported_parameter",
    ),
    ({"prompt_cache_retention": "1h"}, "prompt_cache_retention", "invalid_value"),
    ({"prompt_cache_retention": 24}, "prompt_cache_retention", "invalid_type"),
    ({"cache_salt": ""}, "cache_salt", "invalid_value"),
    ({"cache": "yes"}, "cache", "invalid_type"),
    ({"cache": {"pinned": True}}, "cache.pinned", "unknown_parameter"),
    ({"cache": {"id": ""}}, "cache.id", "invalid_value"),
    ({"cache": {"id": 5}}, "cache.id", "invalid_type"),
    ({"cache": {"pin": "firm"}}, "cache.pin", "invalid_value"),
    ({"cache": {"pin": True}}, "cache.pin", "invalid_value"),
    ({"cache": {"priority": -1}}, "cache.priority", "integer_below_min_value"),
    ({"cache": {"priority": 101}}, "cache.priority", "integer_above_max_value"),
    ({"cache": {"priority": 1.5}}, "cache.priority", "invalid_type"),
    ({"cache": {"ttl": 60}}, "cache.ttl", "invalid_type"),
    ({"cache": {"ttl": "soon"}}, "cache.ttl", "invalid_value"),
    ({"cache": {"tool_pause_ttl": "1 minute"}}, "cache.tool_pause_ttl", "invalid_value"),
    ({"cache": {"tool_pause_ttl": 5}}, "cache.tool_pause_ttl", "invalid_type"),
    ({"cache": {"tool_pause_ttl": False}}, "cache.tool_pause_ttl", "invalid_type"),
    ({"cache": {"bypass": "some"}}, "cache.bypass", "invalid_value"),
    ({"cache": {"bypass": True}}, "cache.bypass", "invalid_value"),
    ({"cache": {"tag": ""}}, "cache.tag", "invalid_value"),
    ({"cache": {"tag": "t" * (MAX_TAG + 1)}}, "cache.tag", "string_above_max_length"),
    ({"cache": {"lowest": "tape"}}, "cache.lowest", "invalid_value"),
    ({"cache": {"ttl": "5m"}, "prompt_cache_options": {"ttl": "1h"}}, "cache.ttl", "conflicting_parameters"),
    ({"cache": {"bypass": "write", "pin": "hard"}}, "cache.pin", "conflicting_parameters"),
    (
        {"cache": {"pin": "soft"}, "prompt_cache_options": {"mode": "explicit"}},
        "cache.pin",
        "conflicting_parameters",
    ),
    *(
        ({**PREWARM, **change}, param, "conflicting_parameters")
        for change, param in (
            ({"stream": True}, "stream"),
            ({"n": 2}, "n"),
            ({"response_format": {"type": "json_object"}}, "response_format"),
            ({"regex": "a+"}, "regex"),
            ({"cache": {"bypass": "all"}}, "prompt_cache_options.prewarm"),
            (
                {"prompt_cache_options": {"prewarm": True, "mode": "explicit"}},
                "prompt_cache_options.prewarm",
            ),
        )
    ),
]
REFUSED: list[tuple[str, dict[str, Any], str, str]] = [
    *((path, *case) for path in ENDPOINTS for case in REFUSED_ANYWHERE),
    (CHAT, marked(True), AT, "invalid_type"),
    (CHAT, marked({}), f"{AT}.mode", "missing_required_parameter"),
    (CHAT, marked({"mode": "implicit"}), f"{AT}.mode", "invalid_value"),
    (CHAT, marked({"mode": 1}), f"{AT}.mode", "invalid_type"),
    (CHAT, marked({"mode": "explicit", "ttl": 60}), f"{AT}.ttl", "invalid_type"),
    (CHAT, marked({"mode": "explicit", "ttl": "1d"}), f"{AT}.ttl", "invalid_value"),
    (CHAT, marked({"mode": "explicit", "type": "ephemeral"}), f"{AT}.type", "unknown_parameter"),
    (
        CHAT,
        {**PREWARM, "tools": [FUNCTION], "tool_choice": "required"},
        "tool_choice",
        "conflicting_parameters",
    ),
    (
        CHAT,
        {**PREWARM, "tools": [FUNCTION], "tool_choice": {"type": "function", "function": {"name": "f"}}},
        "tool_choice",
        "conflicting_parameters",
    ),
    (CHAT, {**PREWARM, "logprobs": True}, "logprobs", "conflicting_parameters"),
    (TEXT, {**PREWARM, "logprobs": 1}, "logprobs", "conflicting_parameters"),
    (TEXT, {**PREWARM, "echo": True}, "echo", "conflicting_parameters"),
]


async def test_what_cannot_be_honoured_is_refused_by_its_path(gateway: Gateway) -> None:
    wrong = []
    for path, change, param, code in REFUSED:
        status, body = await gateway.post(path, {"model": MODEL, **ENDPOINTS[path], **change})
        error = body.get("error", {})
        if (status, error.get("param"), error.get("code")) != (400, param, code):
            wrong.append((path, change, body))
    assert not wrong
    assert not gateway.engine.requests
    await gateway.at_rest()


async def test_a_hard_pin_that_the_tenant_may_not_have_is_a_conflict(start: Start) -> None:
    gateway = await start(tenants="default: {hard_pins: false}")
    for path, body in ENDPOINTS.items():
        status, answer = await gateway.post(path, {"model": MODEL, **body, "cache": {"pin": "hard"}})
        assert (status, answer["error"]["code"]) == (409, "pin_quota_exceeded")


CHOICES: dict[str, tuple[Any, ...]] = {
    "prompt_cache_key": (None, "agent-7"),
    "prompt_cache_options": (
        None,
        {},
        {"mode": "implicit", "ttl": "30m"},
        {"mode": "explicit"},
        {"prewarm": True},
    ),
    "prompt_cache_retention": (None, "in_memory", "in-memory", "24h"),
    "cache_salt": (None, "s"),
    "cache": (
        None,
        {},
        {"pin": "none", "priority": 0, "ttl": "30m", "tool_pause_ttl": "0s", "tag": "t", "lowest": "device"},
        {"bypass": "read", "tool_pause_ttl": "90s"},
    ),
}


@pytest.mark.parametrize("path", ENDPOINTS)
async def test_every_combination_is_served_and_told(gateway: Gateway, path: str) -> None:
    for values in itertools.product(*CHOICES.values()):
        change = {name: value for name, value in zip(CHOICES, values, strict=True) if value is not None}
        if change.get("prompt_cache_options") == {"mode": "explicit"} and path == CHAT:
            change["messages"] = [{"role": "user", "content": [MARKED]}]
        status, body = await gateway.post(path, {"model": MODEL, **ENDPOINTS[path], **change})
        assert status == 200, (change, body)
        assert ("x_cache" in body) == bool(change), change
    await gateway.at_rest()


async def asked(gateway: Gateway, path: str = CHAT, **change: Any) -> tuple[Any, dict[str, Any]]:
    """The policy that a request came to, and its answer."""
    status, body = await gateway.post(path, {"model": MODEL, **ENDPOINTS[path], **change})
    assert status == 200, body
    return gateway.engine.requests[-1].cache, body


@pytest.mark.parametrize("path", ENDPOINTS)
async def test_nothing_asked_is_the_automatic_cache(gateway: Gateway, path: str) -> None:
    policy, body = await asked(gateway, path)
    assert (policy.read, policy.write, policy.entries, policy.write_tokens) == (True, True, (), None)
    assert (policy.group, policy.max_age, policy.lowest) == (b"", None, "disk")
    assert "x_cache" not in body


@pytest.mark.parametrize(
    ("change", "ttl"),
    [
        ({"prompt_cache_key": "k"}, None),
        ({"prompt_cache_retention": "24h"}, None),
        ({"cache": {"bypass": "read"}}, None),
        ({"prompt_cache_options": {}}, 1800.0),
        ({"prompt_cache_options": {"ttl": "5m"}}, 300.0),
        ({"prompt_cache_options": {"ttl": "12h"}}, 43200.0),
        ({"prompt_cache_options": {"ttl": "90s"}}, 90.0),
        ({"cache": {"ttl": "1h"}}, 3600.0),
        ({"cache": {"tag": "t"}}, 1800.0),
        ({"cache": {"pin": "hard"}}, 1800.0),
        ({"cache": {"ttl": "24h"}, "prompt_cache_retention": "in_memory"}, 3600.0),
    ],
)
@pytest.mark.parametrize("path", ENDPOINTS)
async def test_what_promises_something_makes_an_entry(
    gateway: Gateway, path: str, change: dict[str, Any], ttl: float | None
) -> None:
    policy, body = await asked(gateway, path, **change)
    assert [entry.lease.ttl for entry in policy.entries] == ([] if ttl is None else [ttl])
    assert body["x_cache"]["entry_ids"] == [entry.entry_id for entry in policy.entries]
    assert (body["x_cache"]["ttl"] is None) == (ttl is None)


async def test_a_tenant_bounds_what_is_promised(start: Start) -> None:
    gateway = await start(tenants="default: {max_ttl: 60s, default_ttl: 20s}")
    policy, body = await asked(gateway, prompt_cache_options={"ttl": "24h"})
    assert policy.entries[0].lease.ttl == 60
    assert body["x_cache"]["ttl"] == "60s"
    policy, body = await asked(gateway, prompt_cache_options={})
    assert policy.entries[0].lease.ttl == 20
    breakpoint_ = {"type": "text", "text": "x", "prompt_cache_breakpoint": {"mode": "explicit", "ttl": "12h"}}
    policy, _ = await asked(gateway, messages=[{"role": "user", "content": [breakpoint_]}])
    assert {entry.lease.ttl for entry in policy.entries} == {60, 20}


async def test_the_lease_is_what_was_asked_for(gateway: Gateway) -> None:
    cache = {"pin": "soft", "priority": 80, "tag": "docs", "ttl": "5m"}
    policy, body = await asked(gateway, cache=cache)
    (entry,) = policy.entries
    assert entry.lease == Lease(ttl=300, pin="soft", priority=80, tag="docs")
    assert body["x_cache"].items() >= {**cache, "mode": "implicit"}.items()


async def test_retention_is_a_maximum_and_a_tier(gateway: Gateway) -> None:
    for said, age, lowest, canonical in (
        ("in_memory", 3600.0, "host", "in_memory"),
        ("in-memory", 3600.0, "host", "in_memory"),
        ("24h", 86400.0, "disk", "24h"),
    ):
        policy, body = await asked(gateway, prompt_cache_retention=said)
        assert (policy.max_age, policy.lowest) == (age, lowest)
        assert body["x_cache"]["retention"] == canonical
    policy, _ = await asked(gateway, prompt_cache_retention="in_memory", cache={"lowest": "disk"})
    assert policy.lowest == "host", "the narrower of the two"
    policy, _ = await asked(gateway, prompt_cache_retention="24h", cache={"lowest": "device"})
    assert policy.lowest == "device"


@pytest.mark.parametrize(
    ("change", "read", "write"),
    [
        ({"cache": {"bypass": "read"}}, False, True),
        ({"cache": {"bypass": "write"}}, True, False),
        ({"cache": {"bypass": "all"}}, False, False),
        ({"prompt_cache_options": {"mode": "explicit"}}, False, False),
    ],
)
@pytest.mark.parametrize("path", ENDPOINTS)
async def test_a_bypass(gateway: Gateway, path: str, change: dict[str, Any], read: bool, write: bool) -> None:
    policy, body = await asked(gateway, path, **change)
    assert (policy.read, policy.write) == (read, write)
    assert body["x_cache"]["reason"] == ("cold" if read else "bypass")
    assert (body["usage"]["prompt_tokens_details"]["cache_write_tokens"] > 0) == write


async def test_asking_again_renews_the_same_entry(gateway: Gateway) -> None:
    async def entry(**change: Any) -> str:
        policy, _ = await asked(gateway, **{"prompt_cache_options": {}, **change})
        return policy.entries[0].entry_id

    first = await entry()
    assert await entry() == first
    others = [
        await entry(prompt_cache_options={"ttl": "5m"}),
        await entry(cache={"pin": "soft"}),
        await entry(cache={"tag": "t"}),
        await entry(cache_salt="s"),
        await entry(messages=[{"role": "user", "content": "ho ho ho"}]),
    ]
    assert len({first, *others}) == 6


# -- breakpoints -------------------------------------------------------------------------------------------------------

OPENING = len("<|im_start|>user\n") - len("<|im_start|>") + 1
"""Tokens of ChatML before a user's text: the mark is one, the rest are bytes."""


def user(*texts: str, mark: tuple[int, ...] = ()) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = [{"type": "text", "text": text} for text in texts]
    for index in mark:
        parts[index]["prompt_cache_breakpoint"] = {"mode": "explicit"}
    return [{"role": "user", "content": parts}]


async def test_a_breakpoint_is_an_entry_at_the_end_of_its_part(gateway: Gateway) -> None:
    policy, _ = await asked(gateway, messages=user("abc. ", "def", mark=(0,)))
    at, implicit = (entry.tokens for entry in policy.entries)
    assert at == OPENING + len("abc")
    assert implicit == OPENING + len("abc.")
    assert (policy.write, policy.write_tokens) == (True, None)


async def test_explicit_mode_writes_up_to_the_last_breakpoint(gateway: Gateway) -> None:
    policy, body = await asked(
        gateway,
        messages=user("abc. ", "def ", "ghi", mark=(0, 1)),
        prompt_cache_options={"mode": "explicit", "ttl": "5m"},
    )
    assert [entry.tokens - OPENING for entry in policy.entries] == [3, 7]
    assert policy.write_tokens == OPENING + 7
    assert body["x_cache"].items() >= {"mode": "explicit", "ttl": "5m", "reason": "cold"}.items()


@pytest.mark.parametrize(("mode", "kept"), [("implicit", [6, 8, 10, 12]), ("explicit", [4, 6, 8, 10])])
async def test_the_latest_breakpoints_count(gateway: Gateway, mode: str, kept: list[int]) -> None:
    policy, _ = await asked(
        gateway,
        messages=user(*(f"{letter} " for letter in "abcdefg"), mark=tuple(range(6))),
        prompt_cache_options={"mode": mode},
    )
    assert [entry.tokens - OPENING for entry in policy.entries] == kept


@pytest.mark.parametrize("role", ["developer", "system", "user", "assistant", "tool"])
async def test_every_role_takes_breakpoints(gateway: Gateway, role: str) -> None:
    marked: dict[str, Any] = {"role": role, "content": [MARKED]}
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    before: list[dict[str, Any]] = [{"role": "user", "content": "q"}]
    if role == "tool":
        marked["tool_call_id"] = "c"
        before.append({"role": "assistant", "content": None, "tool_calls": [call]})
    policy, _ = await asked(gateway, messages=[*before, marked], prompt_cache_options={"mode": "explicit"})
    prompt = gateway.engine.requests[-1].prompt
    (entry,) = policy.entries
    assert bytes(prompt[entry.tokens - 4 : entry.tokens]) == b"word"


async def test_a_breakpoint_may_have_a_lifetime_of_its_own(gateway: Gateway) -> None:
    messages = user("a. ", "b. ", "c. ", mark=(0, 1))
    messages[0]["content"][0]["prompt_cache_breakpoint"]["ttl"] = "12h"
    policy, _ = await asked(gateway, messages=messages, prompt_cache_options={"ttl": "5m"})
    assert [entry.lease.ttl for entry in policy.entries] == [43200, 300, 300]


async def test_breakpoints_are_no_part_of_the_prompt(gateway: Gateway) -> None:
    await asked(gateway, messages=user("a", "b", mark=(0,)))
    await asked(gateway, messages=[{"role": "user", "content": "ab"}])
    one, other = gateway.engine.requests
    assert one.prompt == other.prompt
    status, body = await gateway.post("/tokenize", {"messages": user("a", "b", mark=(0,))})
    assert (status, body["tokens"]) == (200, one.prompt)


# -- prewarm -----------------------------------------------------------------------------------------------------------


async def test_a_prewarmed_chat(gateway: Gateway) -> None:
    gateway.engine.cached_tokens = 3
    _, body = await asked(gateway, **PREWARM, tools=[FUNCTION], max_tokens=50, stop="a")
    (request,) = gateway.engine.requests
    prompt = len(request.prompt)
    assert (request.sampling.max_tokens, request.grammar) == (0, None)
    (choice,) = body["choices"]
    assert choice["message"] == {"role": "assistant", "content": "", "refusal": None, "annotations": []}
    assert choice["finish_reason"] == "length"
    assert body["usage"] == {
        "prompt_tokens": prompt,
        "completion_tokens": 0,
        "total_tokens": prompt,
        "prompt_tokens_details": {"cached_tokens": 3, "cache_write_tokens": prompt - 3},
    }
    assert len(body["x_cache"]["entry_ids"]) == 1
    assert not gateway.engine.leased_tips


async def test_a_prewarmed_completion(gateway: Gateway) -> None:
    _, body = await asked(gateway, TEXT, prompt=["abc", "de"], **PREWARM)
    assert [request.sampling.max_tokens for request in gateway.engine.requests] == [0, 0]
    assert [(c["text"], c["finish_reason"]) for c in body["choices"]] == [("", "length")] * 2
    assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 0, "cache_write_tokens": 5}
    assert body["usage"]["completion_tokens"] == 0
    assert len(body["x_cache"]["entry_ids"]) == 2


async def test_a_prewarm_fills_what_the_request_after_it_finds(start: Start) -> None:
    """The same prompt: what opens the answer is in it too."""
    engine = FakeEngine()
    gateway = await start(engine)
    await asked(gateway, **PREWARM)
    await asked(gateway)
    one, other = engine.requests
    assert (one.prompt, one.namespace) == (other.prompt, other.namespace)
