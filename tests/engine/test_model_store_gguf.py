"""Importing GGUF files: what comes out is the model that went in, and a bad file is refused in one line."""

from __future__ import annotations

import contextlib
import hashlib
import struct
from pathlib import Path

import gguf
import msgspec
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from engine.errors import ModelError
from engine.model_store import gguf_import
from engine.model_store.gguf_import import halves_from_pairs, import_gguf, imported_bytes, to_bf16
from engine.models.families import read_model_config
from engine.weights import Checkpoint
from tests.engine.tiny_gguf import F16, F32, PADDED_VOCAB, TOYS, VOCAB, gguf_tensors, toy_model, write_toy

IDS = torch.randint(0, len(VOCAB), (2, 24), generator=torch.Generator().manual_seed(1))


def imported(source: Path, target: Path) -> Path:
    target.mkdir()
    import_gguf(source, target, lambda _: None)
    return target


# -- the model -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [F32, F16], ids=["f32", "f16"])
@pytest.mark.parametrize("family", TOYS)
def test_an_imported_model_computes_the_same_logits(
    tmp_path: Path, family: str, kind: GGMLQuantizationType
) -> None:
    original = toy_model(TOYS[family])
    write_toy(tmp_path / "toy.gguf", TOYS[family], original, kind)
    directory = imported(tmp_path / "toy.gguf", tmp_path / "out")
    loaded = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    assert type(loaded) is type(original)
    with torch.no_grad():
        assert torch.allclose(loaded(IDS).logits, original(IDS).logits, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("family", [name for name in TOYS if "yarn" not in name])
def test_the_engine_reads_the_config_that_an_import_writes(tmp_path: Path, family: str) -> None:
    original = toy_model(TOYS[family])
    write_toy(tmp_path / "toy.gguf", TOYS[family], original)
    config = read_model_config(imported(tmp_path / "toy.gguf", tmp_path / "out") / "config.json")
    assert (config.layers, config.vocab_size) == (2, PADDED_VOCAB)
    assert config.rope.kind == original.config.rope_parameters["rope_type"]
    with Checkpoint(tmp_path / "out") as checkpoint:
        checkpoint.check({name: tuple(weight.shape) for name, weight in original.named_parameters()})


@pytest.mark.parametrize(
    "kind", [GGMLQuantizationType.Q8_0, GGMLQuantizationType.Q4_1], ids=lambda kind: kind.name
)
def test_quantized_tensors_are_what_the_library_dequantizes(
    tmp_path: Path, kind: GGMLQuantizationType
) -> None:
    toy = TOYS["qwen2 bias"]
    model = toy_model(toy)
    write_toy(tmp_path / "toy.gguf", toy, model, kind)
    weights = load_file(imported(tmp_path / "toy.gguf", tmp_path / "out") / "model.safetensors")
    sources = gguf_tensors(toy, model)
    for name, source in [
        ("model.embed_tokens.weight", "token_embd.weight"),
        ("model.layers.1.mlp.down_proj.weight", "blk.1.ffn_down.weight"),
        ("model.layers.0.self_attn.k_proj.weight", "blk.0.attn_k.weight"),
    ]:
        expected = torch.from_numpy(gguf.dequantize(gguf.quantize(sources[source], kind), kind))
        assert not torch.equal(expected, torch.from_numpy(sources[source])), (
            "the quantization changed nothing"
        )
        assert torch.equal(weights[name], expected.bfloat16()), name


def test_large_models_are_written_in_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy = TOYS["llama"]
    model = toy_model(toy)
    write_toy(tmp_path / "toy.gguf", toy, model)
    monkeypatch.setattr(gguf_import, "_SHARD_BYTES", 50_000)
    monkeypatch.setattr(
        gguf_import, "_PIECE_VALUES", 100
    )  # a row at a time, so that pieces do not fill tensors
    directory = imported(tmp_path / "toy.gguf", tmp_path / "out")
    index = msgspec.json.decode((directory / "model.safetensors.index.json").read_bytes())
    shards = sorted(set(index["weight_map"].values()))
    assert shards == [f"model-{i:05}-of-{len(shards):05}.safetensors" for i in range(1, len(shards) + 1)]
    assert len(shards) > 2
    for shard in shards:
        for name, weight in load_file(directory / shard).items():
            assert index["weight_map"][name] == shard
            assert torch.equal(weight.float(), model.state_dict()[name])
    assert index["metadata"]["total_size"] == imported_bytes(tmp_path / "toy.gguf")


def test_digests_and_progress_tell_what_was_written(tmp_path: Path) -> None:
    toy = TOYS["qwen3 norms"]
    write_toy(tmp_path / "toy.gguf", toy, toy_model(toy))
    (tmp_path / "out").mkdir()
    steps: list[int] = []
    files = import_gguf(tmp_path / "toy.gguf", tmp_path / "out", steps.append)
    assert sum(steps) == imported_bytes(tmp_path / "toy.gguf")
    assert {path.name for path in (tmp_path / "out").iterdir()} == files.keys()
    for name, file in files.items():
        data = (tmp_path / "out" / name).read_bytes()
        assert (hashlib.sha256(data).hexdigest(), len(data)) == (file.sha256, file.size)


def test_config_and_end_tokens(tmp_path: Path) -> None:
    toy = TOYS["llama3 rope"]
    write_toy(tmp_path / "toy.gguf", toy, toy_model(toy), metadata={"tokenizer.ggml.eot_token_id": 7})
    directory = imported(tmp_path / "toy.gguf", tmp_path / "out")
    config = msgspec.json.decode((directory / "config.json").read_bytes())
    assert config["vocab_size"] == PADDED_VOCAB
    assert config["rms_norm_eps"] == 1e-5
    assert config["rope_scaling"] == {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    generation = msgspec.json.decode((directory / "generation_config.json").read_bytes())
    assert generation["eos_token_id"] == [VOCAB.index("<|im_end|>"), 7]
    assert (directory / "chat_template.jinja").read_text().startswith("{% for m in messages %}")


@given(
    st.lists(
        st.floats(width=32, allow_nan=False, allow_infinity=False, max_value=2.0**127, min_value=-(2.0**127))
    )
)
def test_bfloat16_rounds_as_torch_does(values: list[float]) -> None:
    array = np.array(values, np.float32)
    expected = torch.from_numpy(array).bfloat16().view(torch.uint16)
    assert torch.equal(torch.from_numpy(to_bf16(array)), expected)


def test_pairs_become_halves() -> None:
    assert halves_from_pairs(12, 2).tolist() == [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]


# -- files that are refused ----------------------------------------------------------------------------------------------

REFUSED_METADATA = {
    "architecture": ({"general.architecture": "mamba"}, "architecture 'mamba' is not supported"),
    "part of a split": ({"split.count": 3}, "one part of a split model"),
    "no layer count": ({"llama.block_count": None}, "llama.block_count is None"),
    "more layers than tensors": ({"llama.block_count": 2**31 - 1}, "layers"),
    "wrong width": ({"llama.embedding_length": 128}, "not [288, 128] as its metadata says"),
    "no heads": ({"llama.attention.head_count": 0}, "not a count"),
    "uneven heads": ({"llama.attention.head_count_kv": 3}, "cannot share"),
    "partial rotary": ({"llama.rope.dimension_count": 8}, "8 of 16 dimensions"),
    "rope scaling": ({"llama.rope.scaling.type": "longrope"}, "'longrope' is not supported"),
    "no epsilon": ({"llama.attention.layer_norm_rms_epsilon": None}, "not a positive number"),
    "eos outside": ({"tokenizer.ggml.eos_token_id": 5000}, "outside the vocabulary"),
    "tokenizer": ({"tokenizer.ggml.model": "bert"}, "tokenizer 'bert' is not supported"),
    "no split rule": ({"tokenizer.ggml.pre": None}, "text split rule None"),
    "split rule": ({"tokenizer.ggml.pre": "unheard-of"}, "text split rule 'unheard-of'"),
    "no tokens": ({"tokenizer.ggml.tokens": None}, "no tokenizer.ggml.tokens"),
    "too many tokens": ({"tokenizer.ggml.tokens": [str(i) for i in range(300)]}, "embeds only 288"),
    "no token types": ({"tokenizer.ggml.token_type": None}, "no type for each"),
    "foreign merge": ({"tokenizer.ggml.merges": ["the cat"]}, "merge 'the cat'"),
    "bos without a token": ({"tokenizer.ggml.add_bos_token": True}, "names none"),
}


@pytest.mark.parametrize("case", REFUSED_METADATA)
def test_unsupported_metadata_is_refused(tmp_path: Path, case: str) -> None:
    metadata, message = REFUSED_METADATA[case]
    write_toy(tmp_path / "toy.gguf", TOYS["llama"], toy_model(TOYS["llama"]), metadata=metadata)
    assert message in refusal(tmp_path)


def test_unsupported_tensors_are_refused(tmp_path: Path) -> None:
    toy, model = TOYS["llama"], toy_model(TOYS["llama"])
    nan = np.full((64,), np.nan, np.float32)
    for name, changes, message in [
        ("missing", {"without": ("blk.1.ffn_up.weight",)}, "has no tensor 'blk.1.ffn_up.weight'"),
        ("no embedding", {"without": ("token_embd.weight",)}, "has no tensor 'token_embd.weight'"),
        ("experts", {"replace": {"blk.0.ffn_gate_inp.weight": nan}}, "is not part of a llama model"),
        (
            "not finite",
            {"replace": {"blk.0.attn_norm.weight": nan}},
            "'blk.0.attn_norm.weight' holds values that are not",
        ),
        ("rope", {"replace": {"rope_freqs.weight": np.arange(8, dtype=np.float32)}}, "not those of Llama 3"),
        ("zero rope", {"replace": {"rope_freqs.weight": np.zeros(8, np.float32)}}, "not those of Llama 3"),
    ]:
        directory = tmp_path / name
        directory.mkdir()
        write_toy(directory / "toy.gguf", toy, model, **changes)
        assert message in refusal(directory)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"GGU", "truncated"),
        (b"PK\3\4" + bytes(100), "not a GGUF file"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "byte order"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**62, 0), "truncated"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**62), "truncated"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**62) + bytes(16), "truncated"),
        (b"GGUF" + struct.pack("<IQQQcIIQ", 3, 0, 1, 1, b"k", 9, 8, 2**61) + bytes(16), "truncated"),
        (b"GGUF" + struct.pack("<IQQQcIIQ", 3, 0, 1, 1, b"k", 9, 9, 1) + bytes(16), "unknown type 9"),
        (b"GGUF" + struct.pack("<IQQQcIQ", 3, 0, 1, 1, b"k", 8, 2) + b"\xff\xff", "not UTF-8"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 0), "has no general.architecture"),
        (
            b"GGUF" + struct.pack("<IQQQcI4QIQ", 3, 1, 0, 1, b"t", 4, *[2**40] * 4, 0, 0),
            "lies beyond its end",
        ),
        (b"GGUF" + struct.pack("<IQQQcIQIQ", 3, 1, 0, 1, b"t", 1, 1, 0, 2**63), "lies beyond its end"),
        (b"GGUF" + struct.pack("<IQQQcIQIQ", 3, 1, 0, 1, b"t", 1, 33, 8, 0), "cannot have the shape [33]"),
        (b"GGUF" + struct.pack("<IQQQcIQIQ", 3, 1, 0, 1, b"t", 1, 0, 0, 0), "cannot have the shape [0]"),
        (b"GGUF" + struct.pack("<IQQQcIQIQ", 3, 1, 0, 1, b"t", 1, 1, 999, 0), "unknown type 999"),
        (b"GGUF" + struct.pack("<IQQQcI", 3, 1, 0, 1, b"t", 2**31) + bytes(64), "dimensions"),
    ],
)
def test_damaged_headers_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "toy.gguf").write_bytes(content)
    assert message in refusal(tmp_path)


@pytest.fixture(scope="module")
def tiny_file(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "toy.gguf"
    write_toy(path, TOYS["llama3 rope"], toy_model(TOYS["llama3 rope"]), GGMLQuantizationType.Q8_0)
    return path.read_bytes()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_truncated_file_is_refused(tmp_path: Path, tiny_file: bytes, data: st.DataObject) -> None:
    size = data.draw(st.integers(0, len(tiny_file) - 32))
    (tmp_path / "toy.gguf").write_bytes(tiny_file[:size])
    refusal(tmp_path)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_damage_gets_past_as_anything_but_a_refusal(
    tmp_path: Path, tiny_file: bytes, data: st.DataObject
) -> None:
    """Bytes overwritten in the header (the first 12 KB hold it): the import works, or says no by name."""
    damaged = bytearray(tiny_file)
    at = data.draw(st.integers(0, 12_000))
    patch = data.draw(st.binary(min_size=1, max_size=8))
    damaged[at : at + len(patch)] = patch
    (tmp_path / "toy.gguf").write_bytes(damaged)
    target = tmp_path / "out"
    target.mkdir(exist_ok=True)
    with contextlib.suppress(ModelError):
        import_gguf(tmp_path / "toy.gguf", target, lambda _: None)


def refusal(directory: Path) -> str:
    """The message that importing `toy.gguf` ends with: one line that names the file."""
    target = directory / "out"
    target.mkdir(exist_ok=True)
    with pytest.raises(ModelError) as error:
        import_gguf(directory / "toy.gguf", target, lambda _: None)
    message = str(error.value)
    assert "toy.gguf" in message
    assert "\n" not in message
    return message
