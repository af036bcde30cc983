# SPDX-License-Identifier: Apache-2.0
"""Style sheet of a report, for light and dark screens and for paper."""

_LIGHT = ("#2563eb", "#c2410c", "#0f766e", "#9333ea", "#a16207", "#be123c", "#4d7c0f", "#0e7490")
_DARK = ("#7aa7ff", "#ff9f6b", "#4fd1b5", "#c79bff", "#e8c268", "#ff8fa8", "#a3d65c", "#67d4ea")


def _colors(colors: tuple[str, ...]) -> str:
    return "".join(f"--c{number}: {color};" for number, color in enumerate(colors))


STYLE = (
    "\n:root { color-scheme: light dark; --back: #fff; --text: #1c2230; --muted: #6b7280; "
    f"--rule: #e2e5ea; --shade: #f5f6f8; {_colors(_LIGHT)} }}\n"
    "@media (prefers-color-scheme: dark) { :root { --back: #14171c; --text: #e6e8ec; "
    f"--muted: #9aa3b0; --rule: #2c323b; --shade: #1c2128; {_colors(_DARK)} }} }}\n"
    + "".join(f".c{number} {{ --color: var(--c{number}); }}\n" for number in range(len(_LIGHT)))
    + """
.muted { --color: var(--muted); }
body { margin: 0 auto; max-width: 1200px; padding: 1.5rem; background: var(--back);
  color: var(--text); font: 15px/1.45 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; }
h3 { font-size: 1rem; margin: 1.2rem 0 .4rem; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; padding: .6rem .8rem; font-size: 13px;
  background: var(--shade); border-radius: 8px; }
summary { margin: .6rem 0; color: var(--muted); cursor: pointer; }
section { overflow-x: auto; }
table + .charts { margin-top: 1rem; }
.each { display: flex; flex-wrap: wrap; column-gap: 3rem; }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { padding: .28rem .8rem .28rem 0; border-bottom: 1px solid var(--rule); text-align: right;
  vertical-align: top; position: relative; overflow-wrap: break-word; max-width: 26rem; }
td:has(.bar) { min-width: 6rem; }
th:first-child { text-align: left; font-weight: 500; }
thead th { color: var(--muted); font-weight: 500; white-space: nowrap; }
mark { background: none; color: var(--c1); font-weight: 650; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(430px, 100%), 1fr));
  gap: 1rem; }
figure { margin: 0; padding: .7rem; background: var(--shade); border-radius: 8px; }
figcaption { font-size: 13px; font-weight: 600; margin-bottom: .3rem; }
svg { display: block; width: 100%; }
svg text { font-size: 11px; fill: var(--muted); }
.grid { stroke: var(--rule); }
.line { fill: none; stroke: var(--color, var(--text)); stroke-width: 2; }
.line.training { stroke-width: 1.2; opacity: .75; }
.line.constant { stroke-dasharray: 5 4; stroke-width: 1.3; opacity: .8; }
.fill { fill: var(--color); opacity: .22; }
.dots circle { fill: var(--color); }
.dots.training circle { fill: transparent; }
.legend { display: flex; flex-wrap: wrap; gap: .3rem 1.4rem; font-size: 13px; }
.legend span { display: flex; align-items: center; }
.sample { width: 28px; height: 10px; margin-right: .4rem; }
.sample circle { fill: var(--text); }
.chip { display: inline-block; width: .75em; height: .75em; border-radius: 3px;
  margin-right: .45em; background: var(--color); }
.bar { position: absolute; left: 0; top: 4px; bottom: 4px; background: var(--c0); opacity: .2;
  border-radius: 2px; }
@media print { section { break-inside: avoid; } }
"""
)
