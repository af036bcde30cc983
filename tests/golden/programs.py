# SPDX-License-Identifier: Apache-2.0
"""Digests of the CPU programs of every model: the step, and the scores.

A program is printed as it goes to LLVM, for a CPU that is named, so neither the machine nor its
number of threads decides it.
"""

import hashlib
import re
from collections.abc import Callable, Iterable
from typing import Any
from unittest.mock import patch

import tvm
from tvm.target import Target

import sparsetrain as st
from sparsetrain.runtime import compiling
from tests import small_dlrm
from tests.models import test_field_models as fields
from tests.models import test_named_features as named
from tests.models import test_ranking_model as ranking


def _cpu(name: str) -> Target:
    return Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": name})


SSE2, AVX2, AVX512 = map(_cpu, ("x86-64", "haswell", "znver4"))
# Layers as wide as people use, for CPUs whose vectors have kernels of their own.
FULL = {
    "dlrm, full, AVX2": {"target": AVX2},
    "dlrm, full, AVX512, bf16": {"target": AVX512, "precision": "bf16"},
}
NAMES = [name for name, cls in st.models.MODELS.items() if cls not in ranking.MODELS] + [*FULL]
QUICK = ("dlrm", "din", "dlrm, full, AVX2")


class _Printed(Exception):
    """The program is printed and need not be compiled."""


def found(names: Iterable[str] = NAMES) -> dict[str, dict[str, str]]:
    """Return the digests of each model's programs."""
    return {name: _digests(*trainer(name)) for name in names}


def trainer(name: str, **options: Any) -> tuple[st.Trainer, st.Batch]:
    """A model's trainer, with options other than those recorded, and a batch of it."""
    if name in FULL:
        options = {"seed": 1, **FULL[name], **options}
        made = st.Trainer(small_dlrm.full_model(), st.optim.adagrad(0.1), **options)
        return made, small_dlrm.batch(8, rows=small_dlrm.FULL_ROWS)
    options = {"target": SSE2, "seed": 1, **options}
    cls = st.models.MODELS[name]
    if cls in named.MODELS:
        rows = named.frame()
        made = named.trainer_for(cls, rows, **options)
        labelled = bool(made.model.all_labels)
        return made, made.encoder.encode(rows.head(8), require_label=labelled)
    model = small_dlrm.model() if name == "dlrm" else fields.made(name)
    return st.Trainer(model, st.optim.adagrad(0.1), **options), small_dlrm.batch(8)


def _digests(trainer: st.Trainer, batch: st.Batch) -> dict[str, str]:
    scores = trainer._score if trainer.model.all_labels else trainer.recommend
    return {
        "step": _printed(lambda: trainer.step(batch)),
        "scores": _printed(lambda: scores(batch)),
    }


def _printed(run: Callable[[], object]) -> str:
    """Return the digest of the first program that `run` compiles."""
    passes = compiling._run_passes
    digest = hashlib.sha256()

    def print_program(*arguments: Any) -> Any:
        digest.update(_text(passes(*arguments)).encode())
        raise _Printed

    with patch.object(compiling, "_run_passes", print_program):
        try:
            run()
        except _Printed:
            return digest.hexdigest()
    raise AssertionError("nothing was compiled")


def _text(module: tvm.IRModule) -> str:
    """Print a module without the functions that compute extents.

    TVM cuts and names those by the order of a hash table of addresses.
    """
    kernels = {
        name: function
        for name, function in module.functions.items()
        if not (function.attrs and function.attrs.get("tirx.is_host_func"))
    }
    return re.sub(r"shape_func\d*", "shape_func", tvm.IRModule(kernels).script())
