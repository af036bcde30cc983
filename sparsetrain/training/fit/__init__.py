# SPDX-License-Identifier: Apache-2.0
"""One call of `Trainer.fit`: its arguments, its state, and the actions due after a step.

- `call`: the method itself
- `arguments`: checks of a call, the settings that a run fixes, and the result as a table
- `resume`: the initial state of a run
- `loop`: steps, and validations and checkpoints when they are due
- `record`: log and checkpoints; adds step, position and memory to errors
- `best`: the weights at the end of early stopping
"""

from sparsetrain.training.fit.arguments import EarlyStopping as EarlyStopping
from sparsetrain.training.fit.arguments import FitArguments as FitArguments
from sparsetrain.training.fit.arguments import History as History
from sparsetrain.training.fit.arguments import ReduceLROnPlateau as ReduceLROnPlateau
from sparsetrain.training.fit.arguments import check_fit_arguments as check_fit_arguments
from sparsetrain.training.fit.loop import Fit as Fit
from sparsetrain.training.fit.resume import Seen as Seen
from sparsetrain.training.fit.resume import begin as begin
from sparsetrain.training.fit.resume import seen_of as seen_of
