# SPDX-License-Identifier: Apache-2.0
"""A DLRM's gradients by PyTorch, in float64, float32 and under bfloat16 autocast.

    python -m harness.torch_gradients INPUT.npz OUTPUT.npz CONFIG

The input holds a batch (dense, labels), the looked-up vectors of each sample, embeddings (B, F, D),
and every dense parameter by name. The output holds for each precision the gradients of all of
them, as ``float64/top.0.weight``. Run by `precision.py` on the interpreter of the peers.
"""

import sys
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from harness.configs import CONFIGS
from harness.torch_dense import CrossLayers, DenseDLRM

ARMS = {
    "float64": (torch.float64, False),
    "float32": (torch.float32, False),
    "autocast": (torch.float32, True),
}


def main() -> None:
    """Compute all gradients and write them."""
    source, target, config = sys.argv[1:]
    torch.set_num_threads(1)
    with np.load(source) as arrays:
        given = {name: arrays[name] for name in arrays.files}
    found = {
        f"{arm}/{name}": gradient.double().numpy()
        for arm in ARMS
        for name, gradient in _gradients(arm, config, given)
    }
    np.savez(target, **found)


def _gradients(arm: str, config: str, given: dict[str, np.ndarray]) -> Iterator[tuple[str, Tensor]]:
    dtype, autocast = ARMS[arm]
    model = DenseDLRM(CONFIGS[config]).to(dtype)
    named = dict(_named(model))
    with torch.no_grad():
        for name, parameter in named.items():
            parameter.copy_(torch.from_numpy(given[name]))
    embeddings, dense, labels = (
        torch.from_numpy(given[name]).to(dtype) for name in ("embeddings", "dense", "labels")
    )
    embeddings.requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        logits = model(dense, [embeddings.flatten(1)])
    loss = nn.functional.binary_cross_entropy_with_logits(logits.to(dtype), labels)
    loss.backward()
    for name, tensor in [*named.items(), ("embeddings", embeddings)]:
        assert tensor.grad is not None
        yield name, tensor.grad


def _named(model: DenseDLRM) -> Iterator[tuple[str, nn.Parameter]]:
    """Parameters by our names: the number of a layer instead of its place among the modules."""
    for part in ("bottom", "top"):
        layers = [m for m in getattr(model, part) if isinstance(m, nn.Linear)]
        for number, layer in enumerate(layers):
            yield f"{part}.layers.{number}.weight", layer.weight
            yield f"{part}.layers.{number}.bias", layer.bias
    if isinstance(model.interaction, CrossLayers):
        yield from _named_of_cross(model.interaction)


def _named_of_cross(cross: CrossLayers) -> Iterator[tuple[str, nn.Parameter]]:
    for number, (v, w) in enumerate(zip(cross.v, cross.w, strict=True)):
        yield f"interaction.layers.{number}.v.weight", v.weight
        yield f"interaction.layers.{number}.w.weight", w.weight
        yield f"interaction.layers.{number}.w.bias", w.bias


if __name__ == "__main__":
    main()
