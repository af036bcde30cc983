# SPDX-License-Identifier: Apache-2.0
"""Cross interaction of DCN V2: layers that multiply each number by a linear function of all.

With ``x_0`` the dense vector and all embeddings of a sample, concatenated to N numbers, layer l
gives

    x_{l+1} = x_0 * (W_l (V_l x_l) + b_l) + x_l

where ``*`` is elementwise, ``V_l`` is (rank, N) and ``W_l`` (N, rank): DCN V2 with matrices of low
rank (Wang et al. 2021, https://arxiv.org/abs/2008.13535, equation 2). TorchRec's ``DLRM_DCN`` and
MLPerf's DLRM-DCNv2 use it instead of DLRM's dot interaction. After L layers the result holds
products of up to L + 1 of the numbers.

It consists of ordinary Relax operators. A layer costs 4 N rank multiplications and additions for
each sample, three times as many with the gradients.
"""

from __future__ import annotations

from tvm.relax.frontend import nn

from sparsetrain.errors import ConfigError
from sparsetrain.system.argument_checks import require_int

# MLPerf's values: three layers of rank 512 with N = 3456.
LAYERS = 3
MAX_RANK = 512


def default_rank(width: int) -> int:
    """Return N / 4, as accurate as full rank according to TorchRec; at most MLPerf's rank."""
    return max(1, min(width // 4, MAX_RANK))


class CrossLayer(nn.Module):
    """One layer; `width` is N. Without a rank it has one full matrix ``W_l``, (N, N)."""

    def __init__(self, width: int, rank: int | None, dtype: str = "float32") -> None:
        if rank is not None:
            self.v = nn.Linear(width, rank, bias=False, dtype=dtype)
        self.w = nn.Linear(width if rank is None else rank, width, dtype=dtype)
        self.w.bias.attrs["initial"] = 0.0
        self.rank = rank

    def forward(self, x0: nn.Tensor, x: nn.Tensor) -> nn.Tensor:
        """(B, N), (B, N) -> (B, N)."""
        mixed = self.w(x if self.rank is None else self.v(x))  # (B, N)
        return x0 * mixed + x


class VectorCrossLayer(nn.Module):
    """A layer of the first DCN, ``x_{l+1} = x_0 (w_l x_l) + b_l + x_l``; `width` is N."""

    def __init__(self, width: int) -> None:
        self.weight = nn.Linear(width, 1, bias=False)
        self.bias = nn.Parameter((width,))
        self.bias.attrs["initial"] = 0.0

    def forward(self, x0: nn.Tensor, x: nn.Tensor) -> nn.Tensor:
        """(B, N), (B, N) -> (B, N)."""
        return x0 * self.weight(x) + self.bias + x


class MixedCrossLayer(nn.Module):
    """A mixture of K experts of low rank (equation 4 of the paper); `width` is N.

    ``x_{l+1} = x_0 * (sum_k g_k U_k tanh(C_k tanh(V_k x_l)) + b) + x_l``, ``g = softmax(G x_l)``.
    The experts share one product for all V and one for all U.
    """

    def __init__(self, width: int, rank: int, experts: int) -> None:
        self.rank, self.experts = rank, experts
        self.gate = nn.Linear(width, experts, bias=False)
        self.v = nn.Linear(width, experts * rank, bias=False)
        self.c = nn.Parameter((experts, rank, rank))
        self.w = nn.Linear(experts * rank, width)
        self.w.bias.attrs["initial"] = 0.0

    def forward(self, x0: nn.Tensor, x: nn.Tensor) -> nn.Tensor:
        """(B, N), (B, N) -> (B, N)."""
        each = (x.shape[0], self.experts, self.rank)
        low = nn.op.permute_dims(nn.op.reshape(nn.op.tanh(self.v(x)), each), [1, 0, 2])
        mixed = nn.op.tanh(nn.op.matmul(low, self.c))  # (K, B, rank)
        mixed = nn.op.permute_dims(mixed, [1, 0, 2])  # (B, K, rank)
        gates = nn.op.reshape(nn.op.softmax(self.gate(x), axis=-1), (*each[:2], 1))
        weighed = nn.op.reshape(mixed * gates, (each[0], self.experts * self.rank))
        return x0 * self.w(weighed) + x


class CrossNetwork(nn.Module):
    """All cross layers, in order.

    Parameters
    ----------
    width : int
        N.
    layers : int
        L, the number of layers.
    rank : int, optional
        Rank of each ``W_l V_l``; by default the matrices are full.
    experts : int
        Number of experts; with more than one, each layer is a `MixedCrossLayer`.
    dtype : str
        Dtype of weights and biases.
    """

    def __init__(
        self,
        width: int,
        layers: int,
        rank: int | None = None,
        experts: int = 1,
        dtype: str = "float32",
    ) -> None:
        if experts > 1 and (rank is None or dtype != "float32"):
            raise ConfigError(
                "CrossNetwork: several experts need a low rank and float32: give rank, not dtype"
            )

        def layer() -> nn.Module:
            if rank is not None and experts > 1:
                return MixedCrossLayer(width, rank, experts)
            return CrossLayer(width, rank, dtype)

        self.width = width
        self.layers = nn.ModuleList([layer() for _ in range(layers)])

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        """(B, N) -> (B, N)."""
        return _crossed(self.layers, x)


class CrossInteraction(nn.Module):
    """All layers, applied to a sample's dense vector and F embeddings.

    Parameters
    ----------
    features : int
        F.
    dim : int
        D, so that N is (F + 1) D.
    layers : int
        L, the number of layers.
    rank : int
        Rank of each ``W_l V_l``.
    dtype : str
        Dtype of weights and biases.
    embedded : int, optional
        Total width of the embeddings, if they have several widths; by default F D.
    """

    def __init__(
        self,
        features: int,
        dim: int,
        layers: int,
        rank: int,
        dtype: str = "float32",
        embedded: int | None = None,
    ) -> None:
        numbers = {"features": features, "dim": dim, "layers": layers, "rank": rank}
        features, dim, layers, rank = (
            require_int(f"CrossInteraction: {name}", number) for name, number in numbers.items()
        )
        embedded = features * dim if embedded is None else embedded
        network = CrossNetwork(dim + embedded, layers, rank, dtype=dtype)
        self.layers, self.width = network.layers, network.width

    def forward(self, dense: nn.Tensor, embeddings: nn.Tensor) -> nn.Tensor:
        """(B, D), (B, F, D) or (B, F D) -> (B, N)."""
        return _crossed(self.layers, side_by_side(dense, embeddings))


def _crossed(layers: nn.ModuleList, x0: nn.Tensor) -> nn.Tensor:
    x = x0
    for layer in layers:
        x = layer(x0, x)
    return x


def side_by_side(dense: nn.Tensor, embeddings: nn.Tensor) -> nn.Tensor:
    """(B, D), (B, F, D) or (B, F D) -> (B, (F + 1) D)."""
    if len(embeddings.shape) == 3:
        batch, features, dim = embeddings.shape
        embeddings = nn.op.reshape(embeddings, (batch, features * dim))
    return nn.op.concat([dense, embeddings], dim=1)
