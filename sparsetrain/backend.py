# SPDX-License-Identifier: Apache-2.0
"""The interface between the package and its hardware: a `Backend` for each kind of target.

A program, the state of an optimizer and a trainer find their backend once, from the target, and
call it for everything that differs between targets; a tensor's backend follows from its memory.
CPU kernels are defined next to their operators; a backend may replace them. This module does not
import TVM; the backends do.
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

CPU_MEMORY, PINNED_MEMORY = 1, 3  # DLPack device types; the CPU reads both
# Modules that define `BACKEND`; the first is the host's.
BUILT_IN = ("sparsetrain.backends.cpu", "sparsetrain.backends.cuda")


class Schedule(NamedTuple):
    """The passes that a backend adds to the pipeline in `compiler.schedule`, in three places."""

    graph: Sequence[Any] = ()  # run before TVM dispatches sorts and scans
    products: Sequence[Any] = ()  # rewrite matrix products in the graph
    kernels: Sequence[Any] = ()  # schedule the kernels


class Coalescing(Protocol):
    """Implementations of the functions that `sparse_tensor.coalesce` documents."""

    make_plan: Callable[..., Any]
    segment_sum: Callable[..., Any]
    row_squares: Callable[..., Any]
    rows_below: Callable[..., Any]
    same_ids: Callable[..., Any]


class Backend(ABC):
    """Everything the package needs from one kind of target.

    Attributes
    ----------
    kind : str
        A key of the backend's targets (`tvm.target.Target.keys`), or their kind in TVM.
    memory : int
        DLPack device type of the tensors that its programs read.
    hoists : bool
        Whether programs run on the host, in buffers that the caller allocates, and are compiled
        kernel by kernel. Otherwise they allocate device memory from TVM's pool.
    row_formats : frozenset of str
        Dtypes in which it can store the rows of tables.
    plans : tuple of str
        Values of `Trainer`'s argument `plan`, which decides where the rows of a batch are sorted.
    most_weights_dense : int
        Tables of at most this many weights are updated as a whole, if the result has the same bits.
    is_present : bool
        Whether the machine has the hardware, usable or not.
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
        """Whether to cache compiled code on disk: the key covers only this package's backends."""
        return type(self).__module__.startswith("sparsetrain.")

    # --- The machine ---------------------------------------------------------------------------

    def unavailable_reason(self) -> str | None:
        """Return in one line why the hardware cannot be used, or None if it can."""
        return None

    @abstractmethod
    def target(self) -> Target:
        """Return the target of this machine's hardware; `ConfigError` if it cannot be used."""

    def complete(self, target: Target) -> Target:
        """Return `target`, a target of this kind, with unspecified attributes filled in."""
        return target

    @abstractmethod
    def describe(self) -> str:
        """Describe the hardware and its abilities in one line, for ``sparsetrain doctor``."""

    def lacks(self, dtype: str, target: Target) -> str | None:
        """Return why a target cannot compute products of a dtype at speed, or None if it can."""
        return f"no {self.kind} target computes products of {dtype}"

    # --- Compilation ---------------------------------------------------------------------------

    @abstractmethod
    def kernel(self, name: str, host: Any) -> Any:
        """Return the function that makes kernel `name`, in place of the CPU's `host`.

        None means that TVM's own kernel is used.

        Raises
        ------
        ConfigError
            If the backend has no kernel for this operator; the message names it.
        """

    @abstractmethod
    def schedule(self) -> Schedule:
        """Return the passes that turn operators into kernels of this target."""

    def plain_passes(self) -> Sequence[Any]:
        """Return passes that schedule the operators of short programs (`runtime.compiling`)."""
        return ()

    @abstractmethod
    def compile(self, module: tvm.IRModule, target: Target) -> Any:
        """Compile scheduled kernels that are called outside of programs."""

    # --- A step --------------------------------------------------------------------------------

    @property
    @abstractmethod
    def coalescing(self) -> Coalescing:
        """The functions that coalesce row-sparse tensors."""

    def place(self, tensors: list[Any]) -> list[Any]:
        """Move the arguments of a call to memory that the program reads."""
        return tensors

    @abstractmethod
    def scratch(self, shape: tuple[int, ...], dtype: str) -> Any:
        """Return an uninitialized tensor that is valid during one step."""

    def synchronize(self) -> None:  # noqa: B027  (a call on a CPU returns when it is done)
        """Wait until all launched work is complete."""

    @abstractmethod
    def totals(self, arrays: list[Any]) -> list[float]:
        """Return the sum of each array (n,), all of one dtype; the order depends only on n."""

    @abstractmethod
    def update_step(
        self,
        params: Mapping[str, Any],
        gradients: Mapping[str, Any],
        state: Any,
        loss: Any,
        kinds: Any,
    ) -> Any:
        """Build the `optim.update.apply.Step` for gradients of these kinds."""

    @abstractmethod
    def training_step(self, trainer: Any) -> Any:
        """Build the training step of a trainer (see `training.step`)."""

    def stage(self, trainer: Any, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield the batches; a backend may prepare them during the steps on earlier batches."""
        return batches


_by_kind: dict[str, Backend] = {}
_by_memory: dict[int, Backend] = {}  # DLPack device type -> the first backend registered for it


def register(backend: Backend) -> None:
    """Register a backend for its kind of target, in place of any earlier one for that kind."""
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
    """Return the backends of this package."""
    return [import_module(module).BACKEND for module in BUILT_IN]


def backends() -> dict[str, Backend]:
    """Return all backends by kind of target; the CPU backend comes first."""
    _load()
    return _by_kind


def backend_of(target: Target) -> Backend:
    """Return the backend of a target, found by one of its keys or by its kind.

    Raises
    ------
    ConfigError
        If no backend supports the target.
    """
    known = backends()
    name = next((key for key in (*target.keys, target.kind.name) if key in known), None)
    if name is None:
        raise unsupported(target)
    return known[name]


def unsupported(target: Any) -> ConfigError:
    """Return the error for an unsupported target."""
    names = ", ".join(map(repr, dict.fromkeys(["auto", "cpu", *sorted(backends())])))
    kinds = " or ".join(map(repr, backends()))
    return ConfigError(
        f"target {str(target)!r} is not supported: use {names} or a tvm.target.Target of kind "
        f"{kinds}"
    )


def backend_at(tensor: Any) -> Backend:
    """Return the backend of a tensor's memory."""
    found = _by_memory.get(tensor.__dlpack_device__()[0])
    return _find(tensor) if found is None else found


def _find(tensor: Any) -> Backend:
    _load()
    memory = tensor.__dlpack_device__()[0]
    found = _by_memory.get(CPU_MEMORY if memory == PINNED_MEMORY else memory)
    if found is None:
        raise ConfigError(f"no backend supports tensors on {tensor.device}")
    return found


def host() -> Backend:
    """Return the CPU backend."""
    return next(iter(backends().values()))


def current() -> Backend:
    """Return the backend of TVM's current target, or the CPU's if there is no current target."""
    from tvm.target import Target

    target = Target.current(allow_none=True)
    return host() if target is None else backend_of(target)
