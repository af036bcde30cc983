# SPDX-License-Identifier: Apache-2.0
"""From click logs to batches: find the columns, learn an encoding, convert, stream and shuffle.

Folders follow the way of the data, and each uses only those before it: `values` (one column, read
strictly), `schema` (which columns there are), `read` (rows as they are stored), `encode` (values to
ids and numbers), `stream` (rows to batches, in which order). Beside them lie `conversion` (raw logs
to encoded parquet) and `inspect`, which end the way, and `synthetic`, which begins it. What leaves
is a `Batch` with its `Position`.
"""

from sparsetrain.exports import exported as _exported

from .batch import Batch as Batch
from .conversion import convert_files as convert_files
from .encode.encoder import Encoder as Encoder
from .encode.encoder import read_encoder as read_encoder
from .encode.reserved import Share as Share
from .inspect import Profile as Profile
from .inspect import profile as profile
from .position import Position as Position
from .ragged import Ragged as Ragged
from .read.held_out import split_share as split_share
from .read.held_out import split_time as split_time
from .read.inputs import open_source as open_source
from .read.inputs import require_labels as require_labels
from .read.source import BatchSource as BatchSource
from .read.source import Source as Source
from .schema.columns import Columns as Columns
from .schema.columns import find_columns as find_columns
from .schema.schema import ColumnRule as ColumnRule
from .schema.schema import Derived as Derived
from .schema.schema import Linear as Linear
from .schema.schema import Schema as Schema
from .schema.schema import TextFormat as TextFormat
from .stream.dataset import Dataset as Dataset
from .synthetic import SyntheticCriteo as SyntheticCriteo
from .synthetic import Truth as Truth
from .synthetic import read_truth as read_truth

__all__ = _exported(globals())
