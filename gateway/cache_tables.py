"""What a server says of its cache, as tables for a terminal."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

_WIDE = 1000
_STYLES = {"active": "green", "broken": "yellow", "cold": "cyan", "expired": "red", "flushed": "red"}
_TIERS = ("device", "host", "disk")
MOST = 10
"""Keys and caches that are shown."""

Json = dict[str, Any]


def write(rendered: object) -> None:
    console = Console(highlight=False, width=None if sys.stdout.isatty() else _WIDE)  # a pipe has no margin
    with console.capture() as capture:
        console.print(rendered)
    print("\n".join([line.rstrip(" ") for line in capture.get().splitlines()]))


def caches(found: list[Json]) -> RenderableType:
    if not found:
        return "No caches."
    table = _table(
        "id", "name", "status", "tokens", *_TIERS, "hits", "pin", "lasts", "used", "tag", right=range(3, 8)
    )
    now = time.time()
    for each in found:
        tiers = each["tiers"] or dict.fromkeys(_TIERS)
        table.add_row(
            each["id"],
            _plain(each["name"] or ""),
            _status(each["status"]),
            count(each["tokens"]),
            *(count(tiers[tier]) for tier in _TIERS),
            count(each["hits"]),
            "" if each["pin"] == "none" else each["pin"],
            _lasts(each["expires_at"], now),
            f"{span(now - each['last_used_at'])} ago",
            _plain(each["tag"] or ""),
        )
    return table


def one(answer: Json) -> RenderableType:
    """One cache, and what was computed for it if that was asked for."""
    lines: Json = {
        "cache": f"{answer['id']}" + (f" ({answer['name']})" if answer["name"] else ""),
        "status": answer["status"] + (f": {answer['cause']}" if answer["cause"] else ""),
        "tokens": _by_tier(answer["tokens"], answer["tiers"]),
        "held": _held(answer),
    }
    if (usage := answer.get("usage")) is not None:
        details = usage["prompt_tokens_details"]
        lines["cached"] = f"{count(details['cached_tokens'])} tokens were there"
        lines["written"] = f"{count(details['cache_write_tokens'])} tokens are new"
    return _lines(lines)


def flushed(answer: Json) -> RenderableType:
    said = "would be flushed" if answer["dry_run"] else "flushed"
    found = [tier for tier in _TIERS if answer["pages"][tier]]
    lines = {said: ", ".join(found) or "nothing"}
    for tier in found:
        tokens, pages = count(answer["tokens"][tier]), count(answer["pages"][tier])
        lines[tier] = f"{tokens} tokens in {pages} pages, {size(answer['bytes'][tier])}"
    if answer["entries"]:
        lines["entries"] = count(answer["entries"])
    if answer["in_use"]:
        lines["in use"] = f"{count(answer['in_use'])} pages, freed when their requests end"
    if answer["kept"]:
        lines["kept"] = f"{count(answer['kept'])} pages that others use too"
    return _lines(lines)


def deleted(answer: Json) -> RenderableType:
    return f"{answer['id']} is deleted."


def exported(answer: Json) -> RenderableType:
    return _plain(f"{answer['cache']}: {size(answer['bytes'])} in {answer['file']}")


def explanation(answer: Json) -> RenderableType:
    """The reason and its sentence, how much was found, and where the prompts part: both sides of the place."""
    lines: Json = {"reason": answer["reason"], "": answer["summary"]}
    if answer["baseline_id"] is not None:
        lines["compared with"] = f"{answer['baseline_id']} ({answer['baseline']})"
    lines["cached"] = (
        f"{count(answer['hit_tokens'])} of {_by_tier(answer['prompt_tokens'], answer['hit_tokens_by_tier'])}"
    )
    if (place := answer["first_divergence"]) is not None:
        lines["parts at"] = _place(place)
        lines["was"] = _shown(place["expected_preview"])
        lines["is"] = _shown(place["got_preview"])
    elif (end := answer["cached_until"]) is not None:
        lines["cached until"] = f"token {count(end['token'])}, before {_shown(end['preview'])}"
    return _lines(lines)


def _place(place: Json) -> str:
    words = [place["segment"]]
    if place["message"] is not None:
        role = f" ({place['role']})" if place["role"] else ""
        words.append(f"message {place['message']}{role}")
    if place["part"] is not None:
        words.append(f"part {place['part']}")
    return ", ".join([*words, f"character {place['char']}", f"token {place['token']}"])


def _shown(text: str) -> str:
    """A piece of a prompt in one line."""
    return json.dumps(text, ensure_ascii=False)


def stats(answer: Json) -> RenderableType:
    """Tenants by the room they take, then keys and caches by the time they save."""
    tenants = answer["tenants"]
    table = _table(
        "tenant",
        *_TIERS,
        "entries",
        "pinned",
        "evicted",
        "broken",
        "hit",
        "saved",
        "missed for",
        right=range(1, 10),
    )
    for each in sorted(tenants, key=lambda each: -sum(each["bytes"].values())):
        table.add_row(
            _plain(each["tenant"]),
            *(size(each["bytes"][tier]) for tier in _TIERS),
            count(each["entries"]),
            count(each["pinned_pages"]),
            count(sum(each["evictions"].values())),
            count(each["broken_leases"]),
            _share(each["usage"]),
            duration(each["usage"]["saved_seconds"]),
            ", ".join(
                f"{reason} {count(n)}"
                for reason, n in list(each["usage"]["reasons"].items())[:3]
                if reason != "hit"
            ),
        )
    if not tenants:
        return "Nothing is cached."
    parts: list[RenderableType] = [table]
    for title, listed in (("key", "keys"), ("cache", "objects")):
        rows = [(tenant["tenant"], each) for tenant in tenants for each in tenant["usage"][listed]]
        if rows:
            parts += ["", _most(title, rows)]
    return Group(*parts)


def _most(title: str, rows: list[tuple[str, Json]]) -> Table:
    table = _table(title, "tenant", "requests", "tokens", "hit", "saved", right=range(2, 6))
    for tenant, each in sorted(rows, key=lambda row: -row[1]["saved_seconds"])[:MOST]:
        name = each["name"] if "id" not in each else each["name"] or each["id"]
        table.add_row(
            _plain(name),
            _plain(tenant),
            count(each["requests"]),
            count(each["prompt_tokens"]),
            _share(each),
            duration(each["saved_seconds"]),
        )
    return table


def _share(usage: Json) -> str:
    """Of prompt tokens, those that were found."""
    prompt = usage["prompt_tokens"]
    return f"{(prompt - usage['tokens']['computed']) / prompt:.0%}" if prompt else "-"


def duration(seconds: float) -> str:
    """A time that was measured."""
    return (
        f"{seconds * 1000:.0f} ms" if seconds < 10 else f"{seconds:.0f} s" if seconds < 600 else span(seconds)
    )


def count(number: int | None) -> str:
    return "?" if number is None else f"{number:,}"


def size(number: float) -> str:
    """Bytes."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} TiB"


def span(seconds: float) -> str:
    """A time in the unit that suits it."""
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f}{unit}"
    return f"{max(seconds, 0):.0f}s"


def _lasts(end: float | None, now: float) -> str:
    return "until deleted" if end is None else span(end - now)


def _held(answer: Json) -> str:
    lasts = _lasts(answer["expires_at"], time.time())
    words = [lasts if answer["expires_at"] is None else f"for {lasts}"]
    if answer["ttl"]:
        words.append(f"{answer['ttl']} after each use")
    if answer["pin"] != "none":
        words.append(f"pinned ({answer['pin']})")
    if answer["tag"]:
        words.append(f"tag {answer['tag']}")
    return ", ".join(words)


def _by_tier(tokens: int, tiers: Mapping[str, int] | None) -> str:
    if tiers is None:
        return count(tokens)
    parts = [f"{tier} {count(tiers[tier])}" for tier in _TIERS if tiers[tier]]
    return f"{count(tokens)} ({', '.join(parts) or 'none cached'})"


def _status(status: str) -> Text:
    return Text(status, style=_STYLES.get(status, ""))


def _plain(text: str) -> Text:
    """What a client wrote, as it is: neither markup of ours nor a control character of the terminal's."""
    return Text("".join([c if c.isprintable() else f"\\u{ord(c):04x}" for c in text]))


def _lines(lines: Mapping[str, str]) -> Table:
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in lines.items():
        table.add_row(name, _plain(value))
    return table


def _table(*columns: str, right: Any = ()) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, name in enumerate(columns):
        table.add_column(name, justify="right" if index in right else "left", overflow="fold")
    return table
