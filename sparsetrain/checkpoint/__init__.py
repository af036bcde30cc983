# SPDX-License-Identifier: Apache-2.0
"""A folder that holds arrays by name and a manifest: plain files, no code in them, no pickle.

`write` leaves the old folder or the new one, whenever it is killed; `read` returns everything
checked or an error that names the file. `manifest` (what the JSON says) and `array_file` (one array
on disk) define the format; `folders` knows the folder's neighbours during a save. Locks, folder
handles and renames are those of POSIX.
"""

from sparsetrain.checkpoint.folders import new_file as new_file
from sparsetrain.checkpoint.folders import remove as remove
from sparsetrain.checkpoint.folders import restore as restore
from sparsetrain.checkpoint.folders import sync_folder as sync_folder
from sparsetrain.checkpoint.reading import Saved as Saved
from sparsetrain.checkpoint.reading import opened as opened
from sparsetrain.checkpoint.reading import read as read
from sparsetrain.checkpoint.reading import whole as whole
from sparsetrain.checkpoint.writing import errors_of as errors_of
from sparsetrain.checkpoint.writing import require_room as require_room
from sparsetrain.checkpoint.writing import write as write
