# SPDX-License-Identifier: Apache-2.0
"""The seam between the package and what its programs run on: a `Backend` for each kind of target.

A program, the state of an optimizer and a trainer find theirs once, by the target or by where their
tensors lie, and ask it for all that differs. Kernels of the CPU stand beside the operators that
they compute; another backend has its own by the same names. `sparsetrain.backends` holds the
backends, which register themselves; a test, or a package of one's own, may `register` others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple, Protocol

import tvm
from tvm.target import Target

from sparsetrain.errors import ConfigError

HOST = 1  # DLPack's number for memory of the CPU


class Schedule(NamedTuple):
    """Passes of a backend, each list at its place in the pipeline of `compiler.schedule`."""

    graph: Sequence[Any] = ()  # before TVM dispatches sorts and scans
    products: Sequence[Any] = ()  # which matrix products there are
    kernels: Sequence[Any] = ()  # how each kernel runs
    plain: Sequence[Any] = ()  # the same of short programs, outside of that pipeline


class Coalescing(Protocol):
    """The functions behind those of `sparse_tensor.coalesce`, which say what they do."""

    make_plan: Callable[..., Any]
    segment_sum: Callable[..., Any]
    row_squares: Callable[..., Any]


class Backend(Protocol):
    """What the package asks of a kind of target.

    Attributes
    ----------
    kind : str
        A key of its targets, or the kind that TVM gives them; also the user's word for it.
    device_type : int
        DLPack's number of the memory in which its tensors lie.
    hoists : bool
        Whether a program is given the memory that it works in; else it allocates from a pool.
    compiles_apart : bool
        Whether kernels of a program can be compiled one by one and linked.
    keeps_kernels : bool
        Whether kernels called outside of programs are kept on disk.
    row_formats : frozenset of str
        What tables may be stored in.
    most_weights_dense : int
        Weights up to which a table is updated as a whole, where that changes no bit.
    """

    kind: str
    device_type: int
    hoists: bool
    compiles_apart: bool
    keeps_kernels: bool
    row_formats: frozenset[str]
    most_weights_dense: int

    # --- The machine ---------------------------------------------------------------------------

    @property
    def is_present(self) -> bool:
        """Whether the machine has the hardware, be it usable or not."""
        ...

    def unavailable_reason(self) -> str | None:
        """Say in one line why it cannot be used, or None if it can."""

    def target(self) -> Target:
        """The target of this machine's hardware; `ConfigError` if it cannot be used."""
        ...

    def complete(self, target: Target) -> Target:
        """A target of this kind, with what it leaves open decided."""
        ...

    def describe(self) -> str:
        """The hardware and what it can do, in one line, for ``sparsetrain doctor``."""
        ...

    def lacks(self, dtype: str, target: Target) -> str | None:
        """Why a target cannot compute products of a dtype at speed, or None if it can."""
        ...

    # --- Compilation ---------------------------------------------------------------------------

    def kernel(self, name: str, host: Any) -> Any:
        """What takes the place of `host`, the CPU's maker of a kernel; None for TVM's own kernel.

        Raises
        ------
        ConfigError
            If there is no such kernel: names the operator.
        """
        ...

    def schedule(self) -> Schedule:
        """The passes that turn operators into kernels of this target."""
        ...

    def compile(self, module: tvm.IRModule, target: Target) -> Any:
        """Compile scheduled kernels that are called outside of programs."""
        ...

    # --- A step --------------------------------------------------------------------------------

    @property
    def coalescing(self) -> Coalescing:
        """How row-sparse tensors are coalesced."""
        ...

    def place(self, tensors: list[Any]) -> list[Any]:
        """Arguments of a call, where the program reads them."""
        ...

    def scratch(self, shape: tuple[int, ...], dtype: str) -> Any:
        """Uninitialised memory for as long as a step needs it."""
        ...

    def synchronize(self) -> None:
        """Wait until all that was launched is done."""

    def update_step(
        self,
        params: Mapping[str, Any],
        gradients: Mapping[str, Any],
        state: Any,
        loss: Any,
        kinds: Any,
    ) -> Any:
        """What takes steps with gradients of these kinds, an `optim.update.apply.Step`."""
        ...

    def training_step(self, trainer: Any, plan: str) -> Any:
        """What takes the steps of a trainer, see `training.step`; `plan` is for `stage`."""
        ...

    def stage(self, trainer: Any, batches: Iterator[Any]) -> Iterator[Any]:
        """The same batches, made ready while a trainer trains on others."""
        ...


_registered: dict[str, Backend] = {}


def register(backend: Backend) -> None:
    """Let programs run on a kind of target, in place of what did before."""
    _registered[backend.kind] = backend


@cache
def _load() -> None:
    import_module("sparsetrain.backends")


def backends() -> dict[str, Backend]:
    """All backends by kind of target; the CPU's is the first."""
    _load()
    return _registered


def backend_of(target: Target) -> Backend:
    """The backend of a target: by one of its keys, or by its kind.

    Raises
    ------
    ConfigError
        If there is none.
    """
    found = find_backend(target)
    if found is None:
        kinds = " or ".join(map(repr, backends()))
        raise ConfigError(
            f"no backend for targets of kind {target.kind.name!r}: use one of kind {kinds}"
        )
    return found


def find_backend(target: Target) -> Backend | None:
    """The backend of a target, if there is one."""
    known = backends()
    return next((known[key] for key in (*target.keys, target.kind.name) if key in known), None)


def backend_at(tensor: Any) -> Backend:
    """The backend in whose memory a tensor lies."""
    place = tensor.__dlpack_device__()[0]
    return next((b for b in backends().values() if b.device_type == place), host())


def host() -> Backend:
    """The CPU's."""
    return backends()["llvm"]


def current() -> Backend:
    """The backend of the target that is being compiled for; without one, the CPU's."""
    target = Target.current(allow_none=True)
    return host() if target is None else backend_of(target)
