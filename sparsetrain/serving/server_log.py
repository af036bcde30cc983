# SPDX-License-Identifier: Apache-2.0
"""`ServerLog`: lines on standard error, as text of events or as JSON of events and answers."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from datetime import datetime, timezone
from typing import Any

_PATH = 200  # characters of a path that are shown


class ServerLog:
    """A server's log of events; a log that cannot be written stops nothing.

    Parameters
    ----------
    kind : {"text", "json"}
        "json" has an object a line, one for each answer too.
    """

    def __init__(self, kind: str = "text") -> None:
        self._is_json = kind == "json"

    def event(self, name: str, text: str) -> None:
        """Tell of a new version, for one."""
        self._write(f"sparsetrain: {text}", event=name, text=text)

    def answer(self, scope: Any, status: int, seconds: float) -> None:
        """Tell of an answer to a request, from its first byte on."""
        if self._is_json:
            self._write(
                "",
                event="answer",
                method=scope["method"],
                path=scope["path"][:_PATH],
                status=status,
                seconds=round(seconds, 6),
            )

    def _write(self, line: str, **fields: Any) -> None:
        if self._is_json:
            now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
            line = json.dumps({"time": now, **fields})
        with suppress(OSError, ValueError):  # it is on a full disk, or closed
            print(line, file=sys.stderr, flush=True)
