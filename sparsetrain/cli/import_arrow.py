# SPDX-License-Identifier: Apache-2.0
"""Import of Arrow in a command's own process, with the system's allocator and without pandas.

Arrow's own pool keeps freed memory, 70 MB in a small fit, and reads no faster. At its first
conversion, Arrow imports pandas, if installed, to recognize pandas objects, which costs 0.2 s and
30 MB. Commands pass no pandas objects; code that needs pandas, such as `to_pandas`, can still
import it.
"""

import os
import signal

from sparsetrain.system.hidden_modules import hidden


def import_arrow() -> None:
    """Import Arrow before any other import does; Ctrl-C during it ends the process silently."""
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    with hidden("pandas"):
        import pyarrow

        pyarrow.array([])
    signal.signal(signal.SIGINT, before)
