# SPDX-License-Identifier: Apache-2.0
"""Files of results: until all of one is written, what was there stays.

A file is written beside where it goes, under a name with the number of the process. What one that
was killed left there is removed by the next that writes the same file.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Give a neighbour of `path` to write, with the same suffix; rename it if all went well.

    Of a link, the file that it leads to is replaced.
    """
    path = Path(os.path.realpath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(path)
    draft = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    try:
        yield draft
        with open(draft, "rb") as written:
            os.fsync(written.fileno())
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def _remove_leftovers(path: Path) -> None:
    before, after = f".{path.stem}.", path.suffix
    for draft in path.parent.iterdir():
        number = draft.name.removeprefix(before).removesuffix(after)
        if draft.name == f"{before}{number}{after}" and number.isdecimal() and _is_dead(number):
            with suppress(OSError):
                draft.unlink()


def _is_dead(process: str) -> bool:
    try:
        os.kill(int(process), 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:
        return False
    return False
