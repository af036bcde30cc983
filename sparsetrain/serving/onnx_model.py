# SPDX-License-Identifier: Apache-2.0
"""Export of a model without bags to ONNX: encoded rows in, logits out (extra `onnx`).

The inputs are ``dense`` (B, N) float32 and ``ids`` (B, F) int64, rows of each feature's own table,
as from `Encoder.encode`; the output is ``logits`` (B, T). An operator without a rule below raises
an error that names it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx

from sparsetrain import runtime
from sparsetrain.compiler.program import extract
from sparsetrain.errors import ConfigError
from sparsetrain.training.load import load_predictor
from sparsetrain.training.predictor import Predictor

OPSET = 17
_INLINE = 1 << 30  # bytes; a protobuf message holds 2 GB, so larger weights go to a second file


class _Graph:
    """Nodes and constants of a graph under construction."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: dict[str, np.ndarray] = {}
        self.names: dict[relax.Var, str] = {}
        self.outputs: dict[
            str, list[str]
        ] = {}  # a node with several outputs is listed under the first

    def add(self, kind: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        """Add a node; return the name of its first output."""
        from onnx import helper

        name = f"{kind.lower()}_{len(self.nodes)}"
        self.outputs[name] = [name, *(f"{name}_{n}" for n in range(1, outputs))]
        self.nodes.append(helper.make_node(kind, [*inputs], self.outputs[name], **attributes))
        return name

    def constant(self, value: Any, dtype: str = "int64") -> str:
        """Add a constant; return its name."""
        name = f"constant_{len(self.constants)}"
        self.constants[name] = np.asarray(value, dtype)
        return name

    def name_of(self, value: Any) -> str:
        """Return the name of a call's argument."""
        if isinstance(value, tvm.ir.GenericConst):
            array = value.value.numpy()
            return self.constant(array, str(array.dtype))
        return self.names[value]


_Rule = Callable[[_Graph, relax.Call], str]


def _same(kind: str) -> _Rule:
    return lambda graph, call: graph.add(kind, *map(graph.name_of, call.args))


def _transpose(graph: _Graph, call: relax.Call) -> str:
    axes = call.attrs.axes
    order: dict[str, Any] = {} if axes is None else {"perm": [int(axis) for axis in axes]}
    return graph.add("Transpose", graph.name_of(call.args[0]), **order)


def _reshape(graph: _Graph, call: relax.Call) -> str:
    # A symbolic extent is the batch size; in ONNX it is -1, computed from the rest.
    extents = [int(e) if isinstance(e, tirx.IntImm) else -1 for e in call.args[1].values]
    if extents.count(-1) > 1:
        raise ConfigError(f"ONNX: reshape to {call.args[1]} has two unknown sizes")
    return graph.add("Reshape", graph.name_of(call.args[0]), graph.constant(extents))


def _concat(graph: _Graph, call: relax.Call) -> str:
    fields = call.args[0].fields
    return graph.add("Concat", *map(graph.name_of, fields), axis=int(call.attrs.axis))


def _split(graph: _Graph, call: relax.Call) -> str:
    axis, parts = int(call.attrs.axis), call.ty.fields
    sizes = graph.constant([int(part.shape[axis]) for part in parts])
    whole = graph.name_of(call.args[0])
    return graph.add("Split", whole, sizes, outputs=len(parts), axis=axis)


def _slice(graph: _Graph, call: relax.Call) -> str:
    """Cut out ranges of some axes, as `numbers.columns` does; without a step."""
    axes, begins, ends, *steps = ([int(n) for n in each.fields] for each in call.args[1:])
    if any(step != 1 for each in steps for step in each):
        raise ConfigError("ONNX: a slice with a step")
    ranges = map(graph.constant, (begins, ends, axes))
    return graph.add("Slice", graph.name_of(call.args[0]), *ranges)


def _lookup(graph: _Graph, call: relax.Call) -> str:
    return graph.add("Gather", *map(graph.name_of, call.args), axis=0)


def _interaction(graph: _Graph, call: relax.Call) -> str:
    """Add the vector, followed by dot products of all pairs among the vector and the embeddings."""
    vector, embedded = map(graph.name_of, call.args)
    count = int(call.args[1].ty.shape[1]) + 1
    first = graph.add("Unsqueeze", vector, graph.constant([1]))
    together = graph.add("Concat", first, embedded, axis=1)
    turned = graph.add("Transpose", together, perm=[0, 2, 1])
    products = graph.add("MatMul", together, turned)
    flat = graph.add("Reshape", products, graph.constant([-1, count * count]))
    rows, columns = np.tril_indices(count, -1)
    pairs = graph.add("Gather", flat, graph.constant(rows * count + columns), axis=1)
    return graph.add("Concat", vector, pairs, axis=1)


def _binned(graph: _Graph, call: relax.Call) -> str:
    """Add the product of the features of each number's bins with its weights; see `Binned`."""
    dense, starts, scales, begins, weight, bias, *missing = map(graph.name_of, call.args)
    numbers, bins = map(int, call.args[1].ty.shape)

    def part(whole: str, axis: int, begin: int, end: int) -> str:
        return graph.add("Slice", whole, *(graph.constant([n]) for n in (begin, end, axis)))

    x = graph.add("Unsqueeze", part(dense, 1, 0, numbers), graph.constant([2]))
    reached = graph.add("Cast", graph.add("GreaterOrEqual", x, begins), to=1)  # float32
    padding = graph.constant([0, 0, 0, 0, 0, 1])
    passed = graph.add("Pad", part(reached, 2, 1, bins), padding)
    own = graph.add("Sub", reached, passed)
    share = graph.add("Mul", graph.add("Sub", x, starts), scales)
    shares = graph.add("Add", graph.add("Mul", share, own), passed)
    factor = graph.constant(1 / np.sqrt(bins), "float32")
    features = graph.add("Concat", graph.add("Mul", shares, factor), own, axis=2)
    product = graph.add("MatMul", graph.add("Transpose", features, perm=[1, 0, 2]), weight)
    vectors = graph.add("Add", graph.add("Transpose", product, perm=[1, 0, 2]), bias)
    if not missing:
        return vectors
    flags = graph.add("Cast", part(dense, 1, numbers, 2 * numbers), to=9)  # bool
    return graph.add("Where", graph.add("Unsqueeze", flags, graph.constant([2])), *missing, vectors)


RULES: dict[str, _Rule] = {
    "relax.add": _same("Add"),
    "relax.subtract": _same("Sub"),
    "relax.multiply": _same("Mul"),
    "relax.divide": _same("Div"),
    "relax.matmul": _same("MatMul"),
    "relax.nn.relu": _same("Relu"),
    "relax.sigmoid": _same("Sigmoid"),
    "relax.tanh": _same("Tanh"),
    "relax.exp": _same("Exp"),
    "relax.sqrt": _same("Sqrt"),
    "relax.permute_dims": _transpose,
    "relax.reshape": _reshape,
    "relax.concat": _concat,
    "relax.split": _split,
    "relax.strided_slice": _slice,
    "relax.sparsetrain.lookup": _lookup,
    "relax.sparsetrain.interaction": _interaction,
    "relax.sparsetrain.binned": _binned,
}


def export_onnx(trained: Predictor | str | Path, out: str | Path, **loading: Any) -> None:
    """Write a model as ONNX.

    Parameters
    ----------
    trained : Trainer or path
        A model, or a path that `load_predictor` reads.
    out : path
        The file to write.
    **loading
        Arguments of `load_predictor`.

    Raises
    ------
    ConfigError
        If the package onnx is missing, the model has bags or tables that are not float32, or an
        operator has no rule here.
    """
    try:
        import onnx
        from onnx import TensorProto, helper, numpy_helper
    except ModuleNotFoundError:
        raise ConfigError("ONNX needs the package onnx: pip install 'sparsetrain[onnx]'") from None
    if not isinstance(trained, Predictor):
        trained = load_predictor(trained, target="cpu", **loading)
    model, graph = trained.model, _Graph()
    function = extract(model.export(), "logits")["logits"]
    _bind_arguments(graph, trained, function)
    for binding in function.body.blocks[0].bindings:
        graph.names[binding.var] = _translated(graph, binding.value)
    graph.add("Identity", graph.name_of(function.body.body))
    graph.nodes[-1].output[0] = "logits"
    width, features = int(function.params[0].ty.shape[1]), len(model.all_fields.names)
    made = helper.make_graph(
        graph.nodes,
        model.kind,
        [
            helper.make_tensor_value_info("dense", TensorProto.FLOAT, ["B", width]),
            helper.make_tensor_value_info("ids", TensorProto.INT64, ["B", features]),
        ],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["B", model.num_logits])],
        [numpy_helper.from_array(value, name) for name, value in graph.constants.items()],
    )
    whole = helper.make_model(made, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
    large = sum(value.nbytes for value in graph.constants.values()) > _INLINE
    onnx.save(whole, str(out), save_as_external_data=large)


def _bind_arguments(graph: _Graph, trained: Predictor, function: relax.Function) -> None:
    """Name the inputs of the graph, and add the parameters as constants."""
    count = int(function.attrs["num_input"])
    inputs = [param.name for param in function.params[:count]]
    parts = trained.model.all_fields.parts if trained.model.all_fields else ()
    if inputs != ["dense", *(names[0] for _, _, names in parts)] or not parts:
        raise ConfigError(
            f"ONNX: the model reads {', '.join(inputs)}; only one id per feature is supported"
        )
    names = ["dense"]
    for _, placement, _ in parts:
        ids = "ids"
        if len(parts) > 1:
            columns = graph.constant(np.array(placement.features))
            ids = graph.add("Gather", ids, columns, axis=1)
        names.append(graph.add("Add", ids, graph.constant(placement.first_rows)))
    for param, name in zip(function.params, names, strict=False):
        graph.names[param] = name
    params = trained._weights()
    each = trained.model.named_parameters()
    for param, (name, _) in zip(function.params[count:], each, strict=True):
        array = runtime.as_numpy(params[name])
        if array.dtype != np.float32:
            raise ConfigError(f"ONNX: {name} is stored as {array.dtype}; only float32 is supported")
        graph.constants[name] = array
        graph.names[param] = name


def _translated(graph: _Graph, value: Any) -> str:
    if isinstance(value, relax.Var):
        return graph.names[value]
    if isinstance(value, relax.TupleGetItem):
        return graph.outputs[graph.names[value.tuple_value]][value.index]
    operator = getattr(getattr(value, "op", None), "name", type(value).__name__)
    if operator not in RULES:
        raise ConfigError(f"ONNX: no rule for operator {operator}; supported: {', '.join(RULES)}")
    return RULES[operator](graph, value)
