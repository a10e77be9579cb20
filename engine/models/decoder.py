"""The one decoder that all supported families are settings of. Letters as in `engine.step_inputs`; E hidden width."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from ..attention.base import Attention
from ..kv_pool import KVPool, LayerPages
from ..layers import Layers
from ..step_inputs import StepInputs
from .config import DecoderConfig
from .parameters import DecoderParameters, LayerParameters


class Decoder:
    """Token ids to hidden states to logits. Holds parameters and no state: keys and values live in the pool it is given."""

    def __init__(
        self, config: DecoderConfig, parameters: DecoderParameters, *, layers: Layers, attention: Attention
    ) -> None:
        self._config = config
        self._parameters = parameters
        self._layers = layers
        self._attention = attention

    def hidden(self, inputs: StepInputs, pool: KVPool) -> Tensor:
        """Run every layer over the step's tokens, writing their keys and values. [T, E], before the final norm."""
        residual = functional.embedding(inputs.token_ids, self._parameters.embedding)
        branch: Tensor | None = None
        for layer, pages, window in zip(
            self._parameters.layers, pool.layers, self._config.windows, strict=True
        ):
            branch = self._attend(
                layer, self._normed(branch, residual, layer.input_norm), pages, window, inputs
            )
            branch = self._feed_forward(layer, self._normed(branch, residual, layer.mlp_norm))
        return residual if branch is None else residual.add_(branch)

    def logits(self, hidden: Tensor) -> Tensor:
        """Hidden states of chosen tokens [N, E] -> float32 [N, V]."""
        normed = self._layers.rms_norm(hidden, self._parameters.final_norm, self._config.norm_eps)
        return self._layers.logits(normed, self._parameters.head)

    def _normed(self, branch: Tensor | None, residual: Tensor, weight: Tensor) -> Tensor:
        """Add what the last block found to the residual stream (in place) and norm the stream for the next."""
        if branch is None:
            return self._layers.rms_norm(residual, weight, self._config.norm_eps)
        return self._layers.add_rms_norm(branch, residual, weight, self._config.norm_eps)

    def _attend(
        self, layer: LayerParameters, x: Tensor, pages: LayerPages, window: int | None, inputs: StepInputs
    ) -> Tensor:
        qkv = self._layers.linear(x, layer.qkv, layer.qkv_bias)
        queries = self._attention.store(qkv, layer.head_norm, pages, inputs)
        attended = self._attention.attend(queries, pages, window, inputs)
        return self._layers.linear(attended, layer.output, layer.output_bias)

    def _feed_forward(self, layer: LayerParameters, x: Tensor) -> Tensor:
        gate_up = self._layers.linear(x, layer.gate_up, layer.gate_up_bias)
        return self._layers.linear(self._layers.silu_mul(gate_up), layer.down, layer.down_bias)
