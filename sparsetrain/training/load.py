# SPDX-License-Identifier: Apache-2.0
"""Loading of a trainer or predictor from a saved folder; a class is looked up by its saved name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from sparsetrain import checkpoint as checkpoints
from sparsetrain.checkpoint import Saved
from sparsetrain.compiler.precision import LossScale, Precision, policy_for
from sparsetrain.compiler.precision.arithmetic import Arithmetic, resumed
from sparsetrain.compiler.precision.loss_scale import Given
from sparsetrain.data import Encoder
from sparsetrain.errors import CheckpointError, ConfigError, SparsetrainError
from sparsetrain.kernels.table_formats import format_of
from sparsetrain.models import MODELS
from sparsetrain.models.model_checks import require_class
from sparsetrain.optim import Optimizer
from sparsetrain.optim.arguments import from_config
from sparsetrain.optim.saving import KIND as LOOP
from sparsetrain.runtime.targets import resolve_target
from sparsetrain.tables.on_disk import OnDisk
from sparsetrain.tables.state_dict import ENCODER, Kind, check_kinds, named_arrays, named_tables
from sparsetrain.training.predictor import Predictor
from sparsetrain.training.quantized import QuantizedModel, named_as_now
from sparsetrain.training.run import checkpoint_in, chosen
from sparsetrain.training.run.state import RunState
from sparsetrain.training.save import KIND, QUANTIZED, encoder_hash
from sparsetrain.training.state import needs_slots
from sparsetrain.training.trainer import Trainer

_ATTEMPTS = 3


def load(
    folder: str | Path,
    *,
    checkpoint: str = "latest",
    target: Any = "auto",
    optimizer: Optimizer | None = None,
    precision: Precision | None = None,
    loss_scale: LossScale | float | Literal["dynamic"] | None = None,
    model: type | None = None,
    parallel: Any = None,
    tables: OnDisk | None = None,
) -> Trainer:
    """Read a trainer that `Trainer.save` or `Trainer.fit` wrote.

    Parameters
    ----------
    folder : path
        A saved trainer, or the folder of a run.
    checkpoint : {"latest", "best", "auto"}
        The checkpoint of a run to load; "auto" is the best for a run with early stopping
        (`patience`), else the latest. To resume, load the latest.
    target : str or tvm.target.Target
        Where to run.
    optimizer : Optimizer, optional
        Needed only if the run was trained with a custom formula. A table that is in exact mode only
        in this optimizer is exact from now on.
    precision : {"float32", "bf16", "fp16"}, optional
        By default the saved precision.
    loss_scale : float, "dynamic" or LossScale, optional
        By default, the saved scale if the precision is unchanged, else the precision's default.
    model : class, optional
        Needed only for a model that is not part of this package: the model's class, which is called
        with the saved configuration.
    parallel : from `sparsetrain.parallel`, optional
        As in `Trainer`; a run keeps its number of parts unless `parallel` sets a new number.
    tables : OnDisk, optional
        As in `Trainer`; the saved tables may have been on disk or in memory.

    Raises
    ------
    ConfigError
        If this machine does not support the target or the precision.
    CheckpointError
        If the folder is damaged or is not a saved trainer.
    """
    require_class(model)
    target = _checked(target, precision)
    overrides = _Overrides(target, optimizer, precision, loss_scale, model, parallel, tables)
    trainer: Trainer = _read(folder, checkpoint, {KIND: _trainer}, overrides)
    return trainer


def load_predictor(
    folder: str | Path,
    *,
    checkpoint: str = "auto",
    target: Any = "auto",
    precision: Precision | None = None,
    model: type | None = None,
) -> Predictor:
    """Read a predictor: the weights of a saved trainer, or of a quantized model.

    The optimizer's slots are not loaded, unless rows that lag in exact mode need them. Unlike here,
    the default of `load` is a run's latest checkpoint.

    Raises
    ------
    ConfigError
        If this machine does not support the target or the precision.
    CheckpointError
        If the folder is damaged or is not a saved model.
    """
    require_class(model)
    overrides = _Overrides(_checked(target, precision), None, precision, None, model)
    makers: Makers = {
        KIND: _scorer,
        QUANTIZED: partial(_predictor, QuantizedModel),
    }
    predictor: Predictor = _read(folder, checkpoint, makers, overrides)
    return predictor


def _checked(target: Any, precision: Precision | None) -> Any:
    """Refuse an unsupported target or precision before the folder is read.

    "auto" is not resolved yet: it depends on the model.
    """
    resolved = resolve_target(target)
    if precision is not None:
        policy_for(precision, resolved)
    return target if target == "auto" else resolved


class _Overrides(NamedTuple):
    """Arguments of `load` that override saved values; None keeps the saved value."""

    target: Any
    optimizer: Optimizer | None
    precision: Precision | None
    loss_scale: Given
    model: type | None
    parallel: Any = None
    tables: OnDisk | None = None


# Kind of folder -> function that makes a model from it.
Makers = Mapping[str, Callable[[Saved, _Overrides], Any]]


def _read(folder: str | Path, checkpoint: str, makers: Makers, overrides: _Overrides) -> Any:
    for attempt in range(_ATTEMPTS):
        path = checkpoint_in(folder, chosen(folder, checkpoint))
        try:
            with checkpoints.opened(path) as saved:
                return _made(saved, path, makers, overrides)
        except CheckpointError:
            # A running process may have deleted this checkpoint; then the run's pointer names a
            # newer one.
            now = checkpoint_in(folder, chosen(folder, checkpoint))
            if attempt == _ATTEMPTS - 1 or now == path:
                raise
    raise AssertionError("the last attempt returns or raises")


def _made(saved: Saved, path: Path, makers: Makers, overrides: _Overrides) -> Any:
    kind = saved.manifest.get("kind")
    if not isinstance(kind, str) or kind not in makers:
        holds = f"holds {kind!r:.60}, not a saved trainer"
        raise CheckpointError(f"{path}: {_NO_TRAINER.get(str(kind), holds)}")
    try:
        return makers[kind](saved, overrides)
    except _OfClass as error:
        raise ConfigError(f"{path}: {error}") from error.__cause__
    except CheckpointError as error:
        # An error about an array already names the file.
        named = str(path) in str(error)
        raise error if named else CheckpointError(f"{path}: {error}") from None
    except (LookupError, TypeError, AttributeError, OverflowError) as error:
        raise CheckpointError(f"{path}: its manifest lacks a valid value: {error}") from error
    except ValueError as error:  # our own errors, and those from int()
        raise CheckpointError(f"{path}: {error}") from error


class _OfClass(ConfigError):
    """An error raised by the caller's class; the folder may be intact."""


@contextmanager
def _errors_of(made: type | None, call: str, *passing: type[Exception]) -> Iterator[None]:
    """Name the caller's class `made` in errors that it raises; if it is None, pass errors on."""
    try:
        yield
    except passing:
        raise
    except Exception as error:  # whatever the class raises
        if made is None:
            raise
        said = str(error) if isinstance(error, SparsetrainError) else repr(error)
        raise _OfClass(f"{made.__name__}{call} fails: {said}") from error


_NO_TRAINER = {
    LOOP: "it was written by Optimizer.save: read it with Optimizer.load_",
    QUANTIZED: "its tables are int8, for prediction only: `load_predictor`, `evaluate` and "
    "`predict` read it; to train, load the run that it was made from",
}


def _trainer(saved: Saved, overrides: _Overrides) -> Trainer:
    manifest = saved.manifest
    arithmetic = resumed(manifest, overrides.precision, overrides.loss_scale)
    parallel = overrides.parallel
    if parallel is not None and manifest["run"] is not None:
        parallel = parallel.going_on(manifest["run"]["plan"].get("parts"))
    make = partial(
        Trainer,
        _model_of(saved, overrides.model),
        overrides.optimizer or from_config(manifest["optimizer"]),
        target=overrides.target,
        seed=int(manifest["seed"]),
        encoder=_encoder(saved),
        initialize=False,
        accumulate=1 if parallel and parallel.parts else manifest["accumulate"],
        parallel=parallel,
        tables=overrides.tables,
        **arithmetic,
    )
    with _errors_of(overrides.model, "'s model", SparsetrainError):
        trainer = make()
    if manifest["run"] is not None:
        trainer.run_state = RunState.from_dict(manifest["run"])
    trainer.restore_(saved)
    return trainer


def _scorer(saved: Saved, overrides: _Overrides) -> Predictor:
    """Load only the weights if they suffice, else the trainer."""
    if needs_slots(saved.manifest):
        return _trainer(saved, overrides)
    return _predictor(Predictor, saved, overrides)


def _predictor(made: type[Predictor], saved: Saved, overrides: _Overrides) -> Predictor:
    manifest = saved.manifest
    model, encoder = _model_of(saved, overrides.model), _encoder(saved)
    target = resolve_target(overrides.target)
    arithmetic = Arithmetic(overrides.precision or manifest["precision"], target)
    with _errors_of(overrides.model, "'s model", SparsetrainError):
        predictor = made(model, target, encoder, arithmetic, initialize=False)
    predictor.restore_(saved)
    return predictor


def _model(saved: Mapping[str, Any], given: type | None, kinds: Mapping[str, Kind]) -> Any:
    kind = saved["kind"]
    if given is None and kind not in MODELS:
        raise ConfigError(
            f"model {kind!r} is unknown; known: {sorted(MODELS)}; for your own class use "
            "load(..., model=THE_CLASS)"
        )
    made: Any = given or MODELS[kind]
    # Older versions saved a user's subclass under the kind of its built-in base class.
    if made.kind != kind and not issubclass(made, MODELS.get(kind, ())):
        raise ConfigError(f"its model is {kind!r}, not {made.kind!r}, the kind of {made.__name__}")
    config = named_as_now(saved["config"], kinds)
    with _errors_of(given, "(**saved config)"):
        return made(**config)


def _model_of(saved: Saved, given: type | None) -> Any:
    """Make the model that a manifest describes; check that the saved arrays are its parameters.

    A forged manifest cannot make this use much memory or time, since each layer must have an array.
    """
    for name in ("bottom", "top"):
        widths = saved.manifest["model"]["config"].get(name)
        if isinstance(widths, list) and len(widths) > len(saved.kinds):
            raise CheckpointError(
                f"{name} names {len(widths)} layers, but {len(saved.kinds)} arrays are saved"
            )
    model = _model(saved.manifest["model"], given, saved.kinds)
    params = dict(model.named_parameters())
    arrays = named_arrays(params, {}, named_tables(model.tables()), view=_without_memory)
    check_kinds(arrays, {name: saved.kinds[name] for name in arrays if name in saved.kinds})
    return model


def _without_memory(param: Any) -> np.ndarray:
    """Return an array with a parameter's shape and dtype: one zero, broadcast."""
    zero = np.zeros((), format_of(str(param.dtype)).array)
    return np.broadcast_to(zero, tuple(map(int, param.shape)))


def _encoder(saved: Saved) -> Encoder | None:
    arrays = {
        name.removeprefix(ENCODER): saved.read(name)
        for name in saved.kinds
        if name.startswith(ENCODER)
    }
    described = saved.manifest["encoder"]
    encoder = None if described is None else Encoder.from_state(described, arrays)
    found = None if encoder is None else encoder_hash(described, arrays)
    if saved.manifest["encoder_sha256"] != found:
        raise CheckpointError(
            "the saved encoder is not the one that the model was trained with: load another "
            "checkpoint"
        )
    return encoder
