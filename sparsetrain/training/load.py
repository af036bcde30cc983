# SPDX-License-Identifier: Apache-2.0
"""Loading of a trainer from the folder of a saved one: class names are looked up in tables."""

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
        The one to load from a run; "auto" is the best of a run with early stopping (`patience`),
        else the latest. To resume, load the latest.
    target : str or tvm.target.Target
        Where to run.
    optimizer : Optimizer, optional
        Needed only if the run was trained by a formula that is not part of this package. Tables
        that are in exact mode only in this optimizer are exact from here on.
    precision : {"float32", "bf16", "fp16"}, optional
        By default the one that it was saved with.
    loss_scale : float, "dynamic" or LossScale, optional
        By default the one for the precision; with an unchanged precision the saved scale goes on.
    model : class, optional
        Needed only if the model is not part of this package: its class, which is called with the
        configuration that was saved.
    parallel : from `sparsetrain.parallel`, optional
        As in `Trainer`; of a run its parts go on, if `parallel` names none.
    tables : OnDisk, optional
        As in `Trainer`, independent of where they were when saved.

    Raises
    ------
    ConfigError
        If this machine lacks the target or the precision that is asked for.
    CheckpointError
        If the folder is damaged or is not a saved trainer.
    """
    require_class(model)
    target = _checked(target, precision)
    asked = _Asked(target, optimizer, precision, loss_scale, model, parallel, tables)
    trainer: Trainer = _read(folder, checkpoint, {KIND: _trainer}, asked)
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

    Slots of the optimizer are neither read nor given memory, unless rows that lag in exact mode are
    caught up by them when they are read. `load` reads trainers, and by default a run's latest
    checkpoint.

    Raises
    ------
    ConfigError
        If this machine lacks the target or the precision that is asked for.
    CheckpointError
        If the folder is damaged or is not a saved model.
    """
    require_class(model)
    asked = _Asked(_checked(target, precision), None, precision, None, model)
    makers: Makers = {
        KIND: _scorer,
        QUANTIZED: partial(_predictor, QuantizedModel),
    }
    predictor: Predictor = _read(folder, checkpoint, makers, asked)
    return predictor


def _checked(target: Any, precision: Precision | None) -> Any:
    """Raise for impossible arguments before a folder is read.

    "auto" is not resolved yet: it depends on the model.
    """
    resolved = resolve_target(target)
    if precision is not None:
        policy_for(precision, resolved)
    return target if target == "auto" else resolved


class _Asked(NamedTuple):
    """Arguments of `load` that override saved values; None keeps the saved value."""

    target: Any
    optimizer: Optimizer | None
    precision: Precision | None
    loss_scale: Given
    model: type | None
    parallel: Any = None
    tables: OnDisk | None = None


# Kind of folder -> function that makes a model of it.
Makers = Mapping[str, Callable[[Saved, _Asked], Any]]


def _read(folder: str | Path, checkpoint: str, makers: Makers, asked: _Asked) -> Any:
    for attempt in range(_ATTEMPTS):
        path = checkpoint_in(folder, chosen(folder, checkpoint))
        try:
            with checkpoints.opened(path) as saved:
                return _made(saved, path, makers, asked)
        except CheckpointError:
            # A live run prunes old checkpoints after its pointer has moved.
            now = checkpoint_in(folder, chosen(folder, checkpoint))
            if attempt == _ATTEMPTS - 1 or now == path:
                raise
    raise AssertionError("the last attempt returns or raises")


def _made(saved: Saved, path: Path, makers: Makers, asked: _Asked) -> Any:
    kind = saved.manifest.get("kind")
    if not isinstance(kind, str) or kind not in makers:
        holds = f"holds {kind!r:.60}, not a saved trainer"
        raise CheckpointError(f"{path}: {_NO_TRAINER.get(str(kind), holds)}")
    try:
        return makers[kind](saved, asked)
    except _OfClass as error:
        raise ConfigError(f"{path}: {error}") from error.__cause__
    except CheckpointError as error:
        # The error of an array already names the file.
        named = str(path) in str(error)
        raise error if named else CheckpointError(f"{path}: {error}") from None
    except (LookupError, TypeError, AttributeError, OverflowError) as error:
        raise CheckpointError(f"{path}: its manifest lacks a valid value: {error}") from error
    except ValueError as error:  # our own errors, and errors of int()
        raise CheckpointError(f"{path}: {error}") from error


class _OfClass(ConfigError):
    """An error raised by the caller's class; the folder may be sound."""


@contextmanager
def _errors_of(made: type | None, call: str, *passing: type[Exception]) -> Iterator[None]:
    """Name the caller's class in the errors that it raises; no class, no change."""
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
    QUANTIZED: "its tables are int8, for prediction alone: `load_predictor`, `evaluate` and "
    "`predict` read it; training needs the run that it was made from",
}


def _trainer(saved: Saved, asked: _Asked) -> Trainer:
    manifest = saved.manifest
    arithmetic = resumed(manifest, asked.precision, asked.loss_scale)
    parallel = asked.parallel
    if parallel is not None and manifest["run"] is not None:
        parallel = parallel.going_on(manifest["run"]["plan"].get("parts"))
    make = partial(
        Trainer,
        _model_of(saved, asked.model),
        asked.optimizer or from_config(manifest["optimizer"]),
        target=asked.target,
        seed=int(manifest["seed"]),
        encoder=_encoder(saved),
        initialize=False,
        accumulate=1 if parallel and parallel.parts else manifest["accumulate"],
        parallel=parallel,
        tables=asked.tables,
        **arithmetic,
    )
    with _errors_of(asked.model, "'s model", SparsetrainError):
        trainer = make()
    if manifest["run"] is not None:
        trainer.run_state = RunState.from_dict(manifest["run"])
    trainer.restore_(saved)
    return trainer


def _scorer(saved: Saved, asked: _Asked) -> Predictor:
    """A predictor from the weights alone, where they suffice."""
    if needs_slots(saved.manifest):
        return _trainer(saved, asked)
    return _predictor(Predictor, saved, asked)


def _predictor(made: type[Predictor], saved: Saved, asked: _Asked) -> Predictor:
    manifest = saved.manifest
    model, encoder = _model_of(saved, asked.model), _encoder(saved)
    target = resolve_target(asked.target)
    arithmetic = Arithmetic(asked.precision or manifest["precision"], target)
    with _errors_of(asked.model, "'s model", SparsetrainError):
        predictor = made(model, target, encoder, arithmetic, initialize=False)
    predictor.restore_(saved)
    return predictor


def _model(saved: Mapping[str, Any], given: type | None, kinds: Mapping[str, Kind]) -> Any:
    kind = saved["kind"]
    if given is None and kind not in MODELS:
        raise ConfigError(
            f"model {kind!r} is unknown; known: {sorted(MODELS)}; a class of yours is for "
            "load(..., model=THE_CLASS)"
        )
    made: Any = given or MODELS[kind]
    # Older versions saved subclasses under the kind of our class.
    if made.kind != kind and not issubclass(made, MODELS.get(kind, ())):
        raise ConfigError(f"its model is {kind!r}, not {made.kind!r}, the kind of {made.__name__}")
    config = named_as_now(saved["config"], kinds)
    with _errors_of(given, "(**saved config)"):
        return made(**config)


def _model_of(saved: Saved, given: type | None) -> Any:
    """The model of a manifest, if the saved arrays are its parameters.

    A manifest alone cannot demand memory or time, since each layer must have an array.
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
    """An array of a parameter's shape and dtype: one zero, broadcast."""
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
        raise CheckpointError("its encoder is not the one that it was trained with")
    return encoder
