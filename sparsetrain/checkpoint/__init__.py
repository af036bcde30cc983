# SPDX-License-Identifier: Apache-2.0
"""A folder that holds arrays by name and a manifest: plain files, no code in them, no pickle.

Killed at any moment, `write` leaves the old folder or the new one. Every byte is checked before it
is used; an error names the file. Locks, folder handles and renames are POSIX's.

- `manifest` and `array_file`: the format, as JSON and as the bytes of one array; threads for many
- `folders`: the folder, and its temporary neighbours during a save
- `reading`, `writing`: whole folders
"""

from sparsetrain.checkpoint.folders import is_ours as is_ours
from sparsetrain.checkpoint.folders import new_file as new_file
from sparsetrain.checkpoint.folders import remove as remove
from sparsetrain.checkpoint.folders import restore as restore
from sparsetrain.checkpoint.reading import Saved as Saved
from sparsetrain.checkpoint.reading import opened as opened
from sparsetrain.checkpoint.reading import whole as whole
from sparsetrain.checkpoint.writing import errors_of as errors_of
from sparsetrain.checkpoint.writing import require_room as require_room
from sparsetrain.checkpoint.writing import write as write
