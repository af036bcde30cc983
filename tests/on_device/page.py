# SPDX-License-Identifier: Apache-2.0
"""Page of runs in Markdown, of nothing but their file: the same file is the same page."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

Lines = list[dict[str, Any]]
MARK = " (emulated: sizes and times mean nothing)"


def page(lines: Lines) -> str:
    """Every run of a file, whole or cut off."""
    return "\n".join("\n".join(_page(run)) + "\n" for run in runs(lines))


def runs(lines: Lines) -> list[Lines]:
    """The lines of each run."""
    starts = [place for place, line in enumerate(lines) if "run" in line]
    ends = [*starts[1:], len(lines)]
    return [lines[start:end] for start, end in zip(starts, ends, strict=True)]


def _page(lines: Lines) -> Iterator[str]:
    told = lines[0]["run"]
    emulated, known = told["emulated"], told["facts"]
    card = "an emulated device" if emulated else known["card"] or "an unknown device"
    yield f"# A run on {card}\n"
    whole = next((line["seconds"] for line in lines if line.keys() == {"at", "seconds"}), None)
    taken = whole or lines[-1]["at"] - lines[0]["at"]
    cut = "" if whole else ", then it was cut off"
    yield from _told(known | {"time": f"{taken / 60:.1f} of {told['minutes']:g} minutes{cut}"})
    yield "\n## Stages\n\n| stage | outcome | passed | failed | skipped | seconds | at most |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    stages = [line for line in lines if "stage" in line and "test" not in line]
    tests = _tests(lines)
    for name in dict.fromkeys(line["stage"] for line in stages):
        yield _row(name, [line for line in stages if line["stage"] == name], tests, lines[-1]["at"])
    yield from _section("Failures", _failures(stages, tests))
    yield from _section("Begun and not ended", _with_outcome(tests, "begun"))
    yield from _section("Skipped", _skipped(tests))
    for line in stages:
        if line.get("result"):
            mark = MARK * (emulated and line["stage"] != "doctor")
            yield from _section(line["stage"] + mark, _told(line["result"]))


def _tests(lines: Lines) -> dict[tuple[str, str], dict[str, Any]]:
    """The last word on each test; a failure stays one."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for line in lines:
        if "test" in line:
            key = line["stage"], line["test"]
            if key not in found or found[key]["outcome"] != "failed":
                found[key] = line
    return found


def _row(name: str, lines: Lines, tests: dict[tuple[str, str], Any], end: float) -> str:
    first, last = lines[0], lines[-1]
    if last["outcome"] == "not run":
        return f"| {name} | not run: {last['reason']} |  |  |  |  |  |"
    counts = Counter(line["outcome"] for (stage, _), line in tests.items() if stage == name)
    cut = last["outcome"] == "begun"
    cells = [
        "cut off" if cut else last["outcome"],
        *(counts[outcome] if counts else "" for outcome in ("passed", "failed", "skipped")),
        f"{end - first['at'] if cut else last['seconds']:.1f}",
        f"{first['limit']:.0f}",
    ]
    return f"| {name} | {' | '.join(map(str, cells))} |"


def _section(title: str, texts: Iterator[str]) -> Iterator[str]:
    found = list(texts)
    if found:
        yield from (f"\n## {title}\n", *found)


def _failures(stages: Lines, tests: dict[tuple[str, str], Any]) -> Iterator[str]:
    for line in stages:
        if line["outcome"] == "failed":
            yield f"- **{line['stage']}**: {line['reason']}"
    yield from _with_outcome(tests, "failed")


def _with_outcome(tests: dict[tuple[str, str], Any], outcome: str) -> Iterator[str]:
    for (_, name), line in tests.items():
        if line["outcome"] == outcome:
            yield f"- `{name}`" + (f": {line['reason']}" if line["reason"] else "")


def _skipped(tests: dict[tuple[str, str], Any]) -> Iterator[str]:
    reasons = Counter(line["reason"] for line in tests.values() if line["outcome"] == "skipped")
    yield from (f"- {count}: {reason}" for reason, count in reasons.most_common())


def _told(values: dict[str, Any], name: str = "") -> Iterator[str]:
    """A line for each value, and one for each dictionary inside; a list stays in the file."""
    plain = [(k, _spelled(v)) for k, v in values.items() if not isinstance(v, dict | list)]
    if name and plain:
        yield f"- {name}: " + ", ".join(map(" ".join, plain))
    else:
        yield from ("- " + ": ".join(pair) for pair in plain)
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _told(value, f"{name} {key}".strip())


def _spelled(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
