# SPDX-License-Identifier: Apache-2.0
"""Standard streams that were closed, as by `>&-`: they lead nowhere, and their numbers stay taken.

Otherwise the next file to be opened gets the number, and what C++ prints ends up in it.
"""

import os
import sys

_STREAMS = ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w"))


def open_streams() -> None:
    """Open those that Python found closed when it began."""
    for number, name, mode in _STREAMS:
        if getattr(sys, name) is not None:
            continue
        nowhere = os.open(os.devnull, os.O_RDWR)  # the lowest free number, which may be this one
        if nowhere > number and not _is_open(number):
            os.dup2(nowhere, number)
            os.close(nowhere)
            nowhere = number
        setattr(sys, name, os.fdopen(nowhere, mode))


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True
