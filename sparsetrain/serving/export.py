# SPDX-License-Identifier: Apache-2.0
"""Export of a saved model to a self-contained folder that answers requests.

The folder appears complete or not at all. Cost: one compilation of the program without its loss,
and one write of the tables.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.target import Target

from sparsetrain import runtime
from sparsetrain.checkpoint.array_file import write_array
from sparsetrain.compiler.precision.arithmetic import Arithmetic
from sparsetrain.compiler.program import Program
from sparsetrain.compiler.schedule import KINDS
from sparsetrain.errors import ConfigError
from sparsetrain.parsing.keys import number_ids_kernel, text_ids_kernel
from sparsetrain.runtime import library_cache
from sparsetrain.runtime.host import cpu_level
from sparsetrain.runtime.object_files import compile_objects
from sparsetrain.serving import derived_columns, libraries, manifest
from sparsetrain.serving.delta import write_delta
from sparsetrain.serving.encoder_tables import (
    derived_rules,
    encoder_records,
    hash_tables,
    signature,
)
from sparsetrain.serving.folders import draft_beside, new_folder, require_new
from sparsetrain.serving.manifest import Record
from sparsetrain.serving.model_inputs import ModelInputs, function_of, inputs_of
from sparsetrain.system.cores import default_level
from sparsetrain.training import retrieval
from sparsetrain.training.load import load_predictor
from sparsetrain.training.predictor import Predictor

MAX_ROWS = 4096  # most rows in one call of the program, as in `predict`
_INPUTS = ("dense", "rows", "offsets", "weights")
_CODES = {"int": 0, "uint": 1, "float": 2, "bfloat": 4}  # DLPack's type codes
assert tuple(_CODES) == KINDS


def export(
    trained: Predictor | str | Path,
    out: str | Path,
    *,
    cpu: str = default_level(),
    since: str | Path | None = None,
    **loading: Any,
) -> None:
    """Write a folder that `sparsetrain.serving.model.Model`, or a C program, can predict with.

    A model without labels returns query vectors; its item vectors are stored in the folder.

    Parameters
    ----------
    trained : Trainer, QuantizedModel or path
        A predictor with an encoder, or a path that `load_predictor` reads.
    out : path
        A new folder.
    cpu : {"x86-64-v3", "x86-64-v4", "native"}
        Instructions that its kernels may use; "native", the default on processors other than x86,
        means this machine's instructions.
    since : path, optional
        An older export: write only a delta from it, for `sparsetrain.serving.delta.apply`.
    **loading
        Arguments of `load_predictor`: checkpoint, precision, model.

    Raises
    ------
    ConfigError
        If the model has no encoder, prepares its inputs in Python or has neither labels nor
        queries; if `out` exists; or if there is no C compiler.
    CheckpointError
        If the saved model is damaged, or `since` is not an export.
    """
    require_new(Path(out))  # before the slow part
    if since is not None:
        manifest.read(Path(since))
    target, flags = cpu_level(cpu)
    libraries.compiler()
    if not isinstance(trained, Predictor):
        # Load onto this machine's CPU, where kernels bring the rows of exact mode up to date.
        trained = load_predictor(trained, target="cpu", **loading)
    if trained.encoder is None:
        raise ConfigError("export: the model has no encoder: train it on raw values")
    with (new_folder if since is None else draft_beside)(Path(out)) as folder:
        _write(folder, trained, target, ("cpu", cpu, " ".join(flags), libraries.versions()))
        if since is not None:
            write_delta(since, folder, out)


def _write(folder: Path, model: Predictor, target: Target, head: Record) -> None:
    assert model.encoder is not None
    function, arithmetic = function_of(model.model), Arithmetic(model.precision, target)
    program = Program(model.model.export(), function, target, arithmetic)
    arguments = [*program.arguments.by_name]
    inputs = arguments[: program.arguments.num_inputs]
    read = inputs_of(model.model, model.encoder, inputs)
    outputs = len(model.model.all_labels)
    if function == "query":
        items = retrieval.item_vectors(model)
        with open(folder / manifest.ITEMS, "wb") as written:
            write_array(written, items)
        outputs = items.shape[1]
    taken = _index_bits(program, read), outputs, *signature(model.encoder, read)
    records: list[Record] = [
        ("program", function, MAX_ROWS, *taken),
        *(("input", _INPUTS.index(str(kind)), feature) for _, kind, feature in read.records),
        *(("label", *label) for label in model.model.all_labels.kinds.items()),
        *encoder_records(model.encoder, read),
    ]
    params = _params(model, arguments[len(inputs) :])
    params += [("table", a) for a in hash_tables(model.encoder, read)]
    records += [_written(folder, number, *each) for number, each in enumerate(params)]
    libraries.write_kernels(folder, _compiled(program))
    libraries.write_interface(folder)
    rules = derived_rules(model.encoder, read)
    if rules:
        (folder / derived_columns.FILE).write_text(json.dumps(rules))
    files = [manifest.file_record(path) for path in sorted(folder.iterdir())]
    (folder / manifest.FILE).write_bytes(manifest.dump([head, *files, *records]))


def _compiled(program: Program) -> relax.VMExecutable:
    """Compile each kernel separately, even without a cache, so that equal models give equal files.

    The kernels that find ids are added to the program's kernels.
    """
    kernels = {"key_text_ids": text_ids_kernel, "key_number_ids": number_ids_kernel}
    keys = {name: make("int64").with_attr("global_symbol", name) for name, make in kernels.items()}
    with tempfile.TemporaryDirectory() as made:
        place = library_cache.cache_folder() or Path(made)
        executable = program.executable(place, hoists=False, together=1)
        with program.target:
            for library in compile_objects(tvm.IRModule(keys), program.target, place, 1):
                executable.mod.import_module(library)
        return executable


def _index_bits(program: Program, read: ModelInputs) -> str:
    """Return the number of bits of the program's ids."""
    kinds = {
        argument.dtype
        for argument, record in zip(program.arguments.by_name.values(), read.records, strict=False)
        if record[1] == "rows"
    }
    if len(kinds) > 1:
        raise ConfigError("export: some tables need 64-bit ids (2**31 rows or more), some 32-bit")
    return max(kinds, default="int32").removeprefix("int")


def _params(model: Predictor, names: list[str]) -> list[tuple[str, Any]]:
    """Return the parameters of the program."""
    params = model._weights()
    return [("param", params[name]) for name in names]


def _written(folder: Path, number: int, kind: str, tensor: Any) -> Record:
    """Write a file for an array; return its record."""
    array = tensor if isinstance(tensor, np.ndarray) else runtime.as_numpy(tensor)
    file = folder / f"{number:03}.bin"
    file.write_bytes(np.ascontiguousarray(array).view(np.uint8).data)
    code = _CODES[str(tensor.dtype).rstrip("0123456789")]
    return kind, file.name, code, 8 * array.itemsize, *map(int, array.shape)
