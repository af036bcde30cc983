# SPDX-License-Identifier: Apache-2.0
"""From click logs to batches: find the columns, learn an encoding, convert, stream and shuffle.

Folders follow the way of the data, and each uses only those before it: `values` (one column, read
strictly), `schema` (which columns there are), `read` (rows as they are stored), `encode` (values to
ids and numbers), `stream` (rows to batches, in which order). Beside them lie `conversion` (raw logs
to encoded parquet) and `inspect`, which end the way, and `synthetic`, which begins it. What leaves
is a `Batch` with its `Position`.
"""

from sparsetrain.data.batch import Batch as Batch
from sparsetrain.data.conversion import convert_files as convert_files
from sparsetrain.data.encode.encoder import Encoder as Encoder
from sparsetrain.data.encode.encoder import read_encoder as read_encoder
from sparsetrain.data.encode.reserved import Share as Share
from sparsetrain.data.inspect import Profile as Profile
from sparsetrain.data.inspect import profile as profile
from sparsetrain.data.position import Position as Position
from sparsetrain.data.ragged import Ragged as Ragged
from sparsetrain.data.read.held_out import split_share as split_share
from sparsetrain.data.read.held_out import split_time as split_time
from sparsetrain.data.read.inputs import open_source as open_source
from sparsetrain.data.read.inputs import require_labels as require_labels
from sparsetrain.data.read.source import BatchSource as BatchSource
from sparsetrain.data.read.source import Source as Source
from sparsetrain.data.schema.columns import Columns as Columns
from sparsetrain.data.schema.columns import find_columns as find_columns
from sparsetrain.data.schema.schema import ColumnRule as ColumnRule
from sparsetrain.data.schema.schema import Derived as Derived
from sparsetrain.data.schema.schema import Linear as Linear
from sparsetrain.data.schema.schema import Schema as Schema
from sparsetrain.data.schema.schema import TextFormat as TextFormat
from sparsetrain.data.stream.dataset import Dataset as Dataset
from sparsetrain.data.synthetic import SyntheticCriteo as SyntheticCriteo
from sparsetrain.data.synthetic import Truth as Truth
from sparsetrain.data.synthetic import read_truth as read_truth
from sparsetrain.system.exports import public_names as _public_names

__all__, __dir__ = _public_names(globals())
