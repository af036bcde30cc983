# SPDX-License-Identifier: Apache-2.0
"""Settings: who wins, what is refused, and that a refusal names where the value was written."""

import inspect
import json
import os

import pytest

from sparsetrain.cli import main
from sparsetrain.cli.listings import as_toml
from sparsetrain.cli.settings import DataSettings, Settings, resolve_settings, settings_of
from sparsetrain.cli.settings.fields import fields_of, flags_of
from sparsetrain.cli.settings.optimizer import OptimizerSettings
from sparsetrain.cli.settings.resolve import Entry, parse_text
from sparsetrain.errors import ConfigError
from sparsetrain.optim import OPTIMIZERS

LAST = [*OPTIMIZERS][-1]
TOML = "[train]\nepochs = 2\nbatch_size = 64\nseed = 1\n[model]\nbottom = [32, 16]\n"


def written(tmp_path, text, name="run.toml"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_defaults_are_the_documented_ones():
    settings = settings_of("dlrm")()
    assert (settings.data.min_count, settings.model.dim, settings.train.batch_size) == (5, 16, 128)
    assert (settings.optimizer.name, settings.optimizer.lr) == ("adagrad", 0.02)


def test_each_layer_wins_over_the_one_before(tmp_path):
    settings = resolve_settings(
        file=written(tmp_path, TOML + "[data]\nmin_count = 9\n"),
        environ={
            "SPARSETRAIN_TRAIN__BATCH_SIZE": "32",
            "SPARSETRAIN_TRAIN__SEED": "2",
            "SPARSETRAIN_MODEL__DIM": "8",
        },
        options=[Entry("train.seed", 3, "--seed"), Entry("model.dim", 4, "--dim")],
        overrides=["model.dim=2"],
    )
    assert settings.data.min_count == 9
    assert settings.train.model_dump(include={"batch_size", "epochs", "seed"}) == {
        "batch_size": 32,
        "epochs": 2,
        "seed": 3,
    }
    assert settings.model.dim == 2
    assert settings.model.bottom == (32, 16)


@pytest.mark.parametrize("nothing", ["", " ", "none"])
def test_an_empty_value_takes_back_what_was_said_before(tmp_path, nothing):
    file = written(tmp_path, "[optimizer]\nclip_norm = 1.0\nlr = 0.5\n")
    settings = resolve_settings(
        file=file,
        environ={"SPARSETRAIN_OPTIMIZER__CLIP_NORM": "2"},
        options=[Entry("optimizer.lr", 0.25, "--lr")],
        overrides=["optimizer.clip_norm=3", f"optimizer.clip_norm={nothing}", "optimizer.lr="],
        base=[Entry("optimizer.clip_norm", 4.0, "the settings of run")],
    )
    assert settings == settings_of("dlrm")()


def test_what_is_said_behind_an_empty_value_holds():
    assert resolve_settings(overrides=["train.epochs=", "train.epochs=2"]).train.epochs == 2


def test_yaml_reads_like_toml(tmp_path):
    pytest.importorskip("yaml")
    path = written(tmp_path, "train: {epochs: 2}\nmodel: {bottom: [32, 16]}\n", "run.yaml")
    assert resolve_settings(file=path) == resolve_settings(
        overrides=["train.epochs=2", "model.bottom=32,16"]
    )


def test_yaml_cannot_name_python_objects(tmp_path):
    pytest.importorskip("yaml")
    path = written(tmp_path, "train: !!python/object/apply:os.getcwd []\n", "run.yaml")
    with pytest.raises(ConfigError, match="not valid YAML"):
        resolve_settings(file=path)


def test_resolved_settings_fit_json_and_read_back():
    settings = resolve_settings(overrides=["model.top=8,4", "data.max_rows=1000"])
    values = json.loads(json.dumps(settings.to_dict()))
    assert settings_of("dlrm").model_validate(values) == settings


@pytest.mark.parametrize(
    "text, value",
    [
        ("3", 3),
        ("0.5", 0.5),
        ("1e-3", 1e-3),
        ("true", True),
        ("adagrad", "adagrad"),
        ("64,32", [64, 32]),
        ("[64, 32]", [64, 32]),
        ("none", None),
        ("", ""),
        ("1\nother = 2", "1\nother = 2"),
    ],
)
def test_text_becomes_the_value_it_stands_for(text, value):
    assert parse_text(text) == value


@pytest.mark.parametrize(
    "name",
    [
        "SPARSETRAIN_SAMPLE_DATA",
        "SPARSETRAIN_TRACEBACK",
        "SPARSETRAIN_CACHE",
        "SPARSETRAIN_DATA",
        "OTHER_TRAIN__EPOCHS",
    ],
)
def test_variables_without_a_section_and_two_underscores_are_left_alone(name):
    assert resolve_settings(environ={name: "/somewhere"}) == settings_of("dlrm")()


ENV = "environment variable SPARSETRAIN_"
REFUSED_TEXTS = [
    # (--set texts, environment, what the message says)
    (["train.epoch=2"], {}, "--set: unknown setting 'train.epoch'; did you mean 'train.epochs'?"),
    (["epochs=2"], {}, "--set: unknown setting 'epochs'; did you mean 'train.epochs'?"),
    (["optim.lr=2"], {}, "--set: unknown setting 'optim.lr'; did you mean 'optimizer.lr'?"),
    (["zzzz=2"], {}, "--set: unknown setting 'zzzz'; settings are data.min_count, "),
    (["train.epochs"], {}, "--set train.epochs: expected section.key=value"),
    (["train.epochs"], {}, "; section.key= for its default"),
    (["epochs="], {}, "--set: unknown setting 'epochs'; did you mean 'train.epochs'?"),
    (["train.epochs=none"], {}, "a valid integer; --set train.epochs= restores its default, 1"),
    (["train.keep=None"], {}, "= 'None' must be a valid integer; --set train.keep= restores its d"),
    (["optimizer.clip_norm=null"], {}, "; --set optimizer.clip_norm= leaves it unset"),
    ([], {"SPARSETRAIN_OPTIMIZER__EPS": ""}, "a valid number; --set optimizer.eps= leaves it un"),
    (["=2"], {}, "--set =2: expected section.key=value"),
    (["train.epochs=0"], {}, "--set: train.epochs = 0 must be greater than or equal to 1"),
    (["train.epochs=2.5"], {}, "--set: train.epochs = 2.5 must be a valid integer"),
    (["train.epochs=two"], {}, "--set: train.epochs = 'two' must be a valid integer"),
    (["train.epochs=true"], {}, "--set: train.epochs = True must be a valid integer"),
    (["train.shuffle=1"], {}, "--set: train.shuffle = 1 must be a valid boolean"),
    (["optimizer.lr=nan"], {}, "--set: optimizer.lr = nan must be"),
    (["optimizer.lr=-1"], {}, "--set: optimizer.lr = -1 must be greater than 0"),
    (["optimizer.name=lamb"], {}, "--set: optimizer.name = 'lamb' must be 'sgd', 'momentum', "),
    (["optimizer.name=adagard"], {}, f" or {LAST!r}; did you mean 'adagrad'?"),
    (["optimizer.name=Adam"], {}, "; did you mean 'adam'?"),
    (["optimizer.mode=lzy"], {}, "'lazy', 'exact', 'closed' or 'dense'; did you mean 'lazy'?"),
    (["train.monitor=acu"], {}, "= 'acu' must be a score: logloss, ne, auc, "),
    (["train.monitor=ndcg"], {}, "precision@K, map@K; did you mean 'ndcg@K'?"),
    (["model.name=DLMR"], {}, "(your own: MODULE:CLASS); did you mean 'dlrm'?"),
    (["model.bottom=big"], {}, "--set: model.bottom = 'big' must be a list"),
    (["model.bottom=true"], {}, "--set: model.bottom = True must be a valid integer"),
    (["model.bottom=64,0"], {}, "--set: model.bottom = 0 must be greater than or equal to 1"),
    (["optimizer.name=sgd", "optimizer.eps=1"], {}, "--set: sgd has no option 'eps'; its options"),
    (["model.interaction=crss"], {}, "--set: model.interaction = 'crss' must be 'dot', 'cross'"),
    (["model.cross_rank=8"], {}, "DLRM: cross_rank is for interaction='cross'; 'dot' has no"),
    (
        ["model.name=deepfn"],
        {},
        "--set: there is no model 'deepfn' (your own: MODULE:CLASS); did you mean 'deepfm'?",
    ),
    (["model.name=mf", "model.table_dtype=float16"], {}, "'float16'; mf needs float32 tables"),
    (["model.label_weights={like=-1}"], {}, "label_weights.like is -1.0; it must be finite"),
    (["model.name=fm", "model.top=8"], {}, "--set: unknown setting 'model.top'"),
    (["model.interaction=cross", "model.cross_rank=0"], {}, "--set: model.cross_rank = 0 must be"),
    (["model.cross_layers=-1"], {}, "--set: model.cross_layers = -1 must be greater than or"),
    ([], {"SPARSETRAIN_TRAIN__EPOCH": "2"}, ENV + "TRAIN__EPOCH: unknown setting 'train.epoch'"),
    ([], {"SPARSETRAIN_TRIAN__EPOCHS": "2"}, "did you mean 'train.epochs'?"),
    ([], {"SPARSETRAIN_TRAIN__EPOCHS": "x"}, ENV + "TRAIN__EPOCHS: train.epochs = 'x' must be"),
    (
        [],
        {"SPARSETRAIN_TRAIN_EPOCHS": "2"},
        "two underscores follow the section: SPARSETRAIN_TRAIN_",
    ),
]


@pytest.mark.parametrize("overrides, environ, message", REFUSED_TEXTS)
def test_a_wrong_setting_is_refused_in_one_line_that_names_its_origin(overrides, environ, message):
    with pytest.raises(ConfigError) as caught:
        resolve_settings(environ=environ, overrides=overrides)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


REFUSED_FILES = [
    # (file name, its text, what the message says after the path)
    ("a.toml", "[train]\nepochs = ", ": not valid TOML: "),
    ("a.toml", "[train]\nepoch = 1\n", ": unknown setting 'train.epoch'; did you mean"),
    ("a.toml", "epochs = 1\n", ": unknown setting 'epochs'; did you mean 'train.epochs'?"),
    ("a.toml", "train = 1\n", ": unknown setting 'train'; "),
    ("a.toml", "[other]\n", ": unknown setting 'other'; "),
    ("a.toml", "[train.epochs]\nx = 1\n", ": train.epochs = {'x': 1} must be a valid integer"),
    ("a.ini", "[train]\n", ": unsupported file type: use .toml, .yaml, .yml"),
    ("a.yaml", "- train\n", ": expected sections such as [train]"),
    ("a.yaml", "train: [\n", ": not valid YAML: "),
]


@pytest.mark.parametrize("name, text, message", REFUSED_FILES)
def test_a_wrong_file_is_refused_in_one_line_that_names_it(tmp_path, name, text, message):
    if name.endswith("yaml"):
        pytest.importorskip("yaml")
    path = written(tmp_path, text, name)
    with pytest.raises(ConfigError) as caught:
        resolve_settings(file=path)
    assert str(caught.value).startswith(f"{path}{message}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "make, reason",
    [
        (lambda path: None, "No such file or directory"),
        (lambda path: path.mkdir(), "Is a directory"),
        (lambda path: path.write_bytes(b"\xff\xfe"), "settings must be UTF-8 text"),
    ],
)
def test_an_unreadable_file_is_refused(tmp_path, make, reason):
    path = tmp_path / "run.toml"
    make(path)
    with pytest.raises(ConfigError, match=reason):
        resolve_settings(file=path)


def test_one_hidden_layer_needs_no_list():
    assert resolve_settings(overrides=["model.bottom=32"]).model.bottom == (32,)


def keywords(function):
    made = function.__init__ if inspect.isclass(function) else function
    return {*inspect.signature(made).parameters} - {"self"}


def test_the_settings_of_an_optimizer_are_the_options_of_the_constructors():
    from sparsetrain import optim

    numbers = {name for make in optim.OPTIMIZERS for name in optim.options_of(make)}
    settings = set(OptimizerSettings.model_fields)
    assert numbers - settings == set()
    values = {"mode": "exact", "max_replayed_steps": 5, "update": "sparse", "average": 0.5}
    values |= {"on_nonfinite": "skip", "decoupled": True, "groups": []}
    for name, make in optim.OPTIMIZERS.items():
        known = optim.options_of(name)
        for option in numbers - {*known}:
            with pytest.raises(ConfigError, match=f"{name} has no option '{option}'; its options"):
                make(0.1, **{option: 0.5})
            text = "true" if option == "decoupled" else "0.5"
            with pytest.raises(ConfigError, match=f"{name} has no option '{option}'"):
                resolve_settings(overrides=[f"optimizer.name={name}", f"optimizer.{option}={text}"])
        for option in {*known} - {"lr", "max_replayed_steps"}:
            make(0.1, **{"mode": "exact", option: values.get(option, 0.5)})


def test_every_section_fits_what_it_is_given_to():
    from sparsetrain import data, models
    from sparsetrain.models.arguments import OF_DATA

    assert set(DataSettings().encoding()) <= keywords(data.Encoder.fit)
    assert set(DataSettings().encoding()) <= keywords(data.convert_files)
    for name, model in models.MODELS.items():
        section = type(settings_of(name)().model).model_fields.keys() - {"name"}
        assert models.options_of(model).keys() | {"table_dtype"} == section
        assert keywords(model) - OF_DATA - {"rest", "ranking"} <= section


def test_defaults_of_the_data_section_are_those_of_the_encoder():
    from sparsetrain.data import Encoder

    signature = inspect.signature(Encoder.fit).parameters
    own = {"numbers": "best"}  # a command has a model, for which it chooses
    for name, value in DataSettings().encoding().items():
        assert own.get(name, signature[name].default) == value


def test_every_setting_says_what_it_means():
    from sparsetrain import models

    for model in models.MODELS:
        for key, field in fields_of(settings_of(model)):
            assert field.description and field.description.endswith("."), (model, key)


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["model.top=64,32", "optimizer.name=adam", "optimizer.beta1=0.5", "train.shuffle=false"],
        [
            'optimizer.groups=[{match = "*.bias", weight_decay = 0.0}]',
            "data.valid_from='2014-10-30'",
        ],
        ["data.schema_file=/d/\U0001f600\x7f.toml"],
    ],
    ids=["defaults", "numbers and lists", "groups and texts", "no plain letters"],
)
def test_listed_settings_read_back(overrides, tmp_path):
    settings = resolve_settings(overrides=overrides)
    assert resolve_settings(written(tmp_path, as_toml(settings))) == settings


def test_a_setting_with_a_flag_is_an_option_of_train(capsys):
    assert main(["train", "--help"]) == 0
    options = set(capsys.readouterr().out.split())
    scoring = {"--warn-unseen"}
    assert {flag.name for flag in flags_of(Settings)} - options == scoring


def test_settings_cannot_be_changed():
    with pytest.raises(ValueError, match="frozen"):
        Settings().train.epochs = 3


def test_a_schedule_and_groups_reach_the_optimizer():
    from sparsetrain.cli.trainers import make_optimizer

    settings = resolve_settings(
        overrides=[
            *("optimizer.name=adamw", "optimizer.mode=exact", "optimizer.lr=0.1"),
            *("optimizer.warmup=4", "optimizer.schedule=cosine", "optimizer.schedule_steps=10"),
            'optimizer.groups=[{match = "embeddings.*", scale = 0.5, lr = 0}]',
        ]
    )
    made = make_optimizer(settings)
    assert (made.formula.name, made.mode, made.groups[0].scale) == ("adamw", "exact", 0.5)
    assert made.groups[0].lr == 0  # a table that stays as it is
    assert [made.hyper["lr"](step) for step in (2, 10)] == pytest.approx([0.0452, 0], abs=1e-4)
    assert (
        settings_of("dlrm").model_validate(json.loads(json.dumps(settings.to_dict()))) == settings
    )


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["optimizer.name=adamw", "optimizer.decoupled=true"], "adamw has no option 'decoupled'"),
        (["optimizer.floor=0.1"], "schedule 'constant' has no 'floor'; its settings are none"),
        (["optimizer.schedule=cosine"], "schedule 'cosine' needs optimizer.schedule_steps"),
        (
            ["optimizer.mode=sparse"],
            "--set: optimizer.mode = 'sparse' must be 'lazy', 'exact', 'closed' or",
        ),
        (["optimizer.groups=[{math='a'}]"], "optimizer.groups"),
        (["optimizer.accumulate=0"], "--set: optimizer.accumulate = 0 must be greater than"),
    ],
)
def test_an_optimizer_setting_that_would_be_ignored_is_refused(overrides, message):
    with pytest.raises(ConfigError, match=message):
        resolve_settings(overrides=overrides)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("deep.toml", f"a = {'[' * 5000}{']' * 5000}", "not valid TOML: "),
        ("long.toml", f"[train]\nseed = {'9' * 5000}", "not valid TOML: "),
        ("deep.yaml", "[" * 5000 + "]" * 5000, "not valid YAML: "),
        ("long.yaml", f"train: {{seed: {'9' * 5000}}}", "not valid YAML: "),
        (
            "twice.yaml",
            "train:\n  seed: 1\n  seed: 2\n",
            "not valid YAML: duplicate key 'seed'",
        ),
    ],
    ids=["deep TOML", "long TOML", "deep YAML", "long YAML", "YAML key twice"],
)
def test_a_settings_file_that_breaks_its_parser_is_refused(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=message):
        resolve_settings(tmp_path / name)


def test_a_settings_file_that_never_ends_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe.toml")
    (tmp_path / "zero.toml").symlink_to("/dev/zero")
    for name in ("pipe", "zero"):
        with pytest.raises(ConfigError, match="cannot read settings: it is not a regular file"):
            resolve_settings(tmp_path / f"{name}.toml")
