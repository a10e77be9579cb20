"""Checkpoints: what must be there, what may not be, and what a damaged one says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.errors import ModelError
from engine.models.families import read_model_config
from engine.models.parameters import DecoderParameters, load_parameters
from engine.weights import Checkpoint
from tests.toy_models import build_toy_model

NORM = "model.layers.1.input_layernorm.weight"


def load(directory: Path) -> DecoderParameters:
    config = read_model_config(directory / "config.json")
    with Checkpoint(directory) as checkpoint:
        return load_parameters(config, checkpoint, dtype=torch.float32, device=torch.device("cpu"))


def change(directory: Path, edit: Callable[[dict[str, Tensor]], object]) -> None:
    tensors = load_file(directory / "model.safetensors")
    edit(tensors)
    save_file(tensors, directory / "model.safetensors")


def test_shards_hold_the_same_as_one_file(tmp_path: Path) -> None:
    build_toy_model(tmp_path / "one")
    build_toy_model(tmp_path / "many", shard_size="60KB")
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 2
    one, many = load(tmp_path / "one"), load(tmp_path / "many")
    assert torch.equal(one.head, many.head)
    assert torch.equal(one.layers[1].gate_up, many.layers[1].gate_up)


def test_merged_projections_lie_in_order(tmp_path: Path) -> None:
    build_toy_model(tmp_path)
    stored, layer = load_file(tmp_path / "model.safetensors"), load(tmp_path).layers[1]
    at = "model.layers.1."
    parts = [stored[f"{at}self_attn.{which}_proj.weight"] for which in "qkv"]
    assert torch.equal(layer.qkv, torch.cat(parts))
    assert torch.equal(
        layer.gate_up, torch.cat([stored[f"{at}mlp.{which}_proj.weight"] for which in ("gate", "up")])
    )


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda t: t.pop(NORM), rf"lacks {NORM}"),
        (lambda t: t.update(extra=torch.zeros(2)), "no place for: extra"),
        (
            lambda t: t.update({NORM: torch.ones(65)}),
            rf"{NORM} has the shape \[65\], but config.json implies \[64\]",
        ),
        (lambda t: t.update({NORM: torch.ones(64, dtype=torch.int32)}), rf"{NORM} is stored as I32"),
        (lambda t: t[NORM].fill_(torch.nan), rf"{NORM} holds values that are not finite"),
        (lambda t: t[NORM][5:6].fill_(torch.inf), rf"{NORM} holds values that are not finite"),
        (lambda t: t.clear(), r"lacks lm_head\.weight, .* and \d+ more"),
    ],
)
def test_what_is_wrong_is_named(
    tmp_path: Path, edit: Callable[[dict[str, Tensor]], object], message: str
) -> None:
    build_toy_model(tmp_path)
    change(tmp_path, edit)
    with pytest.raises(ModelError, match=message):
        load(tmp_path)


def test_buffers_of_old_checkpoints_are_passed_over(tmp_path: Path) -> None:
    build_toy_model(tmp_path)
    change(tmp_path, lambda t: t.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(8)}))
    load(tmp_path)


def test_a_tied_model_may_store_its_head_again(tmp_path: Path) -> None:
    build_toy_model(tmp_path, "llama-tied")
    change(tmp_path, lambda t: t.update({"lm_head.weight": torch.zeros(96, 64)}))
    parameters = load(tmp_path)
    assert parameters.head is parameters.embedding


def test_values_that_overflow_the_type_they_run_in_are_refused(tmp_path: Path) -> None:
    build_toy_model(tmp_path)
    change(tmp_path, lambda t: t[NORM].fill_(torch.finfo(torch.float32).max))
    config = read_model_config(tmp_path / "config.json")
    with Checkpoint(tmp_path) as checkpoint, pytest.raises(ModelError, match="not finite"):
        load_parameters(config, checkpoint, dtype=torch.bfloat16, device=torch.device("cpu"))


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ("{", "not a usable index"),
        ('{"weight_map": 3}', "not a usable index"),
        ('{"weight_map": {"a": "../other.safetensors"}}', "not a safetensors file beside it"),
        ('{"weight_map": {"a": "model.bin"}}', "not a safetensors file beside it"),
        ('{"weight_map": {"a": "gone.safetensors"}}', "lacks gone.safetensors"),
        ('{"weight_map": {"a": "' + "x" * 300 + '.safetensors"}}', "lacks x+.safetensors"),
    ],
)
def test_an_index_that_cannot_be_followed(tmp_path: Path, index: str, message: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(ModelError, match=message):
        Checkpoint(tmp_path)


def test_pickled_weights_are_not_looked_at(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'touch pwned'\ntR.")
    with pytest.raises(ModelError, match="only safetensors"):
        Checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config is not supported"),
        ({"auto_map": {"AutoModel": "evil.Model"}}, "auto_map is not supported"),
        ({"some_new_thing": 3}, "some_new_thing is not supported"),
        ({"model_type": "gpt2"}, "'gpt2' is not supported"),
        ({"model_type": None}, "model_type must be a string"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "architectures must be"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
        ({"hidden_size": "64"}, "hidden_size must be a positive integer"),
        ({"num_hidden_layers": -1}, "num_hidden_layers must be"),
        ({"num_hidden_layers": True}, "num_hidden_layers must be"),
        ({"num_key_value_heads": 3}, "must divide"),
        ({"attention_bias": 1}, "attention_bias must be true or false"),
        ({"dtype": "float8_e4m3fn"}, "dtype 'float8_e4m3fn' is not supported"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4}}, "rope_type 'yarn' is not supported"),
        ({"rope_parameters": {"rope_type": "linear"}}, "rope_parameters: factor must be"),
        (
            {"rope_parameters": None, "rope_scaling": {"type": "dynamic", "factor": 2}},
            "'dynamic' is not supported",
        ),
        (
            {"rope_parameters": {"rope_type": "default", "mscale": 2}},
            "rope_parameters: mscale is not supported",
        ),
        ({"rms_norm_eps": 1e300}, "rms_norm_eps must be"),
        ({"head_dim": 7}, "head_dim must be even"),
    ],
    ids=str,
)
def test_config_keys_that_cannot_be_honoured(
    tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    build_toy_model(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(ModelError, match=message):
        read_model_config(path)


def test_old_and_new_spellings_of_rope_agree(tmp_path: Path) -> None:
    build_toy_model(tmp_path, "llama3-rope")
    path = tmp_path / "config.json"
    new = read_model_config(path)
    values = json.loads(path.read_text())
    scaling = values.pop("rope_parameters")
    values |= {
        "rope_theta": scaling.pop("rope_theta"),
        "rope_scaling": scaling,
        "torch_dtype": values.pop("dtype"),
    }
    path.write_text(json.dumps(values))
    assert read_model_config(path) == new


@pytest.mark.parametrize("content", ["", "[]", "{", "3"])
def test_config_that_is_no_object(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ModelError, match=r"config\.json is not"):
        read_model_config(tmp_path / "config.json")
