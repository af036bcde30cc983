# SPDX-License-Identifier: Apache-2.0
"""The public names, pinned: a change here is a change of what users can rely on."""

import ast
import gc
import pydoc
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from inspect import isclass, isfunction, signature
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import sparsetrain as st

TORCH = find_spec("torch")  # an extra
PUBLIC = {
    "sparsetrain": (
        "Batch EarlyStopping Predictor Program QuantizedModel ReduceLROnPlateau RowSparse Run "
        "StepProfile Trainer __version__ "
        "ad compare data embedding errors from_torch labels load load_predictor loggers metrics "
        "models optim parallel permutation_importance precision runtime set_num_threads tables "
        "torch value_and_grad"
    ),
    "ad": (
        "GradientModule batch_norm bce_with_logits check_grads defvjp densify dropout gradient "
        "cross_entropy_ linear_cross_entropy row_sparse_cotangent tiled_cross_entropy"
    ),
    "compare": ("ARMS Case Measurement measure sweep tables_of_data tables_of_rows tables_of_run"),
    "data": (
        "Batch BatchSource ColumnRule Columns Dataset Derived Encoder Inferred Interactions Linear "
        "Position Profile Ragged Schema Share Source Split SyntheticCriteo TextFormat Truth "
        "convert_files find_columns infer open_source profile read_encoder read_truth "
        "require_labels split_share split_time split_windows with_buckets"
    ),
    "embedding": (
        "Embedding EmbeddingBag EmbeddingBagCollection RaggedTensor Table embedding_bag lookup"
    ),
    "errors": (
        "CheckpointError ConfigError DataError DataWarning NumericalError ParallelError "
        "ResourceError "
        "SparsetrainError"
    ),
    "labels": (
        "Binary Classes Count DevianceMetrics LABELS Label LabelMetrics Labels PinballMetrics "
        "Quantiles Real label_of watched_names"
    ),
    "loggers": "MLflow TensorBoard WandB",
    "metrics": ("ClassMetrics ClickMetrics GroupedAUC RankingMetrics RegressionMetrics rank_items"),
    "models": (
        "BatchNorm BilinearFusion CIN ClickModel CrossInteraction CrossNetwork Dense Dropout "
        "FieldAttention Ids MLP MODELS Model Positions RankingModel SelfAttention Sequence "
        "TransformerBlock dot_interaction fm_sum "
        + " ".join(model.__name__ for model in st.models.MODELS.values())
    ),
    "optim": (
        "Formula OPTIMIZERS Optimizer ParamGroup RowMean Schedule Slot State StepResult abs "
        "accumulate_ averages constant cosine ema exp global_norm inverse_sqrt maximum minimum "
        "polynomial sign sqrt step_decay swa warmup where " + " ".join(st.optim.OPTIMIZERS)
    ),
    "parallel": "local mpi torch",
    "precision": (
        "BFLOAT16 FLOAT16 LossScale Policy Precision Scaling lacks policy_for scaling_for to_half"
    ),
    "runtime": ("as_numpy as_tensor empty num_threads set_num_threads single_threaded_blas zeros"),
    "tables": "OnDisk",
    **({"torch": "RowSparseEmbedding RowSparseEmbeddingBag RowSparseOptimizer"} if TORCH else {}),
    "Trainer": (
        "compile evaluate extended first_nonfinite fit item_vectors load_state_dict prefetch "
        "learn_ load_table predict prediction_names profile program quantized query_vectors "
        "recommend restore_ save scaling seed snapshot state_dict step table table_bytes trains"
    ),
    "QuantizedModel": (
        "evaluate fit item_vectors predict prediction_names query_vectors recommend restore_ save "
        "snapshot state_dict step table_bytes"
    ),
    "Program": "compile executable flops_spared is_compiled machine place spared",
    "RowSparse": (
        "allclose cast clip coalesce concat coalesced dtype equal from_numpy from_scipy is_traced "
        "isfinite leaves norm nse plan scale shape source squared_norm to_dense to_scipy validate "
        "width with_leaves"
    ),
}


MODULES = [name for name in PUBLIC if isinstance(getattr(st, name, st), ModuleType)]


def of(owner: str) -> Any:
    return st if owner == "sparsetrain" else getattr(st, owner)


def names(owner: Any) -> set[str]:
    """Return the public names that a module shows, or that a class and its bases define."""
    classes = owner.__mro__[:-1] if isclass(owner) else ()
    shown = {name for base in classes for name in vars(base)} if classes else {*dir(owner)}
    return {name for name in shown if not name.startswith("_") or name == "__version__"}


def test_the_public_names_are_these():
    wanted = {owner: {*listed.split()} for owner, listed in PUBLIC.items()}
    changed = {owner: names(of(owner)) ^ listed for owner, listed in wanted.items()}
    assert not any(changed.values()), changed


def test_every_public_name_exists_and_nothing_else_is_shown():
    for module in MODULES:
        assert all(getattr(of(module), name) is not None for name in of(module).__all__), module
        assert dir(of(module)) == sorted(of(module).__all__), module


def test_help_of_a_module_describes_its_names():
    for module in MODULES[1:]:
        text = pydoc.plain(pydoc.render_doc(of(module)))
        assert [name for name in PUBLIC[module].split() if name not in text] == [], module


def test_public_functions_and_classes_say_what_they_are():
    for owner, listed in PUBLIC.items():
        values = {name: getattr(of(owner), name, None) for name in listed.split()}
        described = {n: v for n, v in values.items() if isfunction(v) or isclass(v)}
        assert [name for name, value in described.items() if not value.__doc__] == [], owner


def documented(text: str) -> list[str]:
    """Return the parameters that a NumPy docstring lists, several of a line one by one."""
    section = re.search(r"\nParameters\n-+\n(.*?)(?=\n\S[^\n]*\n---|\Z)", text, re.DOTALL)
    heads = re.findall(r"^(\*{0,2}\w.*?)(?: :.*)?$", section[1], re.MULTILINE) if section else []
    return [name.strip(" *") for head in heads for name in head.split(",")]


def test_documented_parameters_are_in_the_signature():
    wrong = {}
    for path in sorted(Path(st.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                taken = {part.arg for part in ast.walk(node.args) if isinstance(part, ast.arg)}
                if unknown := {*documented(ast.get_docstring(node) or "")} - taken:
                    wrong[f"{path.name}:{node.lineno} {node.name}"] = unknown
    assert not wrong


def misplaced(text: str) -> Iterator[str]:
    """Yield entries that are indented like the description before them, or hold their own."""
    section, lines = "", text.split("\n")
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        if re.fullmatch(r"-{4,}", below):
            section = line
        elif section in ("Parameters", "Attributes", "Raises"):
            entry = r"    (\*{0,2}[a-z]\w*(, \w+)* : \S.*|\*{1,2}\w+|[A-Z]\w+(Error|Warning))"
            if re.fullmatch(entry, line) or re.fullmatch(r"\w.*\.", line):
                yield line


def test_lists_of_docstrings_are_well_formed():
    wrong = {}
    for path in sorted(Path(st.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                for line in misplaced(ast.get_docstring(node) or ""):
                    wrong[f"{path.name}: {line}"] = getattr(node, "name", "")
    assert not wrong


def test_a_name_that_does_not_exist_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'sparsetrain' has no attribute 'Traner'"):
        _ = st.Traner


@pytest.mark.parametrize("enabled", [True, False])
def test_no_garbage_is_looked_for_while_a_name_is_loaded(monkeypatch, enabled):
    seen = []
    monkeypatch.setattr(st, "import_module", lambda _name: seen.append(gc.isenabled()))
    try:
        (gc.enable if enabled else gc.disable)()
        st._load("sparsetrain.training.trainer")
        assert (seen, gc.isenabled()) == ([False], enabled)
    finally:
        gc.enable()


HEAVY = ("tvm", "tvm_ffi", "pyarrow", "pandas", "torch", "scipy", "numpy")
# What is run -> the heavy packages that it may import.
LIGHT = {
    "import sparsetrain": "",
    "import sparsetrain as st; st.torch": "",
    "from sparsetrain.cli import main; main(['--help'])": "",
    "from sparsetrain.cli import main; main(['--version'])": "",
    "from sparsetrain.cli import main; main(['train', '--help'])": "",
    "import sparsetrain as st; st.metrics.ClickMetrics()": "numpy",
    "import sparsetrain as st; st.data.Batch([[0.5]], [[1]])": "numpy pyarrow",
    "import sparsetrain as st; from tests import small_dlrm; trainer = small_dlrm.trainer(); "
    "trainer.fit([small_dlrm.batch(8)])": "numpy pyarrow pandas tvm tvm_ffi",
}


@pytest.mark.parametrize("statement", LIGHT)
def test_what_is_light_imports_nothing_heavy(statement):
    script = f"{statement}\nimport sys; print('loaded:', *sorted(set(sys.modules) & set({HEAVY})))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    loaded = done.stdout.splitlines()[-1].removeprefix("loaded:").split()
    assert set(loaded) <= set(LIGHT[statement].split())


def test_what_is_shown_of_a_trainer_names_its_parameters():
    shown = signature(st.Trainer)
    assert [*shown.parameters][:3] == ["model", "optimizer", "target"]
    assert {"encoder", "precision", "parallel"} <= shown.parameters.keys()
