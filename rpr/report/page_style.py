"""The look of the HTML page: one style sheet for light and dark screens, phones and paper."""

from __future__ import annotations

from rpr.report.drawing import DARK, variable

_LIGHT_COLOURS = """--ink: #1b1f24; --muted: #5d6670; --line: #e0e4e8; --paper: #ffffff; --soft: #f5f7f9;
  --accent: #0065a0; --warn: #7d4300; --warn-soft: #fff4e5; --added: #d9ecfa; --moved: #fbeecb;"""
_DARK_COLOURS = """--ink: #e6e9ec; --muted: #9aa4af; --line: #2c333b; --paper: #15181c; --soft: #1c2127;
  --accent: #5cb2e8; --warn: #ffc078; --warn-soft: #33271a; --added: #17384f; --moved: #43370f;"""

# In print the colours are the light ones, and what is folded is opened; a drawing is as wide as the paper.
_CSS = """
:root { color-scheme: light; LIGHT }
@media screen and (prefers-color-scheme: dark) {
  :root { color-scheme: dark; NIGHT
PLOTS  }
  figure svg image { filter: invert(1) hue-rotate(180deg); }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; text-size-adjust: 100%; }
body { margin: 0 auto; max-width: 72rem; padding: 2.5rem 1.5rem 5rem; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
h1 { font-size: 2rem; line-height: 1.15; letter-spacing: -.01em; margin: 0 0 .4rem; overflow-wrap: anywhere; }
h2 { font-size: 1.4rem; line-height: 1.25; margin: 3.5rem 0 1rem; padding-top: 1.25rem; border-top: 1px solid
  var(--line); overflow-wrap: anywhere; }
h2 small { display: block; font-size: .95rem; font-weight: 400; color: var(--muted); margin-top: .2rem; }
h3 { font-size: 1.05rem; margin: 2.25rem 0 .6rem; overflow-wrap: anywhere; }
h4 { font-size: .95rem; margin: 1.25rem 0 .35rem; overflow-wrap: anywhere; }
section, h2, h3, tr, figure, li, details { scroll-margin-top: 1rem; }
:target { outline: 2px solid var(--accent); outline-offset: 3px; border-radius: 3px; }
section:target { outline: none; }
p, ul, ol { max-width: 58rem; }
.lead, .notes, figcaption, .key { color: var(--muted); }
.lead { margin: 0 0 .5rem; overflow-wrap: anywhere; }
a { color: var(--accent); text-underline-offset: .15em; }
.badge { display: inline-block; font-size: .8rem; font-weight: 600; padding: .05rem .55rem; border-radius: 1rem;
  background: var(--warn-soft); color: var(--warn); white-space: nowrap; vertical-align: .15em; }
.findings { padding: 1rem 1.25rem; margin: 0 0 1.5rem; background: var(--soft); border-left: 3px solid var(--accent);
  border-radius: 0 6px 6px 0; max-width: none; }
.findings h4:first-child { margin-top: 0; }
.findings ul { padding-left: 1.15rem; margin: 0; max-width: 60rem; }
.findings li { margin: .25rem 0; overflow-wrap: anywhere; }
.problems { background: var(--warn-soft); color: var(--warn); padding: .8rem 1.25rem .8rem 2rem; border-radius: 6px;
  overflow-wrap: anywhere; }
nav ol { padding-left: 1.4rem; margin: .25rem 0 0; } nav li { margin: .2rem 0; overflow-wrap: anywhere; }
nav .parts { color: var(--muted); font-size: .9rem; }
.scroll { overflow-x: auto; max-width: 100%; background:
  linear-gradient(to left, var(--paper) 1.5rem, transparent) right / 3rem 100% no-repeat local,
  linear-gradient(to left, var(--line), transparent) right / .8rem 100% no-repeat; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .94rem; min-width: min(100%, 40rem); }
th, td { padding: .4rem .7rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
th { font-weight: 600; color: var(--muted); border-bottom: 2px solid var(--line); vertical-align: bottom; }
th.words, td.words, tbody th { text-align: left; }
tbody th { font-weight: 500; color: var(--ink); border-bottom: 1px solid var(--line); background: var(--paper); }
th:first-child { position: sticky; left: 0; background: var(--paper); padding-left: 0; }
tr.first > * { border-top: 2px solid var(--line); }
tbody tr:hover > * { background: var(--soft); }
td { vertical-align: top; } tbody th { vertical-align: top; }
td.words { white-space: normal; min-width: 10rem; }
td small { display: block; font-size: .8rem; line-height: 1.2; color: var(--muted); }
sup { line-height: 0; font-size: .8rem; } sup a { text-decoration: none; padding: 0 .1rem; }
.key { font-size: .88rem; margin: .6rem 0 0; overflow-wrap: anywhere; }
.warning { color: var(--warn); font-weight: 600; font-size: .9rem; overflow-wrap: anywhere; }
.notes { font-size: .85rem; padding-left: 1.4rem; margin: .5rem 0; overflow-wrap: anywhere; }
.notes li { margin: .15rem 0; }
figure { margin: 2rem 0 2.25rem; } figure > div { overflow-x: auto; }
figure svg { display: block; width: 100%; height: auto; max-width: 62rem; }
figure svg * { stroke-linejoin: round; stroke-linecap: butt; }
figure svg text { font-family: "DejaVu Sans", Verdana, system-ui, sans-serif !important; white-space: pre; }
figcaption { font-size: .88rem; max-width: 58rem; margin-top: .35rem; overflow-wrap: anywhere; }
.sample { margin: 0 0 1.25rem; padding: 1rem 1.25rem; background: var(--soft); border-radius: 6px; font-size: .95rem; }
.sample dl { margin: 0; } .sample dt { color: var(--muted); font-size: .85rem; overflow-wrap: anywhere; }
.sample dd { margin: 0; overflow-wrap: anywhere; white-space: pre-wrap; }
.given { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 20rem), 1fr)); gap: .5rem 1.5rem; }
.given dd { font-weight: 600; }
.made { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 15rem), 1fr)); gap: .75rem 1.5rem; }
.sample .made { margin-top: .8rem; padding-top: .7rem; border-top: 1px solid var(--line); }
ins { text-decoration: underline 2px; text-underline-offset: .18em; background: var(--added); border-radius: 2px; }
del { text-decoration: line-through; color: var(--muted); }
mark { color: inherit; background: var(--moved); text-decoration: underline dotted 2px; text-underline-offset: .18em;
  border-radius: 2px; }
details { border-bottom: 1px solid var(--line); padding: .4rem 0; font-size: .92rem; }
details details { margin-left: 1.1rem; } details.quiet { border: 0; margin-top: .25rem; }
summary { cursor: pointer; overflow-wrap: anywhere; padding: .1rem 0; }
summary:hover { color: var(--accent); } .quiet > summary { color: var(--muted); font-size: .88rem; }
pre { overflow-x: auto; background: var(--soft); padding: .7rem .9rem; border-radius: 6px; font-size: .8rem;
  line-height: 1.5; white-space: pre-wrap; overflow-wrap: anywhere; margin: .5rem 0; }
.settings { columns: 20rem auto; column-gap: 2rem; }
.status { color: var(--muted); } .status.failed, .status.running { color: var(--warn); font-weight: 600; }
footer { margin-top: 4rem; padding-top: 1rem; border-top: 1px solid var(--line); color: var(--muted);
  font-size: .88rem; overflow-wrap: anywhere; }
@media (max-width: 40rem) {
  body { padding: 1.5rem 1rem 3rem; } h1 { font-size: 1.6rem; } h2 { font-size: 1.25rem; }
  th, td { padding: .4rem .5rem; } th:first-child { max-width: 9.5rem; white-space: normal; }
  figure > div::before { content: "scroll sideways \\2192"; display: block; position: sticky; left: 0; font-size: .8rem;
    color: var(--muted); width: fit-content; }
  .findings { padding: .8rem .9rem; } .sample { padding: .8rem .9rem; } details details { margin-left: .5rem; }
}
@media print {
  @page { margin: 14mm 12mm; }
  html { font-size: 10pt; } body { max-width: none; padding: 0; font-size: 10pt; }
  p, ul, ol, figcaption { max-width: none; }
  h2, h3, h4, summary { break-after: avoid; } figure, .sample, tr, .findings li { break-inside: avoid; }
  .scroll, figure > div, pre { overflow: visible; } .scroll { background: none; } a { color: inherit; }
  table { font-size: 7.5pt; min-width: 0; width: 100%; } th, td { white-space: normal; padding: .25rem .2rem; }
  td.words { min-width: 0; } thead th { overflow-wrap: anywhere; } th:first-child { position: static; }
  figure svg { min-width: 0 !important; max-width: 100%; max-height: 215mm; }
  details::details-content { content-visibility: visible; display: block; block-size: auto; }
  .findings, .sample, pre, .badge, ins, mark { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
}
"""


def style_sheet() -> str:
    """All of it; each colour of the plots is a variable with another value in the dark."""
    plots = "".join(f"    {variable(light)}: {dark};\n" for light, dark in DARK.items())
    return _CSS.replace("LIGHT", _LIGHT_COLOURS).replace("NIGHT", _DARK_COLOURS).replace("PLOTS", plots)
