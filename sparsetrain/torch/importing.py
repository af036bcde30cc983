# SPDX-License-Identifier: Apache-2.0
"""Import of a module: PyTorch's export as Relax functions that keep the module's names."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import torch
import tvm
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import InputKind
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

from sparsetrain.errors import ConfigError, first_line
from sparsetrain.torch.sharing import DTYPES
from sparsetrain.torch.translations import (
    DROPOUT_INPUTS,
    TRANSLATIONS,
    offsets_of,
    refuse_untranslatable,
)


class _WithLoss(torch.nn.Module):
    """A module with its loss, if any; the last two arguments are dropout's inputs."""

    def __init__(self, module: torch.nn.Module, loss: Any, inputs: int) -> None:
        super().__init__()
        self.module, self.loss, self.count = module, loss, inputs

    def forward(self, given: Any, dropout_key: Any, dropout_first_row: Any) -> Any:
        result = self.module(*given[: self.count])
        return result if self.loss is None else self.loss(result, *given[self.count :])


def imported(
    module: torch.nn.Module,
    inputs: Sequence[torch.Tensor],
    labels: Sequence[torch.Tensor],
    loss: Callable[..., Any] | None,
    dynamic_shapes: Any,
) -> tuple[Any, ...]:
    """Translate a module; return the fields of an `ImportedModel`."""
    _require_floats(module)
    count = len(inputs)
    names = (*[*inspect.signature(module.forward).parameters][:count], *_label_names(len(labels)))
    shapes = _shapes(names, dynamic_shapes)
    trained = _exported(_WithLoss(module, loss, count), (*inputs, *labels), shapes)
    functions = {"loss": _function(trained, names, "loss", module)}
    if loss is not None:
        plain = _predicting(module, inputs, shapes)
        functions["predict"] = _function(plain, names[:count], "predict", module)
    trainable = [name for name, p in module.named_parameters() if p.requires_grad]
    name_of = dict(zip(_given(trained), names, strict=True))
    offsets = {name_of[end]: name_of[ids] for end, ids in offsets_of(trained).items()}
    draws = any(param.name == DROPOUT_INPUTS[0] for param in functions["loss"].params)
    return module, tvm.IRModule(functions), trainable, names, offsets, draws


def every_value(
    module: torch.nn.Module,
    inputs: Sequence[torch.Tensor],
    names: Sequence[str],
    dynamic_shapes: Any,
) -> tuple[tvm.IRModule, dict[torch.fx.Node, np.ndarray]]:
    """Return a function ``"values"`` that returns all nodes' results, and PyTorch's results."""
    plain = _predicting(module, inputs, _shapes(names, dynamic_shapes))
    importer = _Importer(every=True)
    function = _function(plain, names[: len(inputs)], "values", module, importer)
    kept, key = {**plain.state_dict, **plain.constants}, torch.zeros(1, dtype=torch.int64)
    given = iter((*inputs, key, key))
    arguments = [
        next(given) if spec.kind is InputKind.USER_INPUT else kept[str(spec.target)]
        for spec in plain.graph_signature.input_specs
    ]
    recorder = _Recorder(plain.graph_module)
    with torch.no_grad():
        recorder.run(*arguments)
    values = {node: recorder.values[node].detach().numpy() for node in importer.nodes}
    return tvm.IRModule({"values": function}), values


class _Recorder(torch.fx.Interpreter):
    """Runs a graph and keeps each node's result."""

    def __init__(self, graph: torch.fx.GraphModule) -> None:
        super().__init__(graph)
        self.values: dict[torch.fx.Node, Any] = {}

    def run_node(self, n: torch.fx.Node) -> Any:
        value = self.values[n] = super().run_node(n)
        return value


def _shapes(names: Sequence[str], given: Any) -> tuple[Any, ...]:
    """Return the dynamic axes of each input, by default the first axis."""
    if isinstance(given, Mapping):
        given = [given.get(name) for name in names]
    return tuple(given or ({0: Dim.AUTO} for _ in names))


def _predicting(
    module: torch.nn.Module, inputs: Sequence[torch.Tensor], shapes: tuple[Any, ...]
) -> ExportedProgram:
    with evaluating(module):
        count = len(inputs)
        return _exported(_WithLoss(module, None, count), (*inputs,), shapes[:count])


def _require_floats(module: torch.nn.Module) -> None:
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if tensor.is_floating_point() and tensor.dtype not in DTYPES:
            raise ConfigError(f"from_torch: {name!r} is {tensor.dtype}: pass module.float()")


def prediction(module: torch.nn.Module, inputs: Sequence[torch.Tensor]) -> np.ndarray:
    """Return PyTorch's result in evaluation mode."""
    with evaluating(module), torch.no_grad():
        result = module(*inputs)
    if not isinstance(result, torch.Tensor):
        raise ConfigError(
            f"from_torch: with a loss, the module must return one tensor, not a "
            f"{type(result).__name__}"
        )
    return result.numpy()


@contextmanager
def evaluating(module: torch.nn.Module) -> Iterator[None]:
    """Put a module in evaluation mode during the block; then restore each layer's mode."""
    modes = {layer: layer.training for layer in module.modules()}
    module.eval()
    try:
        yield
    finally:
        for layer, mode in modes.items():
            layer.training = mode


def _label_names(count: int) -> list[str]:
    return ["label"] if count == 1 else [f"label{n}" for n in range(count)]


def _exported(
    module: _WithLoss, given: tuple[torch.Tensor, ...], shapes: tuple[Any, ...]
) -> ExportedProgram:
    """Export a module as a graph of operators; dropout stays a single operator.

    Raises
    ------
    ConfigError
        If PyTorch cannot export the module, or the module fixes the batch size.
    """
    key = torch.zeros(1, dtype=torch.int64)
    given = tuple(tensor.detach().clone() for tensor in given)  # so that inputs do not share memory
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.export.export(
                module, (given, key, key), dynamic_shapes=(shapes, None, None)
            ).run_decompositions()
    except Exception as error:  # raised by the module's code or by PyTorch
        raise ConfigError(
            f"from_torch: PyTorch cannot export the module: {first_line(error)}"
        ) from error
    sizes = [
        node.meta["val"].shape[0]
        for node in _placeholders(program)
        if node.name.startswith("given")
    ]
    if all(str(size).isdigit() for size in sizes):  # or a symbol with only one possible value
        raise ConfigError(
            f"from_torch: the module fixes the batch size at {sizes[0]}: read it from the shape of "
            "an input, and pass an example of at least 2 rows"
        )
    refuse_untranslatable(program)
    return program


class _Importer(ExportedProgramImporter):
    """TVM's importer; after an error it closes its open block, since TVM would print a warning.

    With `every`, the imported function returns the results of all `nodes` that return one tensor.
    """

    def __init__(self, every: bool = False) -> None:
        super().__init__()
        self.every, self.nodes = every, list[torch.fx.Node]()

    def imported(self, program: ExportedProgram) -> relax.Function:
        """Return the function of an exported module, with the weights as parameters."""
        try:
            return self.from_exported_program(program, True, True, False, TRANSLATIONS)["main"]
        except BaseException:
            with suppress(tvm.error.InternalError):  # raised if no block was open
                self.block_builder._end_block()
            raise

    def _translate_fx_graph(self, *arguments: Any) -> Any:
        result = super()._translate_fx_graph(*arguments)
        if not self.every:
            return result
        self.nodes = [n for n in self.env if n.op == "call_function" and _is_tensor(self.env[n])]
        return tuple(self.env[node] for node in self.nodes)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, relax.Expr) and isinstance(value.ty, relax.TensorType)


def _function(
    program: ExportedProgram,
    names: Sequence[str],
    name: str,
    module: torch.nn.Module,
    importer: _Importer | None = None,
) -> relax.Function:
    """Return the Relax function of an exported module, with the module's argument names.

    Raises
    ------
    ConfigError
        If an operator has no translation.
    """
    try:
        found = (importer or _Importer()).imported(program)
    except AssertionError as error:
        raise ConfigError(f"from_torch: no translation: {first_line(error)}") from None
    named = dict(zip(_given(program), names, strict=True)) | dict.fromkeys(DROPOUT_INPUTS)
    named |= _parameter_names(program, module)
    params: dict[str, relax.Var] = {}
    variables = {
        p: params.setdefault(named[p.name] or p.name, relax.Var(named[p.name] or p.name, p.ty))
        for p in found.params
    }
    renamed = _Renamer(variables)
    body = renamed.visit_expr(found.body)
    used = {v.name for v in relax.analysis.free_vars(body)}
    kept = [p for n, p in params.items() if n not in DROPOUT_INPUTS or n in used]
    inputs = len(names) + sum(n in DROPOUT_INPUTS for n in used)
    attributes = {"num_input": inputs, "global_symbol": name}
    return relax.Function(
        kept, body, found.ret_ty, True, tvm.ir.make_node("ir.DictAttrs", **attributes)
    )


@mutator
class _Renamer(PyExprMutator):
    """Replaces variables in a function."""

    def __init__(self, variables: dict[relax.Var, relax.Var]) -> None:
        super().__init__()
        self.variables = variables

    def visit_var_(self, var: relax.Var) -> relax.Var:
        return self.variables.get(var, var)


def _placeholders(program: ExportedProgram) -> list[torch.fx.Node]:
    return [node for node in program.graph.nodes if node.op == "placeholder"]


def _given(program: ExportedProgram) -> list[str]:
    """Return PyTorch's names of the inputs and labels, in order."""
    specs = program.graph_signature.input_specs
    inputs = [spec.arg.name for spec in specs if spec.kind is InputKind.USER_INPUT]
    return [name for name in inputs if name not in DROPOUT_INPUTS]


def _parameter_names(program: ExportedProgram, module: torch.nn.Module) -> dict[str, str]:
    """Map each parameter's name in the export to its name in the module; tied tensors share it."""
    name_of = {id(parameter): name for name, parameter in module.named_parameters()}
    return {
        spec.arg.name: name_of[id(module.get_parameter(str(spec.target).removeprefix("module.")))]
        for spec in program.graph_signature.input_specs
        if spec.kind is InputKind.PARAMETER
    }
