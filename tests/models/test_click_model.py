# SPDX-License-Identifier: Apache-2.0
"""Models of one's own: the page about them runs; what could not be loaded is refused at once."""

import pickle
import re
from copy import deepcopy
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tvm import relax
from tvm.relax.frontend import nn

import sparsetrain as st
from sparsetrain.errors import CheckpointError, ConfigError
from sparsetrain.models import DLRM, ClickModel
from tests.small_dlrm import assert_same_state

PAGE = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
OF_DLRM, CODE = BLOCKS[:5], BLOCKS[5:]


def _clicks(rows: int) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    made = pd.DataFrame(
        {
            "user": rng.integers(0, 40, rows),
            "item": rng.integers(0, 30, rows),
            "tags": [rng.integers(0, 10, rng.integers(0, 4)) for _ in range(rows)],
            "price": rng.gamma(2.0, 5.0, rows).round(2),
            "weight": rng.random(rows),
        }
    )
    return made.assign(click=(rng.random(rows) < 0.1 + 0.02 * made["item"]).astype(int))


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> dict:
    """The names of the page after its code has run."""
    clicks, folder = _clicks(1_500), tmp_path_factory.mktemp("page")
    names: dict = {"train": clicks[:1_200], "valid": clicks[1_200:], "candidates": clicks[:50]}
    names["batches"] = [_of_towers(clicks[at : at + 100]) for at in range(0, 1_200, 100)]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for block in CODE[:2]:
            exec(block, names)
        names["fitted"] = names["trainer"]
        for block in CODE[2:]:
            exec(block, names)
    return {**names, "folder": folder}


def _of_towers(rows: pd.DataFrame) -> dict[str, np.ndarray]:
    lengths = rows["tags"].str.len().to_numpy()
    return {
        "labels": rows["click"].to_numpy(),
        "user": rows["user"].to_numpy(),
        "item": rows["item"].to_numpy(),
        "tags": np.concatenate(rows["tags"].to_list()),
        "offsets": np.concatenate([[0], lengths.cumsum()]),
    }


def test_the_models_that_are_there_are_made_as_the_page_makes_them():
    train = _clicks(100).rename(columns={"click": "label"})
    rule = {"item": st.data.ColumnRule(share_embedding="user")}
    schema = st.data.Schema("label", ("price",), ("user", "item"), columns=rule)
    names = {"st": st, "rows": [40, 30], "encoder": st.data.Encoder.fit(train, schema=schema)}
    names |= {"schema": schema, "train": train}
    for block in OF_DLRM:
        exec(block, names)
    (tables,) = names["model"].tables().values()
    assert list(tables) == ["user"]


def test_a_model_of_ones_own_is_trained_saved_and_loaded(page):
    assert page["fitted"].steps and page["trainer"] is not page["fitted"]
    expected = page["fitted"].predict(page["candidates"])
    assert page["probabilities"].tobytes() == expected.tobytes()
    assert page["trainer"].evaluate(page["valid"])["rows"] == 300
    assert page["scores"].shape == (100,)


def test_a_loop_goes_on_from_what_it_saved(page):
    batches = page["batches"]
    assert page["extra"] == {"batches": len(batches)} and page["state"].step == 2 * len(batches)
    params = page["program"].place(page["fresh"](seed=0))
    state = page["optimizer"].init(params)
    for batch in [*batches, *batches]:
        _, gradients = page["program"](params, batch)
        page["optimizer"].apply_(params, gradients, state)
    for name, param in params.items():
        assert param.numpy().tobytes() == page["params"][name].numpy().tobytes()


def test_it_is_quantized_like_any_model(page):
    probabilities = page["trainer"].quantized().predict(page["candidates"])
    np.testing.assert_allclose(probabilities, page["probabilities"], atol=0.02)


def test_initial_weights_are_changed_where_they_are_made(page):
    assert not page["Normed"]([5], num_dense=2).initialize(0)["linear.bias"].numpy().any()


def test_loading_a_class_of_ones_own_needs_the_class(page):
    with pytest.raises(CheckpointError, match=r"model 'DeepFM' is unknown.*model=THE_CLASS"):
        st.load(page["folder"] / "deepfm")
    with pytest.raises(CheckpointError, match="its model is 'DeepFM', not 'dlrm', the kind of"):
        st.load_predictor(page["folder"] / "deepfm", model=DLRM)


@pytest.mark.parametrize("change", ["without the last", "one too many"])
def test_bags_that_are_not_as_many_as_rows_are_refused(page, change):
    batch = dict(page["batches"][0])
    # A bag that is empty at an end keeps the offsets within the ids: only their number is wrong.
    offsets = np.append(batch["offsets"], batch["offsets"][-1])
    batch["offsets"] = offsets if change == "one too many" else np.append([0], offsets[3:])
    with pytest.raises(st.errors.DataError, match=r"\(bags_plus_1 - 1, 1, 8\) to \(B, 8\).*offset"):
        page["program"](page["params"], batch)


def test_a_subclass_has_a_kind_of_its_own():
    class Other(DLRM):
        pass

    class Named(ClickModel):
        kind = "named"

    assert (DLRM.kind, Other.kind, Named.kind) == ("dlrm", "Other", "named")


class Base(ClickModel):
    def __init__(self, rows, hidden=4, **rest):
        super().__init__(rows, 4, 3, **rest)
        self.hidden = hidden
        self.layer = nn.Linear(3, hidden)
        self.last = nn.Linear(hidden, 1)

    def config(self):
        plain = {"rows": self._config["rows"], "names": self._config["names"]}
        return {**plain, "hidden": self.hidden}

    def forward(self, dense, embedded):
        return self.last(self.layer(dense))


@pytest.mark.parametrize("model", [Base([3, 4], hidden=5), DLRM([3, 4], 8, bottom=[4], top=[4])])
@pytest.mark.parametrize("copied", ["pickled", "copied"])
def test_a_model_is_copied_by_making_it_again(model, copied):
    # What is pickled here was made here.
    made = deepcopy(model) if copied == "copied" else pickle.loads(pickle.dumps(model))  # noqa: S301
    assert type(made) is type(model) and made.config() == model.config()
    optimizer = st.optim.sgd(lr=0.1)
    same = [st.Trainer(one, optimizer=optimizer).state_dict() for one in (made, model)]
    assert same[0].keys() == same[1].keys()
    assert all(np.array_equal(same[0][name], same[1][name]) for name in same[0])


def _class(name, **members):
    """A subclass of `Base` with other methods."""
    return type(name, (Base,), members)


def _describing(name, change):
    """A class whose config is changed."""
    return _class(name, config=lambda self: change(Base.config(self)))


def _taking(argument, keep):
    """A class that takes one more argument, of which its config has what it keeps."""

    class Taking(Base):
        def __init__(self, rows, hidden=4, **rest):
            self.kept = keep(rest.pop(argument, None))
            super().__init__(rows, hidden, **rest)

        def config(self):
            return {**super().config(), argument: self.kept}

    return Taking


Unseen = _describing("Unseen", lambda config: {k: v for k, v in config.items() if k != "names"})


class NotBegun(Base):
    def __init__(self, rows):
        self.last = nn.Linear(3, 1)


def _with(name, made):
    """A class that sets an attribute after the layers of `Base`."""

    class Setting(Base):
        def __init__(self, rows, **rest):
            super().__init__(rows, **rest)
            setattr(self, name, made())

    return Setting


def _parameter():
    return nn.Parameter((3,), "float32")


def _filling(name, change):
    """A class that changes what `initialize` gives."""

    def initialize(self, seed, *, fill=True):
        params = Base.initialize(self, seed, fill=fill)
        change(params)
        return params

    return _class(name, initialize=initialize)


REFUSED = {
    _describing("Lacking", lambda config: {"rows": config["rows"]}): (
        r"a Lacking could not be loaded .* its config\(\) lacks hidden"
    ),
    _describing("TooMuch", lambda config: {**config, "dim": 4}): (
        "does not make the model again: .*'dim'"
    ),
    _describing("Another", lambda config: {**config, "hidden": 5}): (
        "makes a model with different parameters"
    ),
    _describing("NotPlain", lambda config: {**config, "hidden": np.int64(4)}): (
        "does not make the model again: .*int64 is not JSON"
    ),
    _taking("table", lambda table: table or {1: 2}): "makes a model with a different table",
    _taking("slope", lambda _: float("inf")): "does not make the model again: .*not JSON compliant",
    _taking("widths", lambda widths: (1, *(widths or ()))): "makes a model with a different widths",
    NotBegun: r"its constructor does not call super\(\).__init__",
    _class("Claiming", kind="dlrm"): "Claiming has the kind 'dlrm', which is DLRM's",
    _with("dense", _parameter): r"function 'loss' has two arguments called 'dense': an input, "
    r".*\(B, 3\).*, and a parameter, .*\(3,\).*; rename one of them",
    _with("last.bias", _parameter): "two arguments called 'last.bias': a parameter, .*a parameter",
    _with("encoder/x", _parameter): "parameter 'encoder/x', a name that checkpoints use",
    _with("last.bias:sum", _parameter): "Setting has a parameter 'last.bias:sum'",
    _with("embeddings.C1.weight", _parameter): "Setting has a parameter 'embeddings.C1.weight'",
    _with("embeddings.C2.weight:sum", _parameter): "a parameter 'embeddings.C2.weight:sum'",
    _with("optimizer:step", _parameter): "Setting has a parameter 'optimizer:step'",
    _with("", _parameter): "Setting has a parameter ''",
    _filling("OtherShape", lambda params: params.update({"last.bias": np.zeros(3, "f4")})): (
        r"gives float32 \(3\) for 'last.bias'; the model has float32 \(1\)"
    ),
    _filling("OtherDtype", lambda params: params.update({"last.bias": np.zeros(1)})): (
        r"gives float64 \(1\) for 'last.bias'; the model has float32 \(1\)"
    ),
    _filling("Extra", lambda params: params.update({"more": np.zeros(1, "f4")})): (
        r"gives float32 \(1\) for 'more'; the model has nothing"
    ),
    _filling("Less", lambda params: params.pop("last.bias")): (
        r"gives nothing for 'last.bias'; the model has float32 \(1\)"
    ),
    _class("NoForward", forward=ClickModel.forward): (
        r"NoForward has no loss: .* or forward\(dense, embedded\)"
    ),
    _class("NoReturn", forward=lambda self, dense, embedded: None): (
        r"NoReturn: forward gave None; return the logits, an nn.Tensor \(B, 1\)"
    ),
    _class("Flat", forward=lambda self, dense, embedded: nn.op.sum(dense, axis=1)): (
        r"Flat: forward gave the shape \(B\), not \(B, 1\)"
    ),
    _class("Wide", forward=lambda self, dense, embedded: dense): (
        r"Wide: forward gave the shape \(B, 3\), not \(B, 1\)"
    ),
}


@pytest.mark.parametrize("made", REFUSED)
def test_a_class_that_could_not_be_trained_or_loaded_is_refused_before_training(made):
    with pytest.raises(ConfigError, match=REFUSED[made]):
        st.Trainer(made([5, 7]), st.optim.sgd(0.1))


class ByColumn(Base):
    """Has a layer for each of some columns, whose names hold whatever names of columns do."""

    def __init__(self, rows, **rest):
        super().__init__(rows, **rest)
        self.of_columns = nn.ModuleDict({name: nn.Linear(3, 1) for name in ("a/b", "c:d", "é f")})

    def forward(self, dense, embedded):
        return sum(
            (layer(dense) for layer in self.of_columns.values()), super().forward(dense, embedded)
        )


def test_names_of_parameters_may_hold_what_names_of_columns_do(tmp_path):
    trainer = st.Trainer(ByColumn([5, 7]), st.optim.adagrad(0.1))
    trainer.save(tmp_path / "saved")
    assert_same_state(
        st.load(tmp_path / "saved", model=ByColumn).state_dict(), trainer.state_dict()
    )
    assert "of_columns.c:d.weight:sum" in trainer.state_dict()


GIVEN = {"row_weights": True, "pooling": "mean", "table_dtype": "bfloat16", "names": ["a", "b"]}


@pytest.mark.parametrize("name", GIVEN)
def test_what_a_config_leaves_out_is_refused_where_the_model_was_given_it(name):
    with pytest.raises(
        ConfigError, match=f"Unseen .*makes a model with a different {name}: return"
    ):
        st.Trainer(Unseen([5, 7], **{name: GIVEN[name]}), st.optim.sgd(0.1))


class Spare(Base):
    def __init__(self, rows, **rest):
        super().__init__(rows, **rest)
        self.spare = nn.Linear(3, 1)

    def forward(self, dense, embedded):
        total = nn.op.sum(nn.op.sum(embedded, axis=1), axis=1, keepdims=True)  # (B, 1)
        return super().forward(dense, embedded) + total


class Tied(Base):
    def __init__(self, rows, **rest):
        super().__init__(rows, **rest)
        self.again = self.layer


UNUSED = {
    Tied: "Tied: layer.weight and again.weight are one parameter under two names: keep one",
    _class(
        "NoTables"
    ): r"NoTables: the loss does not depend on embedded, so that no table would learn: "
    r"forward\(dense, embedded\) has to use embedded$",
    _class("Frozen", forward=lambda self, dense, embedded: nn.op.zeros((dense.shape[0], 1))): (
        "does not depend on embedded"
    ),
    Spare: "Spare: the loss does not depend on spare.weight, spare.bias, so that they would never "
    "learn: use their layers in forward, or leave them out of the constructor$",
}


@pytest.mark.parametrize("made", UNUSED)
def test_what_forward_leaves_out_is_named_in_its_words(made, capfd):
    batch = st.data.Batch(np.ones((2, 3)), np.zeros((2, 2), int), np.array([0, 1]))
    with pytest.raises(ConfigError, match=UNUSED[made]):
        st.Trainer(made([5, 7]), st.optim.sgd(0.1)).step(batch)
    assert capfd.readouterr().err == ""


def test_initial_weights_may_be_arrays():
    made = _filling("Zeros", lambda params: params.update({"last.bias": np.zeros(1, "f4")}))
    trainer = st.Trainer(made([5, 7]), st.optim.sgd(0.1))
    assert not trainer.params["last.bias"].numpy().any()


def test_tables_become_int8_where_the_class_takes_a_table_dtype():
    class Fixed(ClickModel):
        def __init__(self, rows):
            super().__init__(rows, 4, 3)
            self.last = nn.Linear(3, 1)

        def config(self):
            return {"rows": self._config["rows"]}

        def forward(self, dense, embedded):
            return self.last(dense)

    with pytest.raises(ConfigError, match=r"Fixed has no table_dtype.* pass \*\*rest"):
        st.Trainer(Fixed([5, 7]), st.optim.sgd(0.1)).quantized()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Folders of a model of ours and of one that is not."""
    folder = tmp_path_factory.mktemp("saved")
    st.Trainer(DLRM([5, 7], dim=4, num_dense=3), st.optim.sgd(0.1)).save(folder / "dlrm")
    st.Trainer(Base([5, 7]), st.optim.sgd(0.1)).save(folder / "Base")
    return folder


NO_CLASSES = [5, "DLRM", int, lambda **given: DLRM(**given), ClickModel, DLRM([5])]


@pytest.mark.parametrize("model", NO_CLASSES, ids=lambda model: f"{model!r:.12}")
@pytest.mark.parametrize("load", [st.load, st.load_predictor])
def test_what_is_no_class_of_a_model_is_refused_before_a_folder_is_read(load, model):
    with pytest.raises(ConfigError, match="model is .*; give the class of the saved model"):
        load("no folder", model=model)


def test_a_subclass_reads_what_a_class_of_ours_was_saved_as(saved):
    class Sub(DLRM):
        pass

    assert isinstance(st.load(saved / "dlrm", model=Sub).model, Sub)


def test_errors_of_a_class_name_it_where_it_is_loaded(saved):
    class Fails(Base):
        kind = "Base"

        def __init__(self, rows, **rest):
            raise KeyError("hidden")

    class FailsLater(Base):
        kind = "Base"

        def forward(self, dense, embedded):
            return self.lats(dense)

    with pytest.raises(ConfigError, match=r"Fails\(\*\*saved config\) fails: KeyError\('hidden'\)"):
        st.load(saved / "Base", model=Fails)
    with pytest.raises(ConfigError, match=r"FailsLater's model fails: AttributeError.*'lats'"):
        st.load_predictor(saved / "Base", checkpoint="latest", model=FailsLater)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"names": "AB"}, "DLRM: names is 'AB'; give a list"),
        ({"weighted": "no", "pooling": "sum"}, "DLRM: weighted is 'no'; give True or False"),
    ],
)
def test_arguments_that_mean_something_else_are_refused(given, said):
    with pytest.raises(ConfigError, match=said):
        DLRM([5, 7], **given)


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_by_the_statistics_of_a_batch_is_refused(training):
    class Normed(Base):
        def forward(self, dense, embedded):
            hidden = self.layer(dense)._expr
            one, zero = (relax.const(np.full(self.hidden, n, "f4")) for n in (1, 0))
            normed = relax.op.nn.batch_norm(hidden, one, zero, zero, one, 1, training=training)
            normed = relax.BlockBuilder.current().emit(normed)
            return self.last(nn.wrap_nested(relax.TupleGetItem(normed, 0), "normed"))

    def make() -> st.Trainer:
        return st.Trainer(Normed([3, 4]), st.optim.sgd(0.1))

    if training:
        with pytest.raises(
            ConfigError, match="Normed: batch_norm with training=True does not update"
        ):
            make()
    else:
        make()


def test_a_trainer_refuses_a_loss_that_returns_more():
    class More(ClickModel):
        def forward(self, dense, embedded):
            return nn.op.sum(nn.op.sum(embedded, axis=2), axis=1, keepdims=True)

        def loss(self, labels, *inputs, **named):
            return super().loss(labels, *inputs, **named), labels

    with pytest.raises(ConfigError, match="More: loss gave .*; return the mean loss"):
        st.Trainer(More([5, 7], 4, 3), st.optim.sgd(0.1))
