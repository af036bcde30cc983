# SPDX-License-Identifier: Apache-2.0
"""The options of `sparsetrain train`, one type each; None is what was not given."""

from pathlib import Path
from typing import Annotated

import typer

Train = Annotated[
    list[Path] | None, typer.Argument(metavar="TRAIN", help="Files or folders to train on.")
]
File = Annotated[Path | None, typer.Option(metavar="FILE", help="File or folder to score on.")]
ValidShare = Annotated[
    float | None, typer.Option("--valid-share", help="Hold out a share of TRAIN, by chance.")
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
    str | None, typer.Option("--optimizer", help="sgd, adagrad, adam, ...; see the docs.")
]
Lr = Annotated[float | None, typer.Option("--lr", help="Learning rate.")]
BatchSize = Annotated[int | None, typer.Option("--batch-size", help="Rows per step.")]
Epochs = Annotated[int | None, typer.Option("--epochs", help="Passes over TRAIN.")]
Seed = Annotated[int | None, typer.Option("--seed", help="Of weights and row order.")]
Target = Annotated[str | None, typer.Option("--target", help="auto, cpu, cuda or llvm.")]
Precision = Annotated[
    str | None,
    typer.Option("--precision", help="Of matrix products: float32, bf16, or fp16 on CUDA."),
]
TableDtype = Annotated[
    str | None,
    typer.Option("--table-dtype", help="Of stored embeddings: float32, bfloat16 or float16."),
]
LossScale = Annotated[
    str | None,
    typer.Option("--loss-scale", metavar="NUMBER|dynamic", help="Of the reverse pass."),
]
MinCount = Annotated[
    int | None, typer.Option("--min-count", help="Rarer categories share one row.")
]
Schema = Annotated[
    str | None, typer.Option("--schema", metavar="FILE", help="Names columns not Criteo's.")
]
Resume = Annotated[
    str | None,
    typer.Option(metavar="RUN|auto", help="Go on with a run; auto: with --out, if it is one."),
]
AllowChanged = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="What may differ from the resumed run: data, a setting."),
]
CheckpointEvery = Annotated[
    int | None, typer.Option("--checkpoint-every", help="Steps; also after each epoch.")
]
ValidateEvery = Annotated[
    int | None, typer.Option("--validate-every", help="Steps; also after each epoch.")
]
EarlyStopping = Annotated[
    int | None,
    typer.Option("--early-stopping", help="End after so many validations without progress."),
]
CheckNumerics = Annotated[
    bool | None,
    typer.Option("--check-numerics", help="Find the first value that is not finite."),
]
Profile = Annotated[
    bool, typer.Option("--profile", help="Tell where a step spends its time, by kernels.")
]
