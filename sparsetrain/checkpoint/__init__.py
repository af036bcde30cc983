# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: a folder of named arrays and a manifest, in plain files without code or pickle.

If `write` is killed at any moment, the old or the new folder is complete. Every byte is checked
before it is used; an error names the file. Locks, folder handles and renames are POSIX calls.

- `manifest`, `array_file`: the format, JSON and one file per array; threads for many files
- `folders`: the folder, and temporary folders beside it during a save
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
