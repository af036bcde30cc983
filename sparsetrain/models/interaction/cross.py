# SPDX-License-Identifier: Apache-2.0
"""Cross interaction of DCN V2: layers that multiply each number of a sample by a mix of all.

With ``x_0`` the dense vector and all embeddings of a sample side by side, N numbers, layer l gives

    x_{l+1} = x_0 * (W_l (V_l x_l) + b_l) + x_l

where ``*`` is elementwise, ``V_l`` is (rank, N) and ``W_l`` (N, rank): DCN V2 with matrices of low
rank (Wang et al. 2021, https://arxiv.org/abs/2008.13535, equation 2). TorchRec's ``DLRM_DCN``
and MLPerf's DLRM-DCNv2 put it where DLRM has its dot interaction. After L layers the result holds
products of up to L + 1 of the numbers.

It consists of ordinary Relax operators. A layer costs 4 N rank multiplications and additions for
each sample, three times as many with the gradients.
"""

from __future__ import annotations

from tvm.relax.frontend import nn

from sparsetrain.system.argument_checks import require_int

# As MLPerf trains it: three layers of rank 512 with N = 3456.
LAYERS = 3
MAX_RANK = 512


def default_rank(width: int) -> int:
    """A quarter of N, which keeps the accuracy of full rank by TorchRec; at most MLPerf's."""
    return max(1, min(width // 4, MAX_RANK))


class CrossLayer(nn.Module):
    """One layer; `width` is N."""

    def __init__(self, width: int, rank: int, dtype: str = "float32") -> None:
        self.v = nn.Linear(width, rank, bias=False, dtype=dtype)
        self.w = nn.Linear(rank, width, dtype=dtype)

    def forward(self, x0: nn.Tensor, x: nn.Tensor) -> nn.Tensor:
        """(B, N), (B, N) -> (B, N)."""
        mixed = self.w(self.v(x))  # (B, N) by way of (B, rank)
        return x0 * mixed + x


class CrossInteraction(nn.Module):
    """The dense vector and F embeddings of a sample, through all layers.

    Parameters
    ----------
    features : int
        F.
    dim : int
        D, so that N is (F + 1) D.
    layers : int
        L.
    rank : int
        Of each ``W_l V_l``.
    dtype : str
        Dtype of weights and biases.
    """

    def __init__(
        self, features: int, dim: int, layers: int, rank: int, dtype: str = "float32"
    ) -> None:
        numbers = {"features": features, "dim": dim, "layers": layers, "rank": rank}
        features, dim, layers, rank = (
            require_int(f"CrossInteraction: {name}", number) for name, number in numbers.items()
        )
        self.width = (features + 1) * dim
        self.layers = nn.ModuleList([CrossLayer(self.width, rank, dtype) for _ in range(layers)])

    def forward(self, dense: nn.Tensor, embeddings: nn.Tensor) -> nn.Tensor:
        """(B, D), (B, F, D) -> (B, N)."""
        batch, features, dim = embeddings.shape
        flat = nn.op.reshape(embeddings, (batch, features * dim))  # (B, F D)
        x = x0 = nn.op.concat([dense, flat], dim=1)  # (B, N)
        for layer in self.layers:
            x = layer(x0, x)
        return x
