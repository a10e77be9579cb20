import pytest

from engine.backlog import LONGEST_RETRY, Backlog, QueueLimits
from engine.errors import QueueFull
from engine.request import GenerationRequest, SamplingParams


def request(request_id: str, tokens: int = 10, tenant: str = "") -> GenerationRequest:
    return GenerationRequest(
        request_id=request_id, prompt=[0] * tokens, sampling=SamplingParams(max_tokens=1), tenant=tenant
    )


def filled(waiting: Backlog, *requests: GenerationRequest) -> Backlog:
    for one in requests:
        waiting.check_room(one, 0)
        waiting.add(one)
    return waiting


@pytest.mark.parametrize(
    ("limits", "waiting", "new", "message", "tenant"),
    [
        (QueueLimits(requests=2), ["a", "b"], request("c"), "2 requests are waiting", False),
        (QueueLimits(tokens=25), ["a", "b"], request("c"), "20 prompt tokens", False),
        (QueueLimits(tenant_requests=1), ["a"], request("c"), "1 requests of this key", True),
        (QueueLimits(tenant_requests=1), ["a"], request("c", tenant="other"), None, False),
        (QueueLimits(tokens=25), [], request("c", 26), None, False),
        (QueueLimits(requests=3, tokens=30), ["a", "b"], request("c"), None, False),
    ],
)
def test_bounds(
    limits: QueueLimits, waiting: list[str], new: GenerationRequest, message: str | None, tenant: bool
) -> None:
    queue = filled(Backlog(limits), *(request(name) for name in waiting))
    if message is None:
        queue.check_room(new, 0)
    else:
        with pytest.raises(QueueFull, match=message) as raised:
            queue.check_room(new, 0)
        assert raised.value.tenant is tenant
        assert raised.value.retry_after >= 1


def test_what_starts_or_leaves_makes_room() -> None:
    queue = filled(Backlog(QueueLimits(requests=2)), request("a", tenant="t"), request("b", tenant="t"))
    queue.start("a", 1)
    assert queue.remove("b")
    assert not queue.remove("b")
    queue.start("never seen", 1)
    assert (len(queue), queue.tokens, "a" in queue) == (0, 0, False)
    filled(queue, request("c"))
    queue.clear()
    assert (len(queue), queue.tokens) == (0, 0)


def test_retry_after_follows_the_pace_of_starts() -> None:
    queue = Backlog(QueueLimits())
    filled(queue, *(request(str(i)) for i in range(40)))
    for i in range(20):
        queue.start(str(i), float(i))
    # 20 starts in 20 seconds, 20 still waiting
    assert queue.retry_after(20.0) == pytest.approx(20.0)
    assert queue.retry_after(20_000.0) == LONGEST_RETRY
