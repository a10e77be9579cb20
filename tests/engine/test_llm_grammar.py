"""Grammars through the library door, compiled and followed by the real engines: no answer that they do not accept."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jsonschema_rs
import numpy as np
import pytest
from msgspec import structs
from tokenizers import Tokenizer

from cache.lease import Tier
from engine.config import EngineConfig, HashModelConfig
from engine.errors import BadRequest, GrammarRefused
from engine.hash_model import IM_END, SPECIALS, reference
from engine.llm import LLM, Completion
from engine.load_costs import always_dear
from engine.model_store.store import LocalModel
from engine.request import SamplingParams
from grammar.backends.route import make
from grammar.matcher import Matcher
from grammar.spec import Choice, Grammar, JsonSchema, Regex
from grammar.vocabulary import Vocabulary, byte_vocabulary

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 6}, "maxItems": 2},
        "address": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 10}, "abroad": {"type": "boolean"}},
            "required": ["city", "abroad"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "age", "tags", "address"],
    "additionalProperties": False,
}
PERSON = JsonSchema(json.dumps(SCHEMA))
WORD = Regex(r"(ab|cd){3,9}x")


# ---- the hash model: every token is known ----------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[True, False], ids=["forced", "sampled"])
def hashes(request: pytest.FixtureRequest) -> Iterator[LLM]:
    config = EngineConfig(
        hash_model=HashModelConfig(),
        pages=64,
        page_size=4,
        max_running=6,
        max_step_tokens=30,
        forced_tokens=request.param,
    )
    with LLM(config, encode=lambda text: list(text.encode())) as llm:
        yield llm


def allowed_by(grammar: Grammar, vocabulary: Vocabulary, tokens: list[int]) -> int:
    """A bit for each token that may follow, from a matcher that has seen nothing else."""
    matcher = Matcher(make("llguidance", vocabulary).compile(grammar), (IM_END,), vocabulary)
    for token in tokens:
        matcher.accept(token)
    row = np.zeros(vocabulary.words, dtype=np.int32)
    matcher.fill(row)
    return int.from_bytes(row.data, "little")


@pytest.mark.parametrize("forced", [True, False])
def test_answers_are_the_references_whatever_shares_a_step(forced: bool) -> None:
    """Two grammars and free rows, several choices, preemption: nobody's mask is another's."""
    config = EngineConfig(
        hash_model=HashModelConfig(), pages=36, page_size=4, max_step_tokens=64, forced_tokens=forced
    )
    vocabulary = byte_vocabulary(259, SPECIALS)
    grammars: list[Grammar | None] = [None, PERSON, WORD] * 3
    samplings = [
        SamplingParams(max_tokens=40, seed=i, temperature=float(i % 2), stop_token_ids=(IM_END,))
        for i in range(len(grammars))
    ]
    with LLM(config, encode=lambda text: list(text.encode())) as llm:
        completions = llm.generate(
            [f"prompt {i % 4}" for i in range(len(grammars))], samplings, n=2, grammar=grammars
        )
        counters = llm.counters
        assert not llm._engine._matchers._grammars
        assert not llm._engine._matchers._places
    for completion, grammar, sampling in zip(completions, grammars, samplings, strict=True):
        assert completion.error is None
        for index, answer in enumerate(completion.answers):
            expected = reference(
                completion.request.prompt,
                sampling,
                index,
                allowed=None
                if grammar is None
                else lambda tokens, g=grammar: allowed_by(g, vocabulary, tokens),
            )
            assert list(answer.tokens) == expected
    assert counters.preemptions > 0
    assert (counters.forced_tokens > 0) == forced


@pytest.mark.parametrize("tier", ["device", "host"])
def test_an_answer_under_a_grammar_is_the_same_cold_and_warm(tier: Tier) -> None:
    """Its grammar begins where the answer does, whatever of the prompt was found, and whoever wrote that under which one."""
    config = EngineConfig(hash_model=HashModelConfig(), pages=200, page_size=4, max_step_tokens=64)
    sampling = SamplingParams(max_tokens=40, seed=3, temperature=1.0, stop_token_ids=(IM_END,))
    with (
        LLM(structs.replace(config, prefix_cache=False)) as cold,
        LLM(structs.replace(config, host_bytes=1 << 20)) as warm,
    ):
        prompts = [list(b"a question that is asked again and again")]
        answer = warm.generate(prompts, sampling, grammar=PERSON)[0].answers[0]
        prompts += [prompts[0] + list(answer.tokens) + list(b" and then?"), prompts[0][:-3]]
        for prompt in prompts:
            for grammar in (PERSON, WORD, None):
                before = getattr(warm.counters.cache, tier).hit_tokens
                if tier == "host":
                    warm._engine._moves._tiers.costs._recompute = always_dear
                    warm._engine._scheduler.cache.evict(200)
                    assert warm._engine.plan() is None, "what went is saved"
                (found,) = warm.generate([prompt], sampling, grammar=grammar)
                (alone,) = cold.generate([prompt], sampling, grammar=grammar)
                assert found.answers == alone.answers
                assert getattr(warm.counters.cache, tier).hit_tokens - before >= 32


def test_a_whole_answer_is_a_value_of_its_schema(hashes: LLM) -> None:
    sampling = [SamplingParams(max_tokens=400, seed=i, stop_token_ids=(IM_END,)) for i in range(8)]
    for completion in hashes.generate(["x"] * 8, sampling, grammar=PERSON):
        (answer,) = completion.answers
        assert answer.finish == "stop"
        assert answer.tokens[-1] == IM_END
        text = bytes(answer.tokens[:-1]).decode()
        assert jsonschema_rs.is_valid(SCHEMA, json.loads(text))


def test_a_stream_under_a_grammar_is_the_whole_answer(hashes: LLM) -> None:
    sampling = SamplingParams(max_tokens=100, seed=5, stop_token_ids=(IM_END,))
    (whole,) = hashes.generate(["x"], sampling, grammar=PERSON)
    deltas = list(hashes.stream("x", sampling, grammar=PERSON))
    assert tuple(token for delta in deltas for token in delta.tokens) == whole.answers[0].tokens
    assert [delta.finish for delta in deltas[:-1]] == [None] * (len(deltas) - 1)


def test_a_choice_is_one_of_them_and_takes_a_step_for_what_can_differ(hashes: LLM) -> None:
    before = hashes.counters
    options = ("first answer", "second answer")
    (completion,) = hashes.generate(
        ["x"], SamplingParams(max_tokens=60, stop_token_ids=(IM_END,)), grammar=Choice(options)
    )
    (answer,) = completion.answers
    assert bytes(answer.tokens[:-1]).decode() in options
    if hashes._engine._matchers.forces:
        assert hashes.counters.steps - before.steps == 1


def test_a_grammar_that_is_none_fails_its_request_alone(hashes: LLM) -> None:
    sampling = SamplingParams(max_tokens=5, stop_token_ids=(IM_END,))
    bad, good = hashes.generate(["x", "y"], sampling, grammar=[Regex("("), None])
    assert isinstance(bad.error, GrammarRefused)
    assert not bad.error.too_complex
    assert list(good.answers[0].tokens) == reference(list(b"y"), sampling)
    with pytest.raises(GrammarRefused):
        list(hashes.stream("x", sampling, grammar=Regex("(")))


def test_what_the_caller_got_wrong(hashes: LLM) -> None:
    with pytest.raises(ValueError, match="2 prompts, but 1 grammars"):
        hashes.generate(["x", "y"], SamplingParams(max_tokens=1, stop_token_ids=(1,)), grammar=[PERSON])
    with pytest.raises(BadRequest, match="stop token"):
        hashes.generate(["x"], SamplingParams(max_tokens=1), grammar=PERSON)
    with pytest.raises(BadRequest, match="min_tokens"):
        hashes.stream("x", SamplingParams(max_tokens=5, min_tokens=1, stop_token_ids=(1,)), grammar=PERSON)


def test_without_grammars_no_constraint_engine_is_loaded() -> None:
    script = """
import sys
from engine.config import EngineConfig, HashModelConfig
from engine.llm import LLM
from engine.request import SamplingParams
with LLM(EngineConfig(hash_model=HashModelConfig())) as llm:
    assert llm.generate([[1]], SamplingParams(max_tokens=2))[0].answers[0].tokens
assert not {"llguidance", "xgrammar", "outlines_core", "torch"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


# ---- the demo model: every answer is valid ---------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[True, False], ids=["forced", "sampled"])
def demo(request: pytest.FixtureRequest, demo_model: LocalModel) -> Iterator[LLM]:
    config = EngineConfig(
        model_dir=str(demo_model.path),
        kv_bytes=2**28,
        max_model_len=1024,
        max_running=20,
        forced_tokens=request.param,
    )
    with LLM(config) as llm:
        yield llm


@pytest.mark.demo_model
@pytest.mark.timeout(300)
def test_the_demo_model_keeps_a_schema_at_any_seed_and_temperature(demo: LLM, demo_model: LocalModel) -> None:
    tokenizer = Tokenizer.from_file(str(Path(demo_model.path) / "tokenizer.json"))
    prompt = tokenizer.encode(
        "<|im_start|>user\nDescribe a person as JSON.<|im_end|>\n<|im_start|>assistant\n"
    ).ids
    samplings = [
        SamplingParams(
            max_tokens=300, seed=seed, temperature=(0.0, 0.7, 1.0, 2.0)[seed % 4], stop_token_ids=(2,)
        )
        for seed in range(20)
    ]
    whole = demo.generate([prompt] * 20, samplings, grammar=PERSON)
    for completion in whole:
        check_person(completion, tokenizer)
    for seed in (0, 3):
        tokens = [
            token for delta in demo.stream(prompt, samplings[seed], grammar=PERSON) for token in delta.tokens
        ]
        assert check_person_text(tokenizer.decode(tokens))
    assert demo.counters.grammars.failed_rows == 0


def check_person(completion: Completion, tokenizer: Tokenizer) -> None:
    assert completion.error is None
    (answer,) = completion.answers
    assert answer.finish == "stop"
    assert check_person_text(tokenizer.decode(list(answer.tokens)))


def check_person_text(text: str) -> bool:
    value = json.loads(text)
    assert list(value) == list(SCHEMA["properties"])
    return jsonschema_rs.is_valid(SCHEMA, value)
