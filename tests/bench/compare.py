"""The same workloads against several running servers, one after the other, in one sitting: `python -m tests.bench.compare`.

    python -m tests.bench.compare headwater=http://127.0.0.1:8000/v1 vllm=http://127.0.0.1:8100/v1

Servers that are not being measured must be idle, and on a small machine stopped: an idle peer may still spin. Pass
`--only NAME` to measure one server at a time and keep the lines. `tpot` is the median time per output token, `ttft` the
median time to the first. Answers are greedy and run to their full length (`ignore_eos`). Where a prefix is warm, the first requests
still find it cold; the median is of the others.
"""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

from gateway.bench import LoadOptions, LoadReport, run_load

GREEDY = {"temperature": 0, "ignore_eos": True}

WORKLOADS: dict[str, dict[str, Any]] = {
    "1 user": {"concurrency": 1, "requests": 4, "prompt_words": 100, "out_tokens": 64},
    "8 users": {"concurrency": 8, "requests": 24, "prompt_words": 100, "out_tokens": 64},
    "32 users": {"concurrency": 32, "requests": 64, "prompt_words": 100, "out_tokens": 64},
    "shared prefix, cold": {"concurrency": 8, "requests": 24, "prompt_words": 20, "shared_words": 600, "out_tokens": 32},
    "shared prefix, warm": {"concurrency": 8, "requests": 24, "prompt_words": 20, "shared_words": 600, "out_tokens": 32},
    "2,000-token prefix, cold, 1 user": {"concurrency": 1, "requests": 3, "prompt_words": 1930, "out_tokens": 8},
    "2,000-token prefix, warm, 1 user": {"concurrency": 1, "requests": 12, "prompt_words": 10, "shared_words": 1910, "out_tokens": 8},
    "2,000-token prefix, warm, 8 users": {"concurrency": 8, "requests": 48, "prompt_words": 10, "shared_words": 1910, "out_tokens": 8},
    "long prompt, cold": {"concurrency": 1, "requests": 3, "prompt_words": 1500, "out_tokens": 8},
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("servers", nargs="+", metavar="NAME=URL")
    parser.add_argument("--only", help="measure this server alone")
    parser.add_argument("--workload", action="append", choices=list(WORKLOADS), help="default: all")
    arguments = parser.parse_args()
    servers = dict(server.split("=", 1) for server in arguments.servers)
    print("| workload | server | out tok/s | ttft ms | tpot ms | cached of prompt tokens | failed |")
    print("|---|---|---|---|---|---|---|")
    for seed, name in enumerate(arguments.workload or WORKLOADS):
        for server, url in servers.items():
            if arguments.only in (None, server):
                # Prompts of one workload differ from those of the others, or they would find each other's prefixes.
                options = LoadOptions(url, seed=seed, extra=GREEDY, **WORKLOADS[name])
                print(_line(name, server, asyncio.run(run_load(options))), flush=True)


def _line(workload: str, server: str, report: LoadReport) -> str:
    ttft, tpot = (f"{d.p50:.1f}" if d else "-" for d in (report.ttft, report.tpot))
    cached = f"{report.cached_tokens} of {report.prompt_tokens}"
    cells = (workload, server, f"{report.output_rate:.1f}", ttft, tpot, cached, str(report.failed))
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    main()
