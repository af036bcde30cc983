# SPDX-License-Identifier: Apache-2.0
"""`Optimizer`: a formula and its options, applied to a mix of dense and row-sparse gradients.

One object serves the whole model. A dense gradient updates the whole parameter, a `RowSparse`
gradient the rows it names; both in place. A row-sparse update sorts N ids and reads and writes U
rows, for any size of the table; in exact mode it also replays the steps that those rows missed.

This file has the options. `update` takes steps, `exact` replays missed steps, `state_factory`
makes states, `saving` writes them to disk.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import KW_ONLY, MISSING, dataclass, fields
from functools import cached_property
from os import PathLike
from typing import Any, Literal

from tvm.target import Target

from sparsetrain.backend import backend_of
from sparsetrain.compiler.precision.loss_scale import NO_SCALE, Scale
from sparsetrain.errors import ConfigError
from sparsetrain.optim import saving
from sparsetrain.optim.average import AVERAGE, Average, as_average, averaged
from sparsetrain.optim.check_formula import check_formula, uses_count
from sparsetrain.optim.gradients import Gradient
from sparsetrain.optim.param_groups import ParamGroup
from sparsetrain.optim.result import StepResult
from sparsetrain.optim.state import State, count_tables, describe_tables
from sparsetrain.optim.state_factory import adopt_state_, new_state
from sparsetrain.optim.update.apply import apply_
from sparsetrain.optim.update_rule import (
    Number,
    RowOptions,
    UpdateRule,
    as_hyper_parameter,
    check_limit,
    value_at,
)
from sparsetrain.runtime import NDArray
from sparsetrain.system.argument_checks import as_float, require_mapping, require_type
from sparsetrain.tables.formula import Formula
from sparsetrain.tables.state_dict import Parts

ON_NONFINITE = ("stop", "skip")


@dataclass(frozen=True)
class Optimizer(RowOptions):
    """An update rule with its options; the state is separate, in `State`.

    Parameters
    ----------
    formula : Formula
        The update of one element.
    hyper : mapping of str to float, Schedule or function of the step
        Its hyper-parameters, which are arguments of the kernels: changing one does not recompile.
        Steps count from 1.
    mode : {"lazy", "exact", "closed", "dense"}
        Treatment of a table's rows that a batch does not look up: lazy leaves them unchanged; exact
        replays their missed steps before they are read, which gives the weights of a dense
        optimizer; closed replaces a replay of many steps by one product, for formulas that have
        one; dense makes the gradient dense and updates every row.
    max_replayed_steps : int, optional
        In exact and closed mode, the most steps to replay for a row; docs/optimizers.md describes
        the resulting error. The default in closed mode is 8.
    weight_decay : float
        Coupled: added to the gradient as ``weight_decay * w``.
    decoupled : bool
        Decouple the weight decay: multiply the weight by ``1 - lr * weight_decay`` before the step.
    clip_value : float, optional
        Limit each element of the gradient, duplicates summed, to [-clip_value, clip_value].
    clip_norm : float, optional
        Scale all gradients so that their global norm is at most this.
    on_nonfinite : {"stop", "skip"}
        If a gradient has NaN or infinity, raise, or skip the step and count it.
    update : {"sparse", "dense"}, optional
        "sparse": a row-sparse gradient updates only its own rows; "dense": all rows, where that
        gives the same bits. The default is sparse, except in dense mode, and in exact mode for
        small tables, for which dense is faster.
    average : float or Average, optional
        Keep an average of all weights, and score with it: the decay of an exponential average, or
        the result of `ema` or `swa`. Needs mode exact or dense, and tables in float32.
    groups : sequence of ParamGroup
        Options that differ for some parameters or tables.

    Raises
    ------
    ConfigError
        If the formula or an option is invalid, or the formula does not have the option.

    Examples
    --------
    >>> import sparsetrain as st
    >>> optimizer = st.optim.adagrad(0.02)
    >>> state = optimizer.init(params)  # doctest: +SKIP
    >>> optimizer.apply_(params, gradients, state)  # doctest: +SKIP
    """

    formula: Formula
    hyper: Mapping[str, Number]
    _: KW_ONLY
    clip_norm: float | None = None
    on_nonfinite: Literal["stop", "skip"] = "stop"
    average: float | Average | None = None
    groups: Sequence[ParamGroup] = ()

    def __post_init__(self) -> None:
        name = self.formula.name
        numbers = {
            key: as_hyper_parameter(self.formula, key, value) for key, value in self.hyper.items()
        }
        object.__setattr__(self, "hyper", numbers)
        object.__setattr__(self, "average", as_average(self.average))
        if not (
            isinstance(self.groups, Sequence)
            and all(isinstance(g, ParamGroup) for g in self.groups)
        ):
            raise ConfigError(f"{name}: groups must be a list of ParamGroup, not {self.groups!r}")
        object.__setattr__(self, "groups", tuple(self.groups))
        check_formula(self.formula, {key: value_at(value, 1) for key, value in numbers.items()})
        if self.on_nonfinite not in ON_NONFINITE:
            raise ConfigError(f"{name}: on_nonfinite must be one of {ON_NONFINITE}")
        check_limit(name, "clip_norm", self.clip_norm)
        if self.clip_norm is not None and uses_count(self.formula):
            raise ConfigError(
                f"{name}: clip_norm sums the entries of a row first, so h.count is lost: remove "
                "clip_norm"
            )
        for option in ("weight_decay", "clip_value", "clip_norm"):
            object.__setattr__(self, option, as_float(getattr(self, option)))
        self.rule().numbers(1)  # raises if a schedule fails

    def __repr__(self) -> str:
        """Return the name, the numbers, and options that differ from their defaults."""
        options = [option for option in fields(self) if option.default is not MISSING]
        chosen = {o.name: value for o in options if (value := getattr(self, o.name)) != o.default}
        numbers = [f"{name}={value!r}" for name, value in {**self.hyper, **chosen}.items()]
        return f"<Optimizer: {', '.join([self.formula.name, *numbers])}>"

    def rule(self, scaled: bool = False) -> UpdateRule:
        """Return the rule of parameters that no group matches."""
        numbers: dict[str, Any] = dict(self.hyper)
        if self.average is not None:
            numbers[AVERAGE] = self.average
        scaled = scaled or self.clip_norm is not None
        return UpdateRule(self.full_formula, tuple(numbers.items()), scaled, **self.row_options())

    @cached_property
    def full_formula(self) -> Formula:
        """The formula, with the slot of the average if there is an average."""
        return self.formula if self.average is None else averaged(self.formula)

    def number(self, name: str, step: int) -> float | None:
        """Return a hyper-parameter such as ``"lr"`` in a step, ignoring groups; None if unknown."""
        return value_at(self.hyper[name], step) if name in self.hyper else None

    @property
    def counts_steps(self) -> bool:
        """Whether a number depends on the step, so that a checkpoint must hold the count."""
        numbers = [self.average, *self.hyper.values(), *(group.lr for group in self.groups)]
        return self.formula.per_step is not None or any(map(callable, numbers))

    def init(
        self,
        params: Mapping[str, NDArray],
        tables: Parts | None = None,
        *,
        fill: bool = True,
        seed: int = 0,
        scaled: bool = False,
        buffers: Collection[str] = (),
        target: Target | None = None,
    ) -> State:
        """Allocate the slots of each parameter and resolve the groups.

        Parameters
        ----------
        params : mapping of str to Tensor
            All parameters that will be updated.
        tables : mapping, optional
            Storage -> its tables by name, as slices of its rows. Only these storages may have
            row-sparse gradients; by default, any matrix may.
        fill : bool
            Whether to initialize the slots; False if they are about to be loaded.
        seed : int
            Seed of the random bits that round half-precision tables.
        scaled : bool
            Whether gradients will have a `scale`, see `apply_`.
        buffers : collection of str
            Parameters that get new values in place of gradients: a step copies the values.
        target : tvm.target.Target, optional
            Target of the gradient programs; by default the parameters' device.

        Raises
        ------
        ConfigError
            If a group matches nothing.
        ResourceError
            If there is no memory for a slot; the message names the parameter and the bytes.
        """
        require_mapping("optimizer: params", params)
        if not isinstance(tables or {}, Mapping):
            raise ConfigError(
                f"optimizer: tables is a {type(tables).__name__}; give model.tables(), a dict from "
                "storages to their tables by name, as slices of rows"
            )
        backend = None if target is None else backend_of(target)
        made = fill, seed, scaled, frozenset(buffers), backend
        return new_state(self, params, tables or {}, *made)

    def apply_(
        self,
        params: Mapping[str, NDArray],
        gradients: Mapping[str, Gradient],
        state: State,
        *,
        loss: NDArray | None = None,
        scale: float = 1.0,
        may_overflow: bool = False,
    ) -> StepResult:
        """Take one step; write to the tensors of `params` and `state`.

        A row-sparse gradient changes only the rows that its indices name (in dense mode, all rows
        may change); duplicates are summed first.

        Parameters
        ----------
        params : mapping of str to Tensor
            Parameters of any shape; tables are (V, D).
        gradients : mapping of str to Tensor or RowSparse
            Gradients of some or all parameters, or sums from `accumulate_`.
        state : State
            From `init`.
        loss : Tensor, optional
            Checked for NaN and infinity together with the gradients.
        scale : float
            Divide the gradients by this loss scale; needs a state from ``init(..., scaled=True)``.
        may_overflow : bool
            Skip the step if a gradient is not finite, since the scale may have caused it.

        Raises
        ------
        ConfigError
            If a gradient has no parameter or state, or the wrong shape or dtype; if rows of a
            parameter in exact mode are not up to date; or if the state does not support a scale.
            Nothing is written then.
        NumericalError
            If a gradient or the loss is not finite; nothing is written then.
        """
        is_scaled = scale != 1 or may_overflow
        how = Scale.undoing(scale, may_overflow) if is_scaled else NO_SCALE
        return apply_(self, params, gradients, state, loss, how)[1]

    def catch_up_(
        self, params: Mapping[str, NDArray], rows: Mapping[str, Any], state: State
    ) -> int:
        """Bring rows up to date before they are read; only exact mode needs this.

        Parameters
        ----------
        params : mapping of str to Tensor
            The parameters, which are written, like the slots in `state`.
        rows : mapping of str to integer array
            The rows to be read from each table; any shape, duplicates allowed. The plan of these
            ids is kept for the next `apply_`.

        Returns
        -------
        int
            Number of steps replayed, summed over rows.

        Raises
        ------
        DataError
            If a row is outside its table.
        """
        adopt_state_(self, params, state)
        state.tables.hold(params)
        return sum(state.tables.table(name).catch_up(ids) for name, ids in rows.items())

    def flush_(self, params: Mapping[str, NDArray], state: State) -> int:
        """Bring all rows up to date, for evaluation, checkpoints and export; see `catch_up_`."""
        adopt_state_(self, params, state)
        state.tables.hold(params)
        return sum(table.flush() for table in state.tables.each())

    def restored_(self, state: State) -> None:
        """Discard the record of missed steps after a checkpoint was loaded into `state`.

        Raises
        ------
        CheckpointError
            If a row is not up to date, because the checkpoint was made without `flush_`.
        """
        state.tables.restored()

    def save(
        self,
        folder: str | PathLike[str],
        params: Mapping[str, NDArray],
        state: State,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """Save the parameters and state of a custom loop to a folder, for `load_`.

        If the process is killed at any moment, either the previous save or this one is complete.
        Exact mode first brings all rows up to date, see `flush_`.

        Parameters
        ----------
        folder : path
            A folder for this checkpoint alone; its parents are created.
        params : mapping of str to Tensor
            All parameters of the steps, including those without a gradient.
        state : State
            From `init`.
        extra : mapping, optional
            Plain JSON values to save, such as the position in the data.

        Raises
        ------
        CheckpointError
            If `folder` holds anything but a checkpoint, or cannot be written.
        NumericalError
            If a parameter or a slot is not finite; nothing is written then.
        ConfigError
            If a parameter is missing, not a tensor or named like a slot; if `extra` is not a
            mapping.
        ResourceError
            If the disk has too little free space.
        """
        saving.require_tensors(params, state)
        extra = {} if extra is None else extra
        require_type("extra", extra, Mapping, "a mapping")
        self.flush_(params, state)
        saving.save(folder, self.formula.name, params, state, extra)

    def load_(
        self, folder: str | PathLike[str], params: Mapping[str, NDArray], state: State
    ) -> dict[str, Any]:
        """Load a checkpoint from `save`; the loop then continues, bit for bit, as if uninterrupted.

        Parameters
        ----------
        folder : path
            The saved folder.
        params : mapping of str to Tensor
            The parameters, which are overwritten; they need the saved names, shapes and dtypes.
        state : State
            The state, which is overwritten; from `init` with the same arguments as the saved state.
            Hyperparameters, such as the learning rate, are this optimizer's, not the saved ones.

        Returns
        -------
        dict
            The `extra` of `save`.

        Raises
        ------
        CheckpointError
            If there is no such folder, its files are damaged, or the formula, a parameter, a slot
            or a table differs, or a saved value is not finite; nothing is written then.
        ConfigError
            If a parameter is missing or not a tensor.
        """
        saving.require_tensors(params, state)
        extra = saving.load_(folder, self.formula.name, params, state)
        self.restored_(state)
        return extra

    def describe(self, state: State) -> list[str]:
        """Say which rows of each table are updated, and why; equal adjacent tables share a line."""
        return describe_tables(state)

    def summarize(self, state: State) -> str:
        """Count the tables that are updated in each way; `describe` gives their names.

        Examples
        --------
        >>> trainer.optimizer.summarize(trainer.state)  # doctest: +SKIP
        'touched rows, lazy: the slots of other rows do not change (26 tables)'
        """
        return count_tables(state)
