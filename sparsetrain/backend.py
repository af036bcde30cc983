# SPDX-License-Identifier: Apache-2.0
"""The seam between the package and what its programs run on: a `Backend` for each kind of target.

A program, the state of an optimizer and a trainer find theirs once, by the target, and ask it for
all that differs; a tensor alone has that of its memory. Kernels of the CPU stand beside the
operators that they compute; another backend names its own in their place. This module imports no
TVM: whoever has a backend has that.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from sparsetrain.errors import ConfigError

if TYPE_CHECKING:
    import tvm
    from tvm.target import Target

CPU_MEMORY, PINNED_MEMORY = 1, 3  # DLPack's numbers; the CPU reads both
# Each has its backend as `BACKEND`; the first is that of the host.
BUILT_IN = ("sparsetrain.backends.cpu", "sparsetrain.backends.cuda")


class Schedule(NamedTuple):
    """Passes of a backend, each list at its place in the pipeline of `compiler.schedule`."""

    graph: Sequence[Any] = ()  # before TVM dispatches sorts and scans
    products: Sequence[Any] = ()  # which matrix products there are
    kernels: Sequence[Any] = ()  # how each kernel runs


class Coalescing(Protocol):
    """The functions behind those of `sparse_tensor.coalesce`, which say what they do."""

    make_plan: Callable[..., Any]
    segment_sum: Callable[..., Any]
    row_squares: Callable[..., Any]
    rows_below: Callable[..., Any]
    same_ids: Callable[..., Any]


class Backend(ABC):
    """What the package asks of a kind of target.

    Attributes
    ----------
    kind : str
        A key of its targets, or the kind that TVM gives them.
    memory : int
        DLPack's number of the memory in which its tensors lie.
    hoists : bool
        Whether programs are code of the host, given the memory that they work in and compiled
        kernel by kernel. Else they allocate from TVM's pool on a device.
    row_formats : frozenset of str
        Dtypes in which rows of tables can be stored.
    plans : tuple of str
        Who may sort the rows of a batch, see `Trainer`.
    most_weights_dense : int
        Weights up to which a table is updated as a whole, where that changes no bit.
    is_present : bool
        Whether the machine has the hardware, be it usable or not.
    """

    kind: str
    memory: int
    hoists: bool
    row_formats: frozenset[str]
    plans: tuple[str, ...] = ("auto",)
    most_weights_dense = 0
    is_present = True

    @property
    def caches(self) -> bool:
        """Whether compiled code is kept on disk; the key has the sources of this package alone."""
        return type(self).__module__.startswith("sparsetrain.")

    # --- The machine ---------------------------------------------------------------------------

    def unavailable_reason(self) -> str | None:
        """Say in one line why it cannot be used, or None if it can."""
        return None

    @abstractmethod
    def target(self) -> Target:
        """The target of this machine's hardware; `ConfigError` if it cannot be used."""

    def complete(self, target: Target) -> Target:
        """A target of this kind, with what it leaves open decided."""
        return target

    @abstractmethod
    def describe(self) -> str:
        """The hardware and what it can do, in one line, for ``sparsetrain doctor``."""

    def lacks(self, dtype: str, target: Target) -> str | None:
        """Why a target cannot compute products of a dtype at speed, or None if it can."""
        return f"no {self.kind} target computes products of {dtype}"

    # --- Compilation ---------------------------------------------------------------------------

    @abstractmethod
    def kernel(self, name: str, host: Any) -> Any:
        """What takes the place of `host`, the CPU's maker of a kernel; None for TVM's own kernel.

        Raises
        ------
        ConfigError
            If there is no such kernel: names the operator.
        """

    @abstractmethod
    def schedule(self) -> Schedule:
        """The passes that turn operators into kernels of this target."""

    def plain_passes(self) -> Sequence[Any]:
        """The passes that schedule the operators of short programs, see `runtime.compiling`."""
        return ()

    @abstractmethod
    def compile(self, module: tvm.IRModule, target: Target) -> Any:
        """Compile scheduled kernels that are called outside of programs."""

    # --- A step --------------------------------------------------------------------------------

    @property
    @abstractmethod
    def coalescing(self) -> Coalescing:
        """How row-sparse tensors are coalesced."""

    def place(self, tensors: list[Any]) -> list[Any]:
        """Arguments of a call, where the program reads them."""
        return tensors

    @abstractmethod
    def scratch(self, shape: tuple[int, ...], dtype: str) -> Any:
        """Uninitialised memory for as long as a step needs it."""

    def synchronize(self) -> None:  # noqa: B027  (a call on a CPU returns when it is done)
        """Wait until all that was launched is done."""

    @abstractmethod
    def totals(self, arrays: list[Any]) -> list[float]:
        """The sum of each of some arrays (n,) of one dtype, in an order fixed by n."""

    @abstractmethod
    def update_step(
        self,
        params: Mapping[str, Any],
        gradients: Mapping[str, Any],
        state: Any,
        loss: Any,
        kinds: Any,
    ) -> Any:
        """What takes steps with gradients of these kinds, an `optim.update.apply.Step`."""

    @abstractmethod
    def training_step(self, trainer: Any) -> Any:
        """What takes the steps of a trainer, see `training.step`."""

    def stage(self, trainer: Any, batches: Iterator[Any]) -> Iterator[Any]:
        """The same batches, made ready while a trainer trains on others."""
        return batches


_by_kind: dict[str, Backend] = {}
_by_memory: dict[int, Backend] = {}  # the first that names it


def register(backend: Backend) -> None:
    """Let programs run on a kind of target, in place of what did before."""
    _load()
    _add(backend)


def _add(backend: Backend) -> None:
    _by_kind[backend.kind] = backend
    _by_memory.setdefault(backend.memory, backend)


@cache
def _load() -> None:
    for backend in built_in():
        _add(backend)


def built_in() -> list[Backend]:
    """The backends of this package."""
    return [import_module(module).BACKEND for module in BUILT_IN]


def backends() -> dict[str, Backend]:
    """All backends by kind of target; the CPU's is the first."""
    _load()
    return _by_kind


def backend_of(target: Target) -> Backend:
    """The backend of a target: by one of its keys, or by its kind.

    Raises
    ------
    ConfigError
        If there is none.
    """
    known = backends()
    name = next((key for key in (*target.keys, target.kind.name) if key in known), None)
    if name is None:
        raise unsupported(target)
    return known[name]


def unsupported(target: Any) -> ConfigError:
    """The error for what stands for no target."""
    names = ", ".join(map(repr, dict.fromkeys(["auto", "cpu", *sorted(backends())])))
    kinds = " or ".join(map(repr, backends()))
    return ConfigError(
        f"target {str(target)!r} is not supported: use {names} or a tvm.target.Target of kind "
        f"{kinds}"
    )


def backend_at(tensor: Any) -> Backend:
    """The backend in whose memory a tensor lies."""
    found = _by_memory.get(tensor.__dlpack_device__()[0])
    return _find(tensor) if found is None else found


def _find(tensor: Any) -> Backend:
    _load()
    memory = tensor.__dlpack_device__()[0]
    found = _by_memory.get(CPU_MEMORY if memory == PINNED_MEMORY else memory)
    if found is None:
        raise ConfigError(f"no backend works on tensors of {tensor.device}")
    return found


def host() -> Backend:
    """The CPU's."""
    return next(iter(backends().values()))


def current() -> Backend:
    """The backend of the target that is being compiled for; without one, the CPU's."""
    from tvm.target import Target

    target = Target.current(allow_none=True)
    return host() if target is None else backend_of(target)
