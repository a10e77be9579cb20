"""Prometheus and Grafana ask for metrics and labels that the server has, in expressions that can be read."""

from __future__ import annotations

import importlib
import json
import os
import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from cache.memory_store import MemoryStore
from cache.redis_address import RedisAddress
from cache.redis_link import RedisLink
from gateway.metrics import Metrics
from gateway.sessions.metrics import StoreLatency, StoreMetrics
from gateway.sessions.sessions import Sessions
from tests.deploy import compose_file
from tests.fakes import FakeEngine
from tests.gateway.live import running, settings

DEPLOY = compose_file.ROOT / "deploy"
DASHBOARD: dict[str, Any] = json.loads((DEPLOY / "grafana/dashboards/headwater.json").read_text("utf-8"))
PROMETHEUS: dict[str, Any] = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text("utf-8"))
RULES: dict[str, Any] = yaml.safe_load((DEPLOY / "prometheus/rules.yml").read_text("utf-8"))
SOURCE: dict[str, Any] = yaml.safe_load(
    (DEPLOY / "grafana/provisioning/datasources/headwater.yml").read_text("utf-8")
)
BOARDS: dict[str, Any] = yaml.safe_load(
    (DEPLOY / "grafana/provisioning/dashboards/headwater.yml").read_text("utf-8")
)

KEY = "sk-scraper"
OF_PROMETHEUS = {"up": {"job", "instance"}}
_METRIC = re.compile(r"(?:headwater_|vllm:)[a-z0-9_]+|\bup\b")
_LABELS = re.compile(r"by \(([a-z_, ]*)\)|[{,]\s*([a-z_]+)\s*(?:=~|!~|!=|=)")

Exposed = Mapping[str, set[str]]


def expressions() -> dict[str, str]:
    """By where they stand."""
    panels = {
        f"{panel['title']} {target['refId']}": target["expr"]
        for panel in DASHBOARD["panels"]
        for target in panel.get("targets", [])
    }
    rules = {rule["alert"]: rule["expr"] for group in RULES["groups"] for rule in group["rules"]}
    return {**panels, **rules}


def faults(expression: str, exposed: Exposed) -> list[str]:
    """Metrics that are not exposed, and labels that none of the expression's metrics has."""
    metrics = set(_METRIC.findall(expression))
    labels = {
        label.strip()
        for group, matched in _LABELS.findall(expression)
        for label in (group.split(",") if group else [matched])
    }
    had = {"job", "instance"}.union(*(exposed.get(metric, set()) for metric in metrics))
    return [*sorted(metrics - exposed.keys()), *sorted(labels - had)] if metrics else ["no metric"]


@pytest.fixture
async def exposed(tmp_path: Path) -> Exposed:
    """The names of samples and their labels, as a scraper with an API key that is not the admin's gets them."""
    found: dict[str, set[str]] = defaultdict(set, OF_PROMETHEUS)
    parts = settings(http={"api_keys": (KEY,)})
    async with running(FakeEngine(), *parts, ledger=tmp_path / "ledger") as gateway:
        headers = {"Authorization": f"Bearer {KEY}"}
        for _ in range(2):  # requests are counted when they have ended: the first scrape is in the second
            async with gateway.client.get(f"{gateway.url}/metrics", headers=headers) as response:
                assert response.status == 200
                text = await response.text()
    metrics = Metrics("m", FakeEngine())  # that gateway has no Redis
    link = RedisLink(RedisAddress.parse("redis://nobody"))
    metrics.register(StoreMetrics(Sessions(MemoryStore(), ttl=1), link, StoreLatency()))
    for family in text_string_to_metric_families(text + metrics.render().decode()):
        for sample in family.samples:
            found[sample.name] |= sample.labels.keys()
    return found


async def test_every_metric_and_label_is_exposed(exposed: Exposed) -> None:
    wrong = {place: said for place, text in expressions().items() if (said := faults(text, exposed))}
    # reasons are known when there was one
    assert wrong == {
        "Why prompts were found as far as they were A": ["headwater_cache_prompts_total", "reason"]
    }


@pytest.mark.parametrize(
    ("expression", "found"),
    [
        ("rate(headwater_cache_prompt_token_total[5m])", ["headwater_cache_prompt_token_total"]),
        ("sum by (tenant) (headwater_pages_free)", ["tenant"]),
        ('headwater_cache_bytes{teir="disk"}', ["teir"]),
        ('sum by (tier) (headwater_cache_bytes{tier!="disk"})', []),
        ("histogram_quantile(0.5, sum by (le) (rate(headwater_time_to_first_token_seconds[5m])))",
         ["headwater_time_to_first_token_seconds", "le"]),
        ("time()", ["no metric"]),
        ("rate(headwater_cache_tenant_requests_total[5m])", ["headwater_cache_tenant_requests_total"]),
    ],
)  # fmt: skip
async def test_one_that_is_not_is_found(exposed: Exposed, expression: str, found: list[str]) -> None:
    assert faults(expression, exposed) == found


def test_every_expression_can_be_read() -> None:
    try:
        parser = importlib.import_module("promql_parser")
    except ImportError:
        if "CI" in os.environ:
            raise
        pytest.skip("promql-parser is not installed")
    for text in expressions().values():
        parser.parse(text.replace("$__rate_interval", "1m"))
    for text in ("sum by (rate(x[5m]))", "rate(x)", "histogram_quantile(sum(x))"):
        with pytest.raises(ValueError, match=r"\S"):
            parser.parse(text)


@pytest.mark.parametrize(
    "metric",
    [
        "headwater_cache_prompt_tokens_total",
        "headwater_cache_saved_seconds_total",
        "headwater_cache_prompts_total",
        "headwater_time_to_first_token_seconds_bucket",
        "headwater_request_time_per_output_token_seconds_bucket",
        "headwater_queued_requests",
        "headwater_grammar_compile_seconds_bucket",
        "headwater_cache_evicted_pages_total",
        "headwater_cache_broken_leases_total",
        "headwater_store_up",
    ],
)
def test_the_dashboard_shows_what_it_is_for(metric: str) -> None:
    shown = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", [])]
    assert any(metric in expression for expression in shown)


def test_panels_have_places_of_their_own_and_say_what_they_show() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
        assert panel["type"] == "row" or (panel["description"] and panel["targets"]), panel["title"]


def test_the_dashboard_finds_its_source_and_grafana_the_dashboard() -> None:
    (source,) = SOURCE["datasources"]
    wanted = {panel["datasource"]["uid"] for panel in DASHBOARD["panels"] if panel["type"] != "row"}
    wanted |= {t["datasource"]["uid"] for p in DASHBOARD["panels"] for t in p.get("targets", [])}
    assert wanted == {source["uid"]}
    assert source["url"] == "http://prometheus:9090"
    grafana = compose_file.read()["services"]["grafana"]
    (provider,) = BOARDS["providers"]
    mounted = dict(volume.split(":")[:2][::-1] for volume in grafana["volumes"])
    assert mounted[provider["options"]["path"]] == "./deploy/grafana/dashboards"
    assert mounted["/etc/grafana/provisioning"] == "./deploy/grafana/provisioning"
    home = Path(grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert home.parent == Path(provider["options"]["path"])
    assert (DEPLOY / "grafana/dashboards" / home.name).is_file()


def test_prometheus_scrapes_the_server_with_its_key_and_reads_the_rules() -> None:
    services = compose_file.read()["services"]
    prometheus = services["prometheus"]
    mounted = {config["target"]: config["source"] for config in prometheus["configs"]}
    files = {name: Path(config["file"]) for name, config in compose_file.read()["configs"].items()}
    assert f"--config.file={(config := '/etc/prometheus/prometheus.yml')}" in prometheus["command"]
    assert [config, *PROMETHEUS["rule_files"]] == list(mounted)
    assert [compose_file.ROOT / files[source] for source in mounted.values()] == [
        DEPLOY / "prometheus/prometheus.yml",
        DEPLOY / "prometheus/rules.yml",
    ]
    job = next(job for job in PROMETHEUS["scrape_configs"] if job["job_name"] == "headwater")
    (target,) = job["static_configs"][0]["targets"]
    host, port = target.split(":")
    for name in ("headwater", "headwater-gpu"):
        networks = services[name]["networks"]
        assert name == host or networks["metrics"]["aliases"] == [host]
        assert "metrics" in networks
        assert services[name]["ports"][0].endswith(f":{port}")
        assert (
            services[name]["environment"]["HEADWATER_API_KEY_FILE"]
            == (job["authorization"]["credentials_file"])
        )
    assert job["authorization"]["credentials_file"] == f"/run/secrets/{prometheus['secrets'][0]}"


def test_the_configuration_has_nothing_that_prometheus_does_not_know() -> None:
    """Prometheus refuses keys it does not know. These are the documented ones, as far as they are used here."""
    known = {"scrape_interval", "scrape_timeout", "evaluation_interval"}
    assert PROMETHEUS.keys() <= {"global", "rule_files", "scrape_configs"}
    assert PROMETHEUS["global"].keys() <= known
    of_a_job = {"job_name", "authorization", "sample_limit", "static_configs"}
    for job in PROMETHEUS["scrape_configs"]:
        assert job.keys() <= of_a_job
        assert job.get("authorization", {}).keys() <= {"credentials_file", "type"}
    for group in RULES["groups"]:
        assert group.keys() == {"name", "rules"}
        for rule in group["rules"]:
            assert rule.keys() <= {"alert", "expr", "for", "annotations", "labels"}
            assert re.fullmatch(r"\d+[smhd]", rule.get("for", "1m"))
            assert rule["annotations"].keys() == {"summary"}
