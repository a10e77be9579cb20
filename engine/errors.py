"""Everything the engine raises on purpose.

EngineError
├── BadRequest          the request can never run here: the client is told why
├── QueueFull           too much is waiting: try again after `retry_after` seconds
├── RequestFailure      the request was accepted and then failed; others did not
│   ├── GrammarRefused  its grammar is none, or asks too much: the client's mistake, found when it was compiled
│   ├── PinsExhausted   its tenant may pin no more of the cache
│   ├── Unavailable     something it needs cannot be had now: the same request may do a little later
│   ├── EngineDied      the engine process ended while the request was in flight
│   └── DeadlineExceeded
├── EngineUnavailable   no engine to take it now: starting, restarting or draining
├── StartError          the engine cannot start as configured
│   └── ModelError      the model is missing, damaged or not supported
└── ChannelError        a frame that is not one of ours
"""

from __future__ import annotations


class EngineError(Exception):
    """Root of the tree. `str(error)` is one line that is safe to show a client."""


class BadRequest(EngineError):
    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class QueueFull(EngineError):
    """`tenant`: this tenant's own share is full, others may still submit."""

    def __init__(self, message: str, *, retry_after: float, tenant: bool = False) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.tenant = tenant


class RequestFailure(EngineError):
    pass


class GrammarRefused(RequestFailure):
    """`too_complex`: it may be right, but compiling or following it costs more than the limits allow."""

    def __init__(self, message: str, *, too_complex: bool) -> None:
        super().__init__(message)
        self.too_complex = too_complex


class PinsExhausted(RequestFailure):
    pass


class Unavailable(RequestFailure):
    pass


class EngineDied(RequestFailure):
    pass


class DeadlineExceeded(RequestFailure):
    pass


class EngineUnavailable(EngineError):
    def __init__(self, message: str, *, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class StartError(EngineError):
    pass


class ModelError(StartError):
    pass


class ChannelError(EngineError):
    pass
