# SPDX-License-Identifier: Apache-2.0
"""`ServerLog`: lines on standard error, text for events, or JSON for events and answers."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from datetime import datetime, timezone
from typing import Any

_PATH = 200  # characters of a path to log


class ServerLog:
    """A server's log of events; errors when writing it are ignored.

    Parameters
    ----------
    kind : {"text", "json"}
        "json" writes one object per line, and also logs each answer.
    """

    def __init__(self, kind: str = "text") -> None:
        self._is_json = kind == "json"

    def event(self, name: str, text: str) -> None:
        """Log an event, such as a new version."""
        self._write(f"sparsetrain: {text}", event=name, text=text)

    def answer(self, scope: Any, status: int, seconds: float) -> None:
        """Log an answer, when its first byte is sent."""
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
        with suppress(OSError, ValueError):  # the disk is full, or standard error is closed
            print(line, file=sys.stderr, flush=True)
