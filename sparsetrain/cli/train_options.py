# SPDX-License-Identifier: Apache-2.0
"""The options of `sparsetrain train`, one type each; None is what was not given."""

from pathlib import Path
from typing import Annotated, Any

import typer

from sparsetrain.cli.options import default_of


def _setting(flag: str, text: str, metavar: str | None = None) -> Any:
    """An option that is short for a setting, whose default its help tells."""
    default = default_of(flag)
    told = "" if default is None or default is False else f"  [default: {default}]"
    return typer.Option(flag, metavar=metavar, help=text + told)


Train = Annotated[
    list[Path] | None, typer.Argument(metavar="TRAIN", help="Files or folders to train on.")
]
File = Annotated[Path | None, typer.Option(metavar="FILE", help="File or folder to score on.")]
ValidShare = Annotated[
    float | None, _setting("--valid-share", "Hold out a share of TRAIN, by chance.")
]
ValidFrom = Annotated[
    str | None,
    typer.Option("--valid-from", metavar="TIME", help="Hold out TRAIN's rows from then on."),
]
TimeColumn = Annotated[
    str | None, typer.Option("--time-column", help="What --valid-from is about.")
]
Out = Annotated[
    Path | None, typer.Option(metavar="FOLDER", help="Save the run in this new folder.")
]
Optimizer = Annotated[
    str | None,
    _setting(
        "--optimizer",
        "sgd, momentum, nesterov, adagrad, rowwise_adagrad, rmsprop, adam, adamw or ftrl.",
    ),
]
Lr = Annotated[float | None, _setting("--lr", "Learning rate.")]
BatchSize = Annotated[int | None, _setting("--batch-size", "Rows per step.")]
Epochs = Annotated[int | None, _setting("--epochs", "Passes over TRAIN.")]
Seed = Annotated[int | None, _setting("--seed", "Of weights and row order.")]
Target = Annotated[str | None, _setting("--target", "auto, cpu, cuda or llvm.")]
Precision = Annotated[
    str | None,
    _setting("--precision", "Of matrix products: float32, bf16, or fp16 on CUDA."),
]
TableDtype = Annotated[
    str | None,
    _setting("--table-dtype", "Of stored embeddings: float32, bfloat16 or float16."),
]
LossScale = Annotated[
    str | None,
    _setting("--loss-scale", "Of the reverse pass.", "NUMBER|dynamic"),
]
MinCount = Annotated[int | None, _setting("--min-count", "Rarer categories share one row.")]
Schema = Annotated[
    str | None,
    typer.Option(
        "--schema", metavar="FILE", help="Names the columns, where they are not Criteo's."
    ),
]
Weights = Annotated[
    str | None,
    typer.Option("--weights", metavar="COLUMN", help="A factor for each row's loss, 0 or more."),
]
StartFrom = Annotated[
    Path | None,
    typer.Option(
        metavar="RUN", help="Begin with that run's weights; values new in TRAIN get rows."
    ),
]
Resume = Annotated[
    str | None,
    typer.Option(metavar="RUN|auto", help="Go on with a run; auto: with --out, if it is one."),
]
AllowChanged = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME", help="What may differ from that run: data, validation, a setting."
    ),
]
CheckpointEvery = Annotated[
    int | None, _setting("--checkpoint-every", "Steps; also after each epoch.")
]
ValidateEvery = Annotated[int | None, _setting("--validate-every", "Steps; also after each epoch.")]
EarlyStopping = Annotated[
    int | None,
    _setting("--early-stopping", "End after so many validations without progress."),
]
CheckNumerics = Annotated[
    bool | None,
    _setting("--check-numerics", "Find the first value that is not finite."),
]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Say of each table how it is updated, and why.")
]
Profile = Annotated[
    bool, typer.Option("--profile", help="Tell where a step spends its time, by kernels.")
]
