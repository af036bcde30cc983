# SPDX-License-Identifier: Apache-2.0
"""`Optimizer`: a formula and its options, applied to a mix of dense and row-sparse gradients.

One object for the whole model. A dense gradient updates the whole parameter, a `RowSparse` one the
rows it names; both in place. Cost of a row-sparse update: N ids to sort and U rows to read and
write, whatever the table's rows; in exact mode, the steps that those rows missed as well.

This file holds the options. `update` takes steps, `exact` catches rows up, `state_factory` makes
states, `saving` writes them to disk.
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
    """An update rule with its options; the state lives outside, in `State`.

    Parameters
    ----------
    formula : Formula
        The rule.
    hyper : mapping of str to float, Schedule or function of the step
        Its hyper-parameters, passed to the kernels as numbers: changing one compiles nothing.
        Steps count from 1.
    mode : {"lazy", "exact", "closed", "dense"}
        Rows with a row-sparse gradient that a batch does not name: lazy leaves them as they are;
        exact replays their missed steps before they are read, which gives the weights of a dense
        optimizer; closed takes the product of many missed steps in place of a replay, for formulas
        that have one; dense makes the gradient dense and updates every row.
    max_replayed_steps : int, optional
        In exact and closed mode, most steps replayed for a row; see docs/optimizers.md for the
        error. Closed mode replays 8 by default.
    weight_decay : float
        Coupled: added to the gradient as ``weight_decay * w``.
    decoupled : bool
        Instead, multiply the weight by ``1 - lr * weight_decay`` before the step.
    clip_value : float, optional
        Limit each element of the gradient, duplicates summed, to [-clip_value, clip_value].
    clip_norm : float, optional
        Scale all gradients so that their global norm is at most this.
    on_nonfinite : {"stop", "skip"}
        A gradient with NaN or infinity raises, or the step is left out and counted.
    update : {"sparse", "dense"}, optional
        Rows that a row-sparse gradient updates: those it names, or every row, where both give the
        same bits. By default those it names, but every row in dense mode, and in exact mode of
        small tables, where that is quicker.
    average : float or Average, optional
        An average of all weights is kept, and the model scores by it: the decay of an exponential
        one, or the result of `ema` or `swa`. Needs mode exact or dense, and tables in float32.
    groups : sequence of ParamGroup
        Options that differ for some parameters or tables.

    Raises
    ------
    ConfigError
        If the formula or an option is wrong, or the formula lacks the option.

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
            raise ConfigError(f"{name}: groups is a list of ParamGroup, not {self.groups!r}")
        object.__setattr__(self, "groups", tuple(self.groups))
        check_formula(self.formula, {key: value_at(value, 1) for key, value in numbers.items()})
        if self.on_nonfinite not in ON_NONFINITE:
            raise ConfigError(f"{name}: on_nonfinite is one of {ON_NONFINITE}")
        check_limit(name, "clip_norm", self.clip_norm)
        if self.clip_norm is not None and uses_count(self.formula):
            raise ConfigError(
                f"{name}: clip_norm sums the entries of a row first, and h.count is lost; leave it "
                "out"
            )
        for option in ("weight_decay", "clip_value", "clip_norm"):
            object.__setattr__(self, option, as_float(getattr(self, option)))
        self.rule().numbers(1)  # a schedule that fails, fails now

    def __repr__(self) -> str:
        """Name, numbers, and the options that are not as they are by default."""
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
        """The formula with the slot of the average, if there is one."""
        return self.formula if self.average is None else averaged(self.formula)

    def number(self, name: str, step: int) -> float | None:
        """A number such as ``"lr"`` in a step, from 1, groups aside; None if there is none such."""
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
            Storage -> its tables by name, as slices of its rows: the parameters that get row-sparse
            gradients. By default any matrix may get them.
        fill : bool
            False leaves slots uninitialised, for slots that are about to be loaded.
        seed : int
            Of the random bits by which tables in half precision are rounded.
        scaled : bool
            Whether gradients will come with a `scale`, see `apply_`.
        buffers : collection of str
            Parameters for which new values will come in place of gradients: a step writes them as
            they are.
        target : tvm.target.Target, optional
            Of the gradients' programs; by default the parameters' device.

        Raises
        ------
        ConfigError
            If a group matches nothing.
        ResourceError
            If there is no memory for a slot; names the parameter and the bytes.
        """
        require_mapping("optimizer: params", params)
        if not isinstance(tables or {}, Mapping):
            raise ConfigError(
                f"optimizer: tables is a {type(tables).__name__}; give model.tables(), a dict of "
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
        """Take one step: writes into the tensors of `params` and `state`.

        Of a parameter with a row-sparse gradient only the rows named by its indices change (in
        dense mode, all may); duplicates are summed first.

        Parameters
        ----------
        params : mapping of str to Tensor
            Parameters of any shape; tables are (V, D).
        gradients : mapping of str to Tensor or RowSparse
            For some or all of the parameters, or sums of `accumulate_`.
        state : State
            From `init`.
        loss : Tensor, optional
            Checked to be finite with the gradients.
        scale : float
            Factor that the gradients are too large by; needs a state from ``init(...,
            scaled=True)``.
        may_overflow : bool
            Whether the scale may be why a gradient is not finite: the step is left out then.

        Raises
        ------
        ConfigError
            If a gradient has no parameter or state, or the wrong shape or dtype, if rows of a
            parameter in exact mode were not caught up, or if the state takes no scale; nothing is
            written then.
        NumericalError
            If a gradient or the loss is not finite; nothing is written then.
        """
        is_scaled = scale != 1 or may_overflow
        how = Scale.undoing(scale, may_overflow) if is_scaled else NO_SCALE
        return apply_(self, params, gradients, state, loss, how)[1]

    def catch_up_(
        self, params: Mapping[str, NDArray], rows: Mapping[str, Any], state: State
    ) -> int:
        """Make rows current that are about to be read; only exact mode has something to do.

        Parameters
        ----------
        params : mapping of str to Tensor
            Written, as are the slots in `state`.
        rows : mapping of str to integer array
            For each table that will be read, the rows; any shape, duplicates welcome. The plan
            made of them is kept for the `apply_` that follows.

        Returns
        -------
        int
            Steps replayed, over all rows.

        Raises
        ------
        DataError
            If a row is outside its table.
        """
        adopt_state_(self, params, state)
        state.tables.hold(params)
        return sum(state.tables.table(name).catch_up(ids) for name, ids in rows.items())

    def flush_(self, params: Mapping[str, NDArray], state: State) -> int:
        """Make all rows current, as evaluation, checkpoints and export need; see `catch_up_`."""
        adopt_state_(self, params, state)
        state.tables.hold(params)
        return sum(table.flush() for table in state.tables.each())

    def restored_(self, state: State) -> None:
        """Begin new histories after a checkpoint was loaded into the tensors of `state`.

        Raises
        ------
        CheckpointError
            If a row is not current: the checkpoint was not made after `flush_`.
        """
        state.tables.restored()

    def save(
        self,
        folder: str | PathLike[str],
        params: Mapping[str, NDArray],
        state: State,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """Keep a loop's parameters and state in a folder, from which `load_` goes on.

        Killed at any moment, it leaves the save before or this one. In exact mode all rows are made
        current first, see `flush_`.

        Parameters
        ----------
        folder : path
            In which nothing else is; folders above it are made.
        params : mapping of str to Tensor
            All that steps are taken with, those without a gradient too.
        state : State
            From `init`.
        extra : mapping, optional
            Kept beside them, as plain JSON values: where the data are to be read on, for instance.

        Raises
        ------
        CheckpointError
            If `folder` holds anything but a checkpoint, or cannot be written.
        NumericalError
            If a parameter or a slot is not finite; nothing is written then.
        ConfigError
            If a parameter is missing, is no tensor or has a slot's name, or `extra` is no mapping.
        ResourceError
            If the disk has not enough room.
        """
        saving.require_tensors(params, state)
        extra = {} if extra is None else extra
        require_type("extra", extra, Mapping, "a mapping")
        self.flush_(params, state)
        saving.save(folder, self.formula.name, params, state, extra)

    def load_(
        self, folder: str | PathLike[str], params: Mapping[str, NDArray], state: State
    ) -> dict[str, Any]:
        """Continue from what `save` wrote, with the bits of an uninterrupted loop.

        Parameters
        ----------
        folder : path
            The saved folder.
        params : mapping of str to Tensor
            Written; of the names, shapes and dtypes that were saved.
        state : State
            Written; from `init` with the arguments of the saved one. This optimizer's
            hyperparameters apply, such as its learning rate, not the saved ones.

        Returns
        -------
        dict
            The `extra` of `save`.

        Raises
        ------
        CheckpointError
            If there is no such folder, its files are damaged, or the formula, a parameter, a slot
            or a table differs; nothing is written then. Also if saved values are not finite; they
            have been read.
        ConfigError
            If a parameter is missing or no tensor.
        """
        saving.require_tensors(params, state)
        extra = saving.load_(folder, self.formula.name, params, state)
        self.restored_(state)
        return extra

    def describe(self, state: State) -> list[str]:
        """Describe which rows of each table are updated, and why; equal neighbours share a line."""
        return describe_tables(state)

    def summarize(self, state: State) -> str:
        """Count the tables that are updated in each way; `describe` has their names.

        Examples
        --------
        >>> trainer.optimizer.summarize(trainer.state)  # doctest: +SKIP
        'touched rows, lazy: the slots of other rows do not change (26 tables)'
        """
        return count_tables(state)
