from engine.poison import REFUSED_FOR, PoisonGuard
from engine.request import GenerationRequest, SamplingParams
from grammar.spec import Grammar, Regex


def request(
    token: int,
    *,
    request_id: str = "r",
    seed: int = 0,
    max_tokens: int = 4,
    grammar: Grammar | None = None,
) -> GenerationRequest:
    return GenerationRequest(
        request_id=request_id,
        prompt=[token],
        sampling=SamplingParams(max_tokens=max_tokens, seed=seed),
        grammar=grammar,
    )


def test_refused_after_two_crashes_in_a_row_whatever_its_id_and_seed() -> None:
    guard = PoisonGuard()
    guard.crashed([request(1, request_id="a", seed=1), request(2)], 0)
    assert not guard.refuses(request(1), 0)
    guard.crashed([request(1, request_id="b", seed=2), request(3)], 1)
    assert guard.refuses(request(1, request_id="c", seed=3), 2)
    for other in (request(2), request(3), request(1, max_tokens=5), request(1, grammar=Regex("a"))):
        assert not guard.refuses(other, 2)


def test_not_refused_for_ever() -> None:
    guard = PoisonGuard()
    guard.crashed([request(1)], 0)
    guard.crashed([request(1)], 0)
    assert guard.refuses(request(1), REFUSED_FOR - 1)
    assert not guard.refuses(request(1), REFUSED_FOR)


def test_a_crash_between_without_it_clears_it() -> None:
    guard = PoisonGuard()
    for batch in ([request(1)], [request(2)], [request(1)]):
        guard.crashed(batch, 0)
    assert not guard.refuses(request(1), 0)


def test_finishing_clears_it() -> None:
    guard = PoisonGuard()
    guard.crashed([request(1)], 0)
    guard.finished(request(1, seed=9))
    guard.crashed([request(1)], 0)
    assert not guard.refuses(request(1), 0)
