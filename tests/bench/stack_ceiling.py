"""How many tokens a second the stack itself can stream, and what one costs: everything but the model.

usage: python -m tests.bench.stack_ceiling [--streams 64] [--tokens 400] [--rounds 3] [-- SERVE_FLAGS]

Starts `headwater serve hash`, whose model costs next to nothing, and reads many streams at once from this process. Server
and client share the cores, as they do for a user on one machine; the client's own cost is stated so that it can be
thought away.
"""

from __future__ import annotations

import argparse
import time

import uvloop

from gateway.bench import LoadOptions, run_load

from .served import Served, serve


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("serve_flags", nargs="*", help="flags for `headwater serve`, after --")
    options = parser.parse_args()
    with serve("hash", *options.serve_flags) as server:
        print(f"ready after {server.ready_after:.1f} s; {options.streams} streams of {options.tokens} tokens")
        for number in range(options.rounds):
            print(measure(server, options.streams, options.tokens, seed=number))


def measure(server: Served, streams: int, tokens: int, *, seed: int) -> str:
    """One round: every stream at once, from the first byte sent to the last read."""
    load = LoadOptions(
        url=server.url, concurrency=streams, requests=streams, out_tokens=tokens, prompt_words=20, seed=seed
    )
    server_before, client_before = server.cpu_seconds(), time.process_time()
    report = uvloop.run(run_load(load))
    cpu = {"client": time.process_time() - client_before}
    cpu |= {name: after - server_before[name] for name, after in server.cpu_seconds().items()}
    if report.errors or report.output_tokens != streams * tokens:
        return f"FAILED: {report.output_tokens} of {streams * tokens} tokens, {dict(report.errors)}"
    costs = ", ".join(
        f"{name} {1e6 * cpu[name] / report.output_tokens:.0f}" for name in ("gateway", "engine", "client")
    )
    assert report.gap is not None
    return (
        f"{report.output_rate:,.0f} tokens/s streamed; CPU µs a token: {costs}; "
        f"{(report.gap.count + streams) / report.output_tokens:.2f} events a token, gap p99 {report.gap.p99:.1f} ms"
    )


if __name__ == "__main__":
    main()
