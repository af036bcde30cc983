# SPDX-License-Identifier: Apache-2.0
"""Onnxruntime and AOTInductor on the weights and inputs of `serving.py`, on one thread.

Prints a line of JSON for each arm and size. Runs by itself, in the peers' environment.
"""

import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

SIZES = (1, 1000)


class DLRM(nn.Module):
    """One storage of all tables, rows of it as inputs."""

    def __init__(self, arrays: dict[str, np.ndarray]) -> None:
        super().__init__()
        self.table = nn.Parameter(_tensor(arrays, "embeddings."))
        self.bottom, self.top = _mlp(arrays, "bottom"), _mlp(arrays, "top")
        vectors = arrays["rows"].shape[1] + 1
        below, beside = torch.tril_indices(vectors, vectors, offset=-1)
        self.register_buffer("places", below * vectors + beside)

    def forward(self, dense: Tensor, rows: Tensor) -> Tensor:
        """(B, 13) and (B, F) -> (B, 1)."""
        x = torch.relu(self.bottom(dense))
        vectors = torch.cat([x.unsqueeze(1), nn.functional.embedding(rows, self.table)], dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)
        return self.top(torch.cat([x, products.index_select(1, self.places)], dim=1))


def _tensor(arrays: dict[str, np.ndarray], start: str) -> Tensor:
    return torch.from_numpy(next(a for name, a in arrays.items() if name.startswith(start)))


def _mlp(arrays: dict[str, np.ndarray], name: str) -> nn.Sequential:
    weights = [a for key, a in arrays.items() if key.startswith(name) and key.endswith("weight")]
    biases = [a for key, a in arrays.items() if key.startswith(name) and key.endswith("bias")]
    layers: list[nn.Module] = []
    for weight, bias in zip(weights, biases, strict=True):
        layer = nn.Linear(weight.shape[1], weight.shape[0])
        layer.weight.data, layer.bias.data = torch.from_numpy(weight), torch.from_numpy(bias)
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _onnx(model: DLRM, inputs: tuple[Tensor, ...], place: Path):
    import onnxruntime

    path, axes = str(place / "model.onnx"), {"dense": {0: "B"}, "rows": {0: "B"}}
    torch.onnx.export(
        model, inputs, path, dynamo=False, input_names=["dense", "rows"], dynamic_axes=axes
    )
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, settings, ["CPUExecutionProvider"])
    return lambda dense, rows: session.run(None, {"dense": dense.numpy(), "rows": rows.numpy()})[0]


def _inductor(model: DLRM, inputs: tuple[Tensor, ...], place: Path):
    size = torch.export.Dim("B", min=1, max=4096)
    shapes = {"dense": {0: size}, "rows": {0: size}}
    exported = torch.export.export(model, inputs, dynamic_shapes=shapes)
    path = torch._inductor.aoti_compile_and_package(exported, package_path=str(place / "m.pt2"))
    package = torch._inductor.aoti_load_package(path)
    return lambda dense, rows: package(dense, rows).numpy()


def main() -> None:
    """Measure both."""
    torch.set_num_threads(1)
    arrays = dict(np.load(sys.argv[1]))
    calls, logits = int(sys.argv[2]), arrays["logits"]
    model = DLRM(arrays).eval()
    whole = torch.from_numpy(arrays["dense"]), torch.from_numpy(arrays["rows"].astype(np.int64))
    with tempfile.TemporaryDirectory() as name, torch.inference_mode(False), torch.no_grad():
        for arm, make in {"onnxruntime": _onnx, "AOTInductor": _inductor}.items():
            run = make(model, tuple(each[:8] for each in whole), Path(name))
            for size in SIZES:
                inputs = tuple(each[:size].contiguous() for each in whole)
                took = []
                for _ in range(calls + 20):
                    begin = time.perf_counter()
                    found = run(*inputs)
                    took.append((time.perf_counter() - begin) * 1e3)
                difference = float(np.abs(found - logits[:size]).max())
                result = {"arm": arm, "rows": size, "ms": took[20:], "difference": difference}
                print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
