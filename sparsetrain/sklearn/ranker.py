# SPDX-License-Identifier: Apache-2.0
"""`Ranker`: an estimator of the items that a user chooses, learnt from pairs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sklearn.utils.validation import check_is_fitted

from sparsetrain import models
from sparsetrain.data import Interactions
from sparsetrain.data.ragged import offsets_of, one_each
from sparsetrain.errors import ConfigError, DataError
from sparsetrain.sklearn.parameters import Trained


@dataclass(kw_only=True, eq=False, repr=False)
class Ranker(Trained):
    """Ranks all items for a user, by a model of queries and items.

    It learns from pairs, a frame with a row for each choice, and has no `y`: checks of
    `check_estimator` fit arrays of numbers, which have neither users nor items, so none applies.

    Parameters
    ----------
    model : str or class
        A name in `sparsetrain.models.MODELS` of a model that ranks items, such as "bpr" or
        "sasrec", or a `Model` of one's own.
    dim : int
        Width of the embeddings.
    model_options : dict, optional
        Further arguments of the model.
    optimizer : str
        A name in `sparsetrain.optim.OPTIMIZERS`.
    lr : float
        Learning rate.
    optimizer_options : dict, optional
        Further arguments of the optimizer, such as ``{"mode": "exact"}``.
    epochs : int
        As in `Trainer.fit`.
    batch_size : int
        As in `Trainer.fit`.
    user : str
        Column of users.
    item : str
        Column of items.
    time : str, optional
        Column; by default "time" or "timestamp", if there is one, else the order of the rows
        counts.
    random_state : int, RandomState or None
        Decides initial weights and the order of rows.
    target : str
        As in `Trainer`.
    verbose : bool
        Whether the progress is shown.

    Attributes
    ----------
    trainer_ : Trainer
        ``trainer_.save(folder)`` keeps the model, as `sparsetrain.load` reads it.
    log_ : Interactions
        The choices of `fit`.
    history_ : History
    """

    model: Any = field(default="bpr", kw_only=False)
    dim: int = 32
    optimizer: str = "adam"
    lr: float = 0.01
    epochs: int = 20
    batch_size: int = 256
    user: str = "user"
    item: str = "item"
    time: str | None = None

    def fit(self, X: Any, y: None = None) -> Any:
        """Learn from choices, a row of `X` each: a frame, or a source of `Interactions.read`."""
        made, given = self._model()
        if getattr(made, "forward", None) is not models.Model.forward:
            raise ConfigError(f"{made.__name__} predicts labels; give a model that ranks items")
        self.log_ = self._read(X)
        split = self.log_.split_random(0, 0, each=made.training_rows)
        encoder = split.encoder()
        self.trainer_ = self._trainer(made.for_encoder(encoder, dim=self.dim, **given), encoder)
        return self._fit(split.train, len(split.train), epochs=self.epochs)

    def recommend(
        self, users: Any, k: int = 10, *, include_seen: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the k best items of each user and their scores, (n, k) each, best first.

        Parameters
        ----------
        users : array (n,)
            Values of the user column; one that `fit` did not see has no history.
        k, include_seen
            As in `Trainer.recommend`: items that the user chose in `fit` are left out.

        Returns
        -------
        tuple of (n, k) objects and (n, k) float32
            If fewer than k items are left, the rest are None with scores -inf.
        """
        check_is_fitted(self)
        users = pa.array(users)
        rows = self._rows(users)
        ids, scores = self.trainer_.recommend(rows, k, include_seen=include_seen)
        assert self.trainer_.encoder is not None
        values = np.array([*self.trainer_.encoder.values("item"), None], object)
        return values[ids], scores  # -1, where no item is left, is the last

    def predict(self, X: Any) -> np.ndarray:
        """Return the best item for the user of each row, (n,); `X` has the user column."""
        return self.recommend(X[self.user], 1)[0][:, 0]

    def score(self, X: Any, y: None = None) -> float:
        """Return NDCG@10 of the choices in `X` among all items that their users had not chosen."""
        check_is_fitted(self)
        log = self._read(X)
        offsets = offsets_of(np.bincount(log.user))
        wanted = pa.LargeListArray.from_arrays(offsets, log.item)
        rows = self._rows(log.users).append_column("item", wanted)
        return float(self.trainer_.evaluate(rows)["ndcg@10"])

    def _read(self, X: Any) -> Interactions:
        return Interactions.read(X, user=self.user, item=self.item, time=self.time)

    def _rows(self, users: pa.Array) -> pa.Table:
        """Return the users with what they chose in `fit`."""
        try:
            users = users.cast(self.log_.users.type)
        except pa.ArrowException as error:
            raise DataError(f"users are {users.type}, unlike those of fit: {error}") from None
        number = pc.index_in(users, value_set=self.log_.users).fill_null(-1).to_numpy()
        begin, end = (np.searchsorted(self.log_.user, number, side) for side in ("left", "right"))
        seen = one_each(np.arange(len(self.log_))).between(begin, end)
        history = seen.as_lists(self.log_.item.take(pa.array(seen.ids)))
        return pa.table({"user": users, "history": history})
