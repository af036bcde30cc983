# SPDX-License-Identifier: Apache-2.0
"""From click logs to batches: find the columns, learn an encoding, convert, stream and shuffle.

Files come in layers, each using only those before it: `place`, `kinds`, `convert` (words and
gates); `batch`, `table_schema` and `schema` (what is which column); `parquet`, `text_source`,
`tables`, `inputs` (what can be read) and `held_out`; one file per kind of column (`dense`,
`labels`, `vocabulary`, `plain_ids`, `bags`); `encoder`; `order` and `dataset` (in which order);
`conversion` (raw logs to encoded parquet).
"""

from .batch import Batch as Batch
from .conversion import convert_files as convert_files
from .dataset import Dataset as Dataset
from .encoder import Encoder as Encoder
from .encoder_file import read_encoder as read_encoder
from .held_out import split_share as split_share
from .held_out import split_time as split_time
from .inputs import open_source as open_source
from .position import Position as Position
from .profile import Profile as Profile
from .profile import profile as profile
from .ragged import Ragged as Ragged
from .reserved import Share as Share
from .schema import Columns as Columns
from .schema import find_columns as find_columns
from .source import BatchSource as BatchSource
from .source import Source as Source
from .synthetic import SyntheticCriteo as SyntheticCriteo
from .synthetic import Truth as Truth
from .synthetic import read_truth as read_truth
from .table_schema import ColumnRule as ColumnRule
from .table_schema import Derived as Derived
from .table_schema import Schema as Schema
from .table_schema import TextFormat as TextFormat
