"""The documents say what the code does: options, fields, refusals, error codes, metrics, addresses and failpoints."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import get_args

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cache.lease import Lease
from cache.memory_store import MemoryStore
from cache.redis_address import RedisAddress
from cache.redis_link import RedisLink
from engine.backlog import Rejection
from engine.failpoints import check_failpoint
from gateway.app import create_app
from gateway.caching.accounting import Accounting
from gateway.caching.ask import CacheAsk
from gateway.caching.fields import CacheFields, CacheObjectField, PromptCacheOptions
from gateway.caching.flush import FlushedScope
from gateway.caching.ledger import Ledger
from gateway.caching.ledger_file import LedgerFile
from gateway.caching.metrics import CacheMetrics, LastingCounters, TenantMetrics
from gateway.caching.object_fields import CreateCache
from gateway.caching.object_view import wire as object_wire
from gateway.caching.objects import CacheObject
from gateway.caching.report import details
from gateway.chat_template import ChatTemplate
from gateway.config import Http, Limits, Served
from gateway.faulty_store import FaultyStore, split
from gateway.metrics import Metrics
from gateway.openai import chat, completions
from gateway.openai.chat import ChatRequest
from gateway.openai.completions import CompletionRequest
from gateway.openai.fields import _BOUNDS, _SENTENCES, Wire
from gateway.openai.sampling import NOT_SERVED_ANYWHERE, SamplingFields
from gateway.openai.tokenize import DetokenizeRequest, TokenizeRequest
from gateway.reasoning import REASONING_FORMATS
from gateway.sessions.metrics import StoreLatency, StoreMetrics
from gateway.sessions.sessions import Sessions
from gateway.structured.asked import ShapeFields
from gateway.structured.check import SchemaCheckRequest, _Findings
from gateway.tokenizer import Tokenizer
from gateway.tools.families import FAMILIES
from tests.fakes import FakeEngine
from tests.gateway.option_tables import tables, written

ROOT = Path(__file__).resolve().parents[2]
OPERATIONS = (ROOT / "docs" / "operations.md").read_text("utf-8")
API = (ROOT / "docs" / "api.md").read_text("utf-8")


def section(document: str, title: str) -> str:
    """From a heading to the next of its level."""
    found = re.search(rf"^## {re.escape(title)}$(.*?)(?=^## |\Z)", document, re.MULTILINE | re.DOTALL)
    assert found, title
    return found[1]


def first_cells(text: str) -> set[str]:
    """The names in the first column of the section's tables."""
    cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def names(models: Iterable[type[Wire]]) -> set[str]:
    return {field.alias or name for model in models for name, field in model.model_fields.items()}


def test_the_option_tables_are_those_of_the_command() -> None:
    assert written(OPERATIONS) == tables(), "run: python -m tests.gateway.option_tables"


@pytest.mark.parametrize(
    ("title", "fields"),
    [
        ("Fields of both generation endpoints", names([SamplingFields])),
        ("Chat completions", names([ChatRequest]) - names([SamplingFields])),
        ("Completions", names([CompletionRequest]) - names([SamplingFields])),
        ("Tokenize and detokenize", names([TokenizeRequest, DetokenizeRequest])),
    ],
)
def test_every_field_is_described_and_no_other(title: str, fields: set[str]) -> None:
    assert first_cells(section(API, title)) == fields


def test_every_field_about_the_cache_is_described_and_no_other() -> None:
    of_request, of_answer = section(API, "The prompt cache").split("| in `x_cache` | is |")
    members = {f"prompt_cache_options.{name}" for name in PromptCacheOptions.model_fields}
    members |= {f"cache.{name}" for name in CacheObjectField.model_fields}
    fields = names([CacheFields]) - {"prompt_cache_options", "cache"} | members | {"prompt_cache_breakpoint"}
    assert first_cells(of_request) == fields - {"prompt_cache_options.comparison_response_id"}
    lease = Lease(ttl=60, priority=1, tag="t")
    ask = CacheAsk(lease=lease, pause=0, retention="24h", lowest="host")
    assert first_cells(of_answer) == details(ask, []).keys() | {
        *("first_divergence", "tokenization", "known_tokens")
    }


def test_every_field_of_a_check_is_described_and_no_other() -> None:
    of_request, of_answer = section(API, "Checking a schema").split("The answer is 200")
    assert first_cells(of_request) == names([SchemaCheckRequest]) - names([ShapeFields])
    wire = _Findings(None).wire(ShapeFields.model_validate({"regex": "a"}).wish())
    assert first_cells(of_answer) == wire.keys()


def test_every_field_of_a_cache_is_described_and_no_other() -> None:
    text = section(API, "Caches")
    made, rest = text.split("### Looking up")
    flushed = rest.split("### Flushing")[1].split("###")[0]
    of_object = made.split("A cache is")[1]
    assert first_cells(made.split("A cache is")[0]) - {"messages", "prompt"} == names([CreateCache]) - {
        "messages",
        "prompt",
    }
    found = CacheObject(
        id="cache_1",
        tenant="t",
        model="m",
        created_at=0.0,
        updated_at=0.0,
        last_used_at=0.0,
        expires_at=None,
        digest=b"",
        tokens=1,
    )
    assert first_cells(of_object) == object_wire(found, None, 0.0, page_size=1, saved=0.0).keys()
    assert first_cells(flushed) == names([FlushedScope])


def test_the_page_says_what_fields_of_form_and_tools_are_for() -> None:
    described = {name: field.description for name, field in ChatRequest.model_fields.items()}
    for name in (
        *ShapeFields.model_fields,
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "chat_template_kwargs",
    ):
        assert described[name], name


def test_the_refused_fields_are_listed() -> None:
    text = section(API, "Refused by name")
    both, rest = text.split("In chat:")
    of_chat, of_completions = rest.split("In completions:")
    listed = [set(re.findall(r"`(\w+)`", part)) for part in (both, of_chat, of_completions.split("\n\n")[0])]
    nested = {"include_obfuscation", "stream_options", "comparison_response_id", "prompt_cache_options"}
    assert listed[0] - {"unsupported_parameter", *nested} == set(NOT_SERVED_ANYWHERE)
    assert listed[1] == set(chat.NOT_SERVED) - set(NOT_SERVED_ANYWHERE)
    assert listed[2] == set(completions.NOT_SERVED) - set(NOT_SERVED_ANYWHERE)


def test_every_error_code_is_listed_and_no_other() -> None:
    sources = "".join(path.read_text("utf-8") for path in (ROOT / "gateway").rglob("*.py"))
    codes = set(re.findall(r'code="(\w+)"|"code": "(\w+)"', sources))
    in_code = {code for pair in codes for code in pair if code}
    in_code |= {f"{number}_{side}" for number in ("integer", "decimal") for side, _, _ in _BOUNDS.values()}
    in_code |= {code for _, code in _SENTENCES.values()} | {"invalid_value"}
    in_code |= {
        f"engine_{status}" for status in ("starting", "restarting", "unresponsive", "failed", "stopped")
    }
    rows = [line for line in section(API, "Errors").splitlines() if re.match(r"\| \d", line)]
    listed = {code for row in rows for code in re.findall(r"`(\w+)`", row.split("|")[2])} - {"null"}
    assert listed == in_code


def test_every_format_is_listed_and_no_other() -> None:
    """In the sentence that begins with the option."""
    for title, option, formats in (
        ("Tools", "--tool-format", set(FAMILIES)),
        ("Thoughts", "--reasoning-format", {*REASONING_FORMATS, "none"}),
    ):
        sentence = section(API, title).partition(f"`{option}`: ")[2].partition(". ")[0]
        assert set(re.findall(r"`(\w+)`", sentence)) == formats


def test_every_address_is_listed() -> None:
    tokenizer = Tokenizer.hash()
    app = create_app(
        engine=FakeEngine(),
        served=Served(model_id="m", test_mode=True),
        tokenizer=tokenizer,
        template=ChatTemplate.hash(tokenizer),
        http=Http(),
        limits=Limits(),
    )
    routed = {
        f"{route.method} {route.resource.canonical}"
        for route in app.router.routes()
        if route.resource is not None and route.method != "HEAD"
    }
    listed = set(re.findall(r"`((?:GET|POST|PATCH|DELETE) /[^`\s]*)`", API))
    listed |= {address.replace(" /", " /v1/") for address in listed if address.endswith("tokenize")}
    assert listed == routed


def test_every_metric_is_listed_and_no_other() -> None:
    text = section(OPERATIONS, "Metrics")
    listed = {re.sub(r"\{.*", "", name) for name in re.findall(r"`((?:headwater_|vllm:)[^`\s]+)`", text)}
    histograms = re.findall(r"`(\w+)`", text.partition("`vllm:`:")[2].partition("They are filled")[0])
    listed |= {prefix + name for prefix in ("headwater_", "vllm:") for name in histograms}
    exposed = set()
    engine, accounting = FakeEngine(), Accounting()
    metrics = Metrics("m", engine)
    ledger = Ledger(LedgerFile(Path("ledger"), max_bytes=1, files=1), "m")
    metrics.register(CacheMetrics("m", LastingCounters(engine), accounting, ledger))
    metrics.register(TenantMetrics("m", accounting), by_tenant=True)
    link = RedisLink(RedisAddress.parse("redis://nobody"))
    metrics.register(StoreMetrics(Sessions(MemoryStore(), ttl=1), link, StoreLatency()))
    for family in text_string_to_metric_families(metrics.render(operator=True).decode()):
        exposed.add(family.name + ("_total" if family.type == "counter" else ""))
    assert listed == exposed


def test_every_reason_of_a_rejection_is_listed_and_no_other() -> None:
    row = next(
        line for line in OPERATIONS.splitlines() if "`headwater_rejected_requests_total{reason}`" in line
    )
    assert set(re.findall(r"`(\w+)`", row.rpartition("|")[0].rpartition("|")[2])) == set(get_args(Rejection))


def test_every_failpoint_is_listed() -> None:
    """Each spec of the table is one, with numbers in place of its letters; those of the module are all there."""
    specs = first_cells(section(OPERATIONS, "Test mode"))
    stores, engines = split(specs)
    for spec in stores:
        assert FaultyStore(MemoryStore()).set(spec.replace("=N", "=1"))
    for spec in engines:
        check_failpoint(spec.replace("SECONDS", "0.5").replace("=K", "=1").replace("=N", "=1"))
    documented: set[str] = set()
    for module in ("engine/failpoints.py", "gateway/faulty_store.py"):
        head = (ROOT / module).read_text("utf-8").partition('"""')[2].partition('"""')[0]
        documented.update(re.findall(r"^    (\w+)=?\S* {2,}", head, re.MULTILINE))
    assert {spec.partition("=")[0] for spec in specs} == documented


def test_every_promise_of_the_cache_names_tests_that_exist() -> None:
    document = (ROOT / "docs" / "cache.md").read_text("utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", document)
    missing = [
        f"{path}::{name}"
        for path, name in named
        if not re.search(
            rf"^(async def|def|class) {name}\b|^{name} = ", (ROOT / path).read_text("utf-8"), re.MULTILINE
        )
    ]
    assert named
    assert missing == []
    rows = [line for line in document.splitlines() if line.startswith("| ") and "held by" not in line]
    assert all("::" in row for row in rows), "a promise that nothing holds"


@pytest.mark.parametrize("path", sorted((ROOT / "docs").glob("*.md")), ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)\)", path.read_text("utf-8"))
    missing = [target for target in targets if "://" not in target and not (path.parent / target).exists()]
    assert missing == []
