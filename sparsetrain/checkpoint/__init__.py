# SPDX-License-Identifier: Apache-2.0
"""A folder that holds arrays by name and a manifest: plain files, no code in them, no pickle.

`write` leaves the old folder or the new one, whenever it is killed; `read` returns everything
checked or an error that names the file. `manifest` (what the JSON says) and `array_file` (one array
on disk) define the format; `places` knows the folder's neighbours during a save. Locks, folder
handles and renames are those of POSIX.
"""

from sparsetrain.checkpoint.reading import read as read
from sparsetrain.checkpoint.writing import write as write
