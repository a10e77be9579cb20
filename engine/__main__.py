"""The engine process. Started by `child`, never by hand: what to do comes on standard input.

It ends when it is told to, when its parent ends, however that happens, and when its standard input closes.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path

import msgspec

from .assemble import assemble
from .channel import Channel
from .child import LENGTH, ChildSpec
from .config import EngineConfig
from .core import Engine
from .errors import StartError
from .heartbeat import Progress, start_heartbeat
from .loop import EngineLoop
from .request import EngineInfo, StartFailed, ToClient, ToEngine

log = logging.getLogger("engine")

PR_SET_PDEATHSIG = 1  # prctl(2)
_STDIN = 0
_FAILURE_READ_WITHIN = 5.0


def main() -> int:
    spec = msgspec.msgpack.decode(_read(LENGTH.unpack(_read(LENGTH.size))[0]), type=ChildSpec)
    _die_with(spec.parent_pid)
    # A Ctrl-C goes to the whole group and a service manager's SIGTERM often does: the parent drains, then ends us.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    logging.basicConfig(
        level=logging.INFO,
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s[%(process)d] %(message)s",
    )
    progress = Progress()
    start_heartbeat(spec.heartbeat_fd, progress)
    channel = Channel.connect(Path(spec.socket))
    engine = _start(spec.config, channel)
    if engine is None:
        time.sleep(_FAILURE_READ_WITHIN)  # the parent ends us as soon as it has read why
        return 1
    EngineLoop(engine, channel, progress).run()
    engine.close()
    channel.close()
    return 0


def _read(count: int) -> bytes:
    # Not through sys.stdin: its lock, held by a waiting thread, would break the interpreter's own end.
    data = b""
    while len(data) < count:
        more = os.read(_STDIN, count - len(data))
        if not more:
            sys.exit("standard input ended early; the engine is started by its gateway")
        data += more
    return data


def _die_with(parent_pid: int) -> None:
    """Two ways, for each has a gap: the signal also ends a process that is stopped or stuck, but Linux alone has it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # it died before we asked
        os._exit(1)
    threading.Thread(target=_wait_for_lifeline, name="lifeline", daemon=True).start()


def _wait_for_lifeline() -> None:
    while os.read(_STDIN, 1):
        pass
    os._exit(0)


def _start(config: EngineConfig, channel: Channel[ToClient, ToEngine]) -> Engine | None:
    """A loaded engine, announced; or None, and the client was told why not."""
    began = time.monotonic()
    try:
        engine = assemble(config)
    except StartError as error:
        channel.send(StartFailed(str(error), permanent=True))
        return None
    except Exception as error:
        log.exception("the engine could not start")
        channel.send(StartFailed(f"the engine could not start: {error!r}", permanent=False))
        return None
    channel.send(_info(engine, config, time.monotonic() - began))
    engine.prewarm()
    return engine


def _info(engine: Engine, config: EngineConfig, load_seconds: float) -> EngineInfo:
    info = engine.info
    return EngineInfo(
        model_digest=info.model_digest,
        vocab_size=info.vocab_size,
        max_model_len=engine.max_length,
        max_running=config.max_running,
        max_step_tokens=config.max_step_tokens,
        page_size=info.page_size,
        pages=info.pages,
        page_bytes=info.page_bytes,
        weight_bytes=info.weight_bytes,
        device=info.device,
        dtype=info.dtype,
        attention=info.attention,
        load_seconds=load_seconds,
        pid=os.getpid(),
        deterministic=info.deterministic,
        host_bytes=engine.budgets["host"],
        disk_bytes=engine.budgets["disk"],
    )


if __name__ == "__main__":
    sys.exit(main())
