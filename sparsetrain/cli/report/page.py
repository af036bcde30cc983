# SPDX-License-Identifier: Apache-2.0
"""The page of a report: sections of tables and charts, without scripts or a network."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np

from sparsetrain.cli.curves import SPEED, charts_of, steady
from sparsetrain.cli.output import by_label, escape_controls, flat
from sparsetrain.cli.report.facts import Facts, Predicted
from sparsetrain.cli.report.repeat import at_default, command, sentence
from sparsetrain.cli.report.style import STYLE
from sparsetrain.system.chart import Chart, Series, svg
from sparsetrain.system.html import Markup, escape, table

MOST_RUNS = 8  # the number of colors
_GROUPS, _BINS = 15, 40  # groups of a calibration, bins of a histogram
_CELL = 60  # most characters of a setting


def page(runs: Sequence[Facts], data: str | None) -> str:
    """Return the page as HTML.

    Parameters
    ----------
    runs : sequence of Facts
        At most `MOST_RUNS`.
    data : str or None
        The name of the scored rows.
    """
    title = "Report of " + ", ".join(run.name for run in runs)
    sections = [
        ("Runs", _summary(runs)),
        ("Curves", _curves(runs)),
        (f"Scores of {data}", _scores(runs)),
        ("Columns", _each(runs, _columns)),
        ("Tables", _each(runs, _tables)),
        ("Time of a step", _each(runs, _profile)),
        ("Importance", _each(runs, _importance)),
        ("Settings", _settings(runs)),
        ("Environment", _compared(runs, [_environment(run.manifest) for run in runs])),
    ]
    body = "".join(
        f"<section><h2>{escape(name)}</h2>{content}</section>\n"
        for name, content in sections
        if content
    )
    return escape_controls(
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>\n"
        f"<body><h1>{escape(title)}</h1>\n{_each(runs, _in_words)}{body}</body></html>\n"
    )


def _name(runs: Sequence[Facts], number: int) -> Markup:
    """Return a run's name, with its color if there are several runs."""
    chip = f'<i class="chip c{number}"></i>' if len(runs) > 1 else ""
    return Markup(f"{chip}{escape(runs[number].name)}")


def _each(runs: Sequence[Facts], describe: Callable[[Facts], str]) -> str:
    """Join the parts of all runs, each below its name if there are several runs."""
    found = [(n, content) for n, run in enumerate(runs) if (content := describe(run))]
    if len(runs) == 1:
        return "".join(content for _, content in found)
    parts = [f"<div><h3>{_name(runs, number)}</h3>{content}</div>" for number, content in found]
    return f'<div class="each">{"".join(parts)}</div>' if parts else ""


def _in_words(run: Facts) -> str:
    """Describe a run in a sentence, with the command that repeats it."""
    again = command(run)
    return f"<p>{escape(sentence(run))}</p>" + (f"<pre>{escape(again)}</pre>" if again else "")


def _summary(runs: Sequence[Facts]) -> str:
    rows = []
    for number, run in enumerate(runs):
        speeds = [line["rows_per_s"] for line in steady(run.log) if line.get("rows_per_s")]
        state = run.manifest.get("run") or {}
        best, plan = state.get("best") or {}, state.get("plan") or {}
        monitor = (plan.get("early_stopping") or {}).get("monitor") or "score"
        rows.append(
            [
                _name(runs, number),
                (run.manifest.get("model") or {}).get("kind"),
                (run.manifest.get("optimizer") or {}).get("name"),
                run.manifest.get("steps", run.log[-1].get("step") if run.log else None),
                run.manifest.get("epochs"),
                round(median(speeds)) if speeds else None,
                f"{monitor} {best['value']:.4f}, step {best['step']:,}" if best else None,
                run.steps,
                sum(one.bytes for one in run.tables) / 1e6 if run.tables else None,
            ]
        )
    facts = ("model", "optimizer", "steps", "epochs", SPEED, "best validation")
    return table(rows, ("run", *facts, "checkpoint shown", "tables, MB"))


def _curves(runs: Sequence[Facts]) -> str:
    charts = charts_of([(run.name, run.log) for run in runs])
    kinds = {series.kind for chart in charts for series in chart.series}
    return (_legend(runs, kinds) + _grid(charts)) if charts else ""


def _legend(runs: Sequence[Facts], kinds: set[str]) -> str:
    names = [_name(runs, number) for number in range(len(runs))] if len(runs) > 1 else []
    known = {"training": "training", "validation": "validation", "constant": "a constant"}
    names += [
        Markup(
            f'<svg class="sample" viewBox="0 0 28 10"><path class="line {kind}" d="M0 5H28"/>'
            + '<circle cx="14" cy="5" r="3"/>' * (kind == "validation")
            + f"</svg>{called}"
        )
        for kind, called in known.items()
        if kind in kinds
    ]
    return f'<p class="legend">{"".join(f"<span>{name}</span>" for name in names)}</p>'


def _grid(charts: Iterable[Chart]) -> str:
    return f'<div class="charts">{"".join(map(svg, charts))}</div>'


def _scores(runs: Sequence[Facts]) -> str:
    rows: dict[tuple[str, ...], list[list[Any]]] = {}
    for number, run in enumerate(runs):
        for label, own in by_label(run.scores).items():
            cells = [_name(runs, number), label or None, *own.values()]
            rows.setdefault(tuple(own), []).append(cells)
    tables = "".join(table(found, ("run", "label", *names)) for names, found in rows.items())
    labels = dict.fromkeys((one.label, one.is_binary) for run in runs for one in run.predicted)
    charts: list[Chart] = []
    for label, is_binary in labels:
        shown = [
            (number, one)
            for number, run in enumerate(runs)
            for one in run.predicted
            if (one.label, one.is_binary) == (label, is_binary) and len(one.labels)
        ]
        charts += _charts_of_label(runs, label, shown) if shown else []
    return tables + (_grid(charts) if charts else "")


def _charts_of_label(
    runs: Sequence[Facts], label: str, own: Sequence[tuple[int, Predicted]]
) -> Iterator[Chart]:
    """Yield a calibration chart of all runs, and a histogram of each run."""
    series = [
        Series(runs[number].name, number, "validation", _calibration(one)) for number, one in own
    ]
    ends = [value for one in series for point in one.points for value in point]
    diagonal = [(end, end) for end in (min(ends), max(ends))]
    right = Series("", None, "constant", diagonal)
    yield Chart(f"{label}: mean label by prediction", "mean prediction", [right, *series])
    for number, one in own:
        named = f"{runs[number].name}, " if len(runs) > 1 else ""
        kinds = "grey: label 0" if one.is_binary else "grey: labels"
        yield Chart(
            f"{named}{label}: share of rows by prediction ({kinds})",
            "prediction",
            _histograms(one, number),
            from_zero=True,
        )


def _calibration(one: Predicted) -> list[tuple[float, float]]:
    """Return the mean prediction and the mean label of groups of equal size."""
    order = np.argsort(one.predictions, kind="stable")
    groups = [group for group in np.array_split(order, _GROUPS) if len(group)]
    values = (one.predictions.astype(np.float64), one.labels.astype(np.float64))
    return [(float(values[0][g].mean()), float(values[1][g].mean())) for g in groups]


def _histograms(one: Predicted, color: int) -> list[Series]:
    if one.is_binary:
        parts = [one.predictions[one.labels == 0], one.predictions[one.labels == 1]]
    else:
        parts = [one.labels, one.predictions]
    ends = np.quantile(np.concatenate(parts), [0.001, 0.999]).astype(np.float64)
    edges = np.linspace(ends[0], max(ends[1], ends[0] + 1e-6), _BINS + 1)
    middles = (edges[1:] + edges[:-1]) / 2
    found = []
    for part, style in zip(parts, (None, color), strict=True):
        shares = np.histogram(part.clip(*ends), edges)[0] / max(len(part), 1)
        found.append(Series("", style, "area", list(zip(middles, shares, strict=True))))
    return found


def _columns(run: Facts) -> str:
    """Return a table of the rare, missing and unseen shares of each column."""
    shares = {share.column: share for share in run.id_shares}
    rows = []
    for column in dict.fromkeys([*run.rare, *shares]):
        rare, share = run.rare.get(column), shares.get(column)
        cells = [_bar(rare)]
        if shares:
            cells += [_bar(share and share.missing_share), _bar(share and share.unseen_share)]
        rows.append([column, *cells])
    scored = ("missing in the scored rows", "rare or unseen there") if shares else ()
    return table(rows, ("column", "rare in training", *scored)) if rows else ""


def _importance(run: Facts) -> str:
    most = max([*run.importance.values(), 1e-12])
    rows = [[name, _bar(rise / most, f"{rise:+.5f}")] for name, rise in run.importance.items()]
    return table(rows, ("column", "rise of the loss, shuffled")) if rows else ""


def _tables(run: Facts) -> str:
    most = max((one.bytes for one in run.tables), default=1)
    rows = [
        [
            one.name,
            one.rows,
            one.width,
            _bar(one.bytes / most, f"{one.bytes / 1e6:,.3f}"),
            one.mean_norm,
            one.max_norm,
        ]
        for one in run.tables
    ]
    head = ("table", "rows", "width", "MB", "mean norm of a row", "largest")
    return table(rows, head) if rows else ""


def _profile(run: Facts) -> str:
    profile = run.profile
    if profile is None or not profile.seconds:
        return ""
    times = [(kernel.name, kernel.calls, kernel.seconds) for kernel in profile.kernels]
    rows = [
        [name, calls, f"{1e3 * seconds:.3f}", _bar(seconds / profile.seconds)]
        for name, calls, seconds in [*times, ("outside kernels", "", profile.outside)]
    ]
    title = str(profile).partition("\n")[0]
    return f"<p>{escape(title)}</p>{table(rows, ('kernel', 'calls', 'ms', 'share of the step'))}"


def _compared(runs: Sequence[Facts], values: Sequence[Mapping[str, str]]) -> str:
    """Return values side by side, and highlight names with different values."""
    rows = []
    for name in dict.fromkeys(name for own in values for name in own):
        cells = [own.get(name) for own in values]
        differs = len({*cells}) > 1
        rows.append([Markup(f"<mark>{escape(name)}</mark>") if differs else name, *cells])
    names = [_name(runs, number) for number in range(len(runs))]
    return table(rows, ("", *names)) if rows else ""


def _settings(runs: Sequence[Facts]) -> str:
    """Compare settings; fold settings that have their defaults in all runs below the rest."""
    values = [_set(_set_by(run.manifest)) for run in runs]
    chosen = {
        name
        for run, own in zip(runs, values, strict=True)
        for name in own.keys() - at_default(run.manifest)
    }
    shown = [{name: own[name] for name in own if name in chosen} for own in values]
    left = [{name: own[name] for name in own if name not in chosen} for own in values]
    content = _compared(runs, shown)
    if folded := _compared(runs, left):
        count = len({name for own in left for name in own})
        content += f"<details><summary>{count} at their defaults</summary>{folded}</details>"
    return content


def _set_by(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the run's command; without a command, return the manifest's."""
    extra = manifest.get("extra") or {}
    if isinstance(extra.get("settings"), dict):
        return {"files": extra.get("files") or {}, **extra["settings"]}
    model, run = manifest.get("model") or {}, manifest.get("run") or {}
    optimizer = manifest.get("optimizer") or {}
    return {"model": model, "optimizer": optimizer, "fit": run.get("plan") or {}}


def _environment(manifest: Mapping[str, Any]) -> dict[str, str]:
    named = {name: manifest[name] for name in ("target", "precision", "seed") if name in manifest}
    return _set({**named, **(manifest.get("versions") or {})})


def _set(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the text of nested settings that have a value, by their dotted names."""
    found = {}
    for name, value in flat(values).items():
        if value not in (None, [], {}):
            text = value if isinstance(value, str) else json.dumps(value)
            found[name] = text if len(text) <= _CELL else text[:_CELL] + "…"
    return found


def _bar(share: float | None, text: str | None = None) -> Markup:
    """Return a table cell with a share as text, on a bar of proportional length."""
    if share is None:
        return Markup("-")
    width = f"{100 * min(max(share, 0), 1):.1f}"
    return Markup(f'<i class="bar" style="width:{width}%"></i>{escape(text or f"{share:.1%}")}')
