# SPDX-License-Identifier: Apache-2.0
"""`Ranker`: an estimator that ranks items for a user; it learns from (user, item) pairs."""

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
    """Ranks all items for a user, with a model of queries and items.

    It learns from a frame with one row for each choice, and has no `y`. So scikit-learn's
    `check_estimator`, which fits arrays of numbers, does not apply.

    Parameters
    ----------
    model : str or class
        A name in `sparsetrain.models.MODELS` of a model that ranks items, such as "bpr" or
        "sasrec", or your own `Model` class.
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
        Column of times; by default "time" or "timestamp" if there is one, else the order of the
        rows.
    random_state : int, RandomState or None
        Seed of the initial weights and of the order of rows.
    target : str
        As in `Trainer`.
    verbose : bool
        Whether to show progress.

    Attributes
    ----------
    trainer_ : Trainer
        ``trainer_.save(folder)`` saves the model for `sparsetrain.load`.
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
        """Learn from choices, one per row of `X`: a frame, or a source for `Interactions.read`."""
        made, given = self._model()
        if getattr(made, "forward", None) is not models.Model.forward:
            raise ConfigError(f"{made.__name__} predicts labels: use a model that ranks items")
        self.log_ = self._read(X)
        split = self.log_.split_random(0, 0, each=made.training_rows)
        encoder = split.encoder()
        self.trainer_ = self._trainer(made.for_encoder(encoder, dim=self.dim, **given), encoder)
        return self._fit(split.train, len(split.train), epochs=self.epochs)

    def recommend(
        self, users: Any, k: int = 10, *, include_seen: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the k best items for each user and their scores, (n, k) each, best first.

        Parameters
        ----------
        users : array (n,)
            Values of the user column; a value that `fit` did not see has no history.
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
        return values[ids], scores  # the id -1, for no item, selects the last value, None

    def predict(self, X: Any) -> np.ndarray:
        """Return the best item for the user of each row, (n,); `X` has the user column."""
        return self.recommend(X[self.user], 1)[0][:, 0]

    def score(self, X: Any, y: None = None) -> float:
        """Return NDCG@10 of the choices in `X`, ranked among items that the user had not chosen."""
        check_is_fitted(self)
        log = self._read(X)
        offsets = offsets_of(np.bincount(log.user))
        wanted = pa.LargeListArray.from_arrays(offsets, log.item)
        rows = self._rows(log.users).append_column("item", wanted)
        return float(self.trainer_.evaluate(rows)["ndcg@10"])

    def _read(self, X: Any) -> Interactions:
        return Interactions.read(X, user=self.user, item=self.item, time=self.time)

    def _rows(self, users: pa.Array) -> pa.Table:
        """Return the users with the items that they chose in `fit`."""
        try:
            users = users.cast(self.log_.users.type)
        except pa.ArrowException as error:
            raise DataError(f"users are {users.type}, unlike users in fit: {error}") from None
        number = pc.index_in(users, value_set=self.log_.users).fill_null(-1).to_numpy()
        begin, end = (np.searchsorted(self.log_.user, number, side) for side in ("left", "right"))
        seen = one_each(np.arange(len(self.log_))).between(begin, end)
        history = seen.as_lists(self.log_.item.take(pa.array(seen.ids)))
        return pa.table({"user": users, "history": history})
