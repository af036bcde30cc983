# SPDX-License-Identifier: Apache-2.0
"""What an update of a table costs, sparse and dense, in time, bytes and memory, on this machine.

Read `case` (one thing to measure), `arms` (the ways to update, a rule table), `measure` (how a step
is timed), `sweeps` (which cases), `report` (what was found and where the arms cross).
"""

from sparsetrain.compare.arms import ARMS as ARMS
from sparsetrain.compare.arms import Arm as Arm
from sparsetrain.compare.case import Case as Case
from sparsetrain.compare.comparison import run as run
from sparsetrain.compare.figures import draw as draw
from sparsetrain.compare.measurement import Measurement as Measurement
from sparsetrain.compare.peers import open_peers as open_peers
from sparsetrain.compare.report import Crossing as Crossing
from sparsetrain.compare.report import LeftOut as LeftOut
from sparsetrain.compare.report import Report as Report
from sparsetrain.compare.sweeps import AXES as AXES
from sparsetrain.compare.sweeps import FORMULAS as FORMULAS
from sparsetrain.compare.sweeps import Item as Item
from sparsetrain.compare.sweeps import plan as plan
from sparsetrain.compare.tables import Tables as Tables
from sparsetrain.compare.tables import tables_of_data as tables_of_data
from sparsetrain.compare.tables import tables_of_rows as tables_of_rows
from sparsetrain.compare.tables import tables_of_run as tables_of_run
from sparsetrain.compare.tables import with_storage as with_storage
from sparsetrain.system.exports import public_names as _public_names

__all__, __dir__ = _public_names(globals())
