# SPDX-License-Identifier: Apache-2.0
"""`Trainer.fit` as an object: what was asked for, where it stands, what is due after a step.

`asked` checks a call, `plan` is fixed for the run, `state` is what a checkpoint keeps, `resume`
finds the one to begin with, `loop` moves it, `record` writes it down, `best` keeps what early
stopping ends with, `causes` says more about an error.
"""

from sparsetrain.training.fit.asked import check_asked as check_asked
from sparsetrain.training.fit.loop import Fit as Fit
from sparsetrain.training.fit.plan import EarlyStopping as EarlyStopping
from sparsetrain.training.fit.plan import Plan as Plan
from sparsetrain.training.fit.resume import Seen as Seen
from sparsetrain.training.fit.resume import begin as begin
from sparsetrain.training.fit.resume import seen_of as seen_of
from sparsetrain.training.fit.state import RunState as RunState
