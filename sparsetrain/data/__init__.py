# SPDX-License-Identifier: Apache-2.0
"""Click logs to batches: schemas, readers, encoders, conversion, streaming and shuffling.

Folders follow the order of the pipeline, and each imports only earlier ones: `values` (strict
readers of columns), `derived` (columns computed from stored ones), `dense` (kinds of dense inputs),
`schema` (names and roles of columns), `read` (sources of raw rows), `encode` (values to ids and
numbers), `stream` (rows to batches). `conversion` writes encoded parquet, `profiling` describes
data, `infer` makes schemas, `interactions` splits logs for ranking, `synthetic` generates data. The
result is a `Batch` with its `Position`.
"""

from sparsetrain.data.batch import Batch as Batch
from sparsetrain.data.batch import Position as Position
from sparsetrain.data.conversion import convert_files as convert_files
from sparsetrain.data.encode.encoder import Encoder as Encoder
from sparsetrain.data.encode.encoder import read_encoder as read_encoder
from sparsetrain.data.encode.reader import require_labels as require_labels
from sparsetrain.data.infer import Inferred as Inferred
from sparsetrain.data.infer import infer as infer
from sparsetrain.data.interactions import Interactions as Interactions
from sparsetrain.data.interactions import Split as Split
from sparsetrain.data.profiling import Profile as Profile
from sparsetrain.data.profiling import profile as profile
from sparsetrain.data.ragged import Ragged as Ragged
from sparsetrain.data.read.open_source import open_source as open_source
from sparsetrain.data.read.source import Source as Source
from sparsetrain.data.read.split import split_share as split_share
from sparsetrain.data.read.split import split_time as split_time
from sparsetrain.data.read.split import split_windows as split_windows
from sparsetrain.data.rows import BatchSource as BatchSource
from sparsetrain.data.rows import Share as Share
from sparsetrain.data.schema.column_rule import ColumnRule as ColumnRule
from sparsetrain.data.schema.column_rule import Linear as Linear
from sparsetrain.data.schema.column_rule import TextFormat as TextFormat
from sparsetrain.data.schema.columns import Columns as Columns
from sparsetrain.data.schema.columns import find_columns as find_columns
from sparsetrain.data.schema.derived import Derived as Derived
from sparsetrain.data.schema.numbers import with_buckets as with_buckets
from sparsetrain.data.schema.schema import Schema as Schema
from sparsetrain.data.stream.dataset import Dataset as Dataset
from sparsetrain.data.synthetic import SyntheticCriteo as SyntheticCriteo
from sparsetrain.data.synthetic import Truth as Truth
from sparsetrain.data.synthetic import read_truth as read_truth
from sparsetrain.system.exports import public_names as _public_names

__all__, __dir__ = _public_names(globals())
