"""A diagnosis in a sentence, for people."""

from __future__ import annotations

from collections.abc import Mapping

from .diagnosis import Diagnosis

_SENTENCES = {
    "hit": "All of the prompt that can be reused was found.",
    "partial_hit": "The first {hit} tokens were found; the rest is new.",
    "cold": "Nothing like it had been cached.",
    "in_flight": "The other request was still being computed.",
    "expired": "It was cached, and its time was over {age:g} s before.",
    "restarted": "It was cached, and the engine has been restarted since.",
    "bypass": "The request did not read the cache.",
    "model_changed": "The model is another one.",
    "adapter_changed": "The adapter is another one.",
    "namespace_changed": "The request was in another namespace: {by} differs.",
    "prompt_cache_key_changed": "The requests have different keys, and each key has a cache of its own.",
    "system_changed": "Message {message} (system) differs from character {char} on.",
    "message_edited": "{where} differs from character {char} on.",
    "reasoning_dropped": "The thoughts of message {message} were not sent back.",
    "template_rewrote_history": "Nobody changed {where}, but the chat template shows it in another way.",
    "template_kwargs_changed": "The variables of the chat template differ: {variables}.",
    "retokenized": "{where} is the same text in other tokens, from token {token} on.",
    "history_truncated": "The history is not continued at message {message}.",
    "volatile_pattern": "{where} holds something that changes each time: {kind}.",
}
_TOOLS = {
    "added": "The tool '{tool}' was added.",
    "removed": "The tool '{tool}' was removed.",
    "reordered": "The tools are in another order, from '{tool}' on.",
    "schema": "The definition of the tool '{tool}' differs from character {char} on.",
}


def sentence(diagnosis: Diagnosis, hit: int, tokens: int) -> str:
    detail, place = diagnosis.detail, diagnosis.place
    words: dict[str, object] = {
        "hit": hit,
        "char": 0 if place is None else place.char,
        "where": "The prompt" if place is None or place.message is None else f"message {place.message}",
        **detail,
    }
    form = _form(diagnosis.reason, detail)
    if isinstance(variables := words.get("variables"), list):
        words["variables"] = ", ".join(map(str, variables))
    text = form.format_map(words)
    return text[0].upper() + text[1:]


def _form(reason: str, detail: Mapping[str, object]) -> str:
    if reason == "tools_changed":
        return _TOOLS[str(detail["change"])]
    if reason == "evicted":
        return _evicted(detail)
    if reason == "flushed":
        return "It was cached, and was flushed" + (" {age:g} s before." if "age" in detail else " since.")
    if reason == "bypass" and detail.get("why") == "baseline_write":
        return "The other request left no more than this in the cache, as it was told."
    if reason == "history_truncated" and "removed" in detail:
        return "The history goes on at message {message} with what came {removed} messages later."
    return _SENTENCES[reason]


def _evicted(detail: Mapping[str, object]) -> str:
    if detail.get("baseline") == "unfinished":
        return "The other request ended before its whole prompt was computed."
    if detail.get("cause") is None:
        return "It had been cached and is gone; the engine no longer knows why."
    why = {
        "pressure": "evicted for want of room",
        "quota": "evicted because its tenant was above its quota",
        "lost": "lost by a lower tier",
        "demoted": "moved to a lower tier, which no longer has it,",
    }
    broken = ", though it was leased" if detail.get("broken") else ""
    return f"It was cached, and was {why[str(detail['cause'])]} {{age:g}} s before{broken}."
