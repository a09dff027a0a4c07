"""The look of the report: one style sheet, light and dark, for screens from phone to desk and for paper."""

from __future__ import annotations

STYLE = """
:root {
  color-scheme: light dark;
  --paper: #ffffff; --wash: #f5f6f8; --ink: #1b1f24; --soft: #5c6675; --line: #e2e5ea; --accent: #0072b2;
  --good: #00714f; --bad: #b34700;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #171a1f; --wash: #1f242b; --ink: #e8eaed; --soft: #9aa4b2; --line: #2f3640; --accent: #56b4e9;
    --good: #2fc39a; --bad: #f08c3c;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; scroll-behavior: smooth; }
body {
  margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.6 ui-sans-serif, system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
  font-variant-numeric: tabular-nums;
}
main { max-width: 60rem; margin: 0 auto; padding: 3.5rem 1.25rem 5rem; }
p, li { max-width: 44rem; }
h1 { font-size: clamp(1.6rem, 1.1rem + 2.1vw, 2.3rem); line-height: 1.18; letter-spacing: -0.022em; margin: 0 0 1rem;
  max-width: 52rem; text-wrap: balance; }
h2 { font-size: 1.3rem; line-height: 1.3; letter-spacing: -0.012em; margin: 3.5rem 0 0.4rem; }
h3 { font-size: 1rem; margin: 1.8rem 0 0.3rem; }
a { color: var(--accent); }
.eyebrow { font-size: 0.8rem; letter-spacing: 0.08em; text-transform: uppercase; color: var(--accent); font-weight: 650;
  margin: 0 0 0.8rem; }
.lede { font-size: 1.1rem; color: var(--soft); margin: 0; }
.note, figcaption { color: var(--soft); font-size: 0.92rem; }
.good { color: var(--good); } .bad { color: var(--bad); }

.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: 0;
  margin: 2.4rem 0 2.6rem; border-top: 2px solid var(--ink); border-bottom: 1px solid var(--line); padding: 0; }
.tiles div { padding: 1rem 1.2rem 1.1rem 0; }
.tiles dt { color: var(--soft); font-size: 0.88rem; }
.tiles dd { margin: 0; }
.tiles .number { font-size: 2.1rem; font-weight: 680; letter-spacing: -0.03em; line-height: 1.25; display: block; }
.tiles .beside { font-size: 0.88rem; color: var(--soft); }

figure { margin: 1.2rem 0 0; }
figcaption { margin-top: 0.5rem; max-width: 44rem; }
video { display: block; width: 100%; height: auto; background: #0e1116; border-radius: 8px; }
.plot { overflow-x: auto; }
.plot img { display: block; width: 100%; min-width: 36rem; height: auto; }
.plot.small img { width: auto; max-width: 100%; min-width: 26rem; max-height: 36rem; }

.scroll { overflow-x: auto; margin: 1.2rem 0 0.6rem; }
table { border-collapse: separate; border-spacing: 0; width: 100%; font-size: 0.95rem; }
th, td { text-align: right; padding: 0.55rem 0 0.55rem 1.1rem; border-bottom: 1px solid var(--line);
  white-space: nowrap; vertical-align: top; }
th:first-child, td:first-child { text-align: left; padding-left: 0; position: sticky; left: 0;
  background: var(--paper); background-clip: padding-box; padding-right: 0.4rem; z-index: 1; }
thead th { color: var(--soft); font-weight: 550; font-size: 0.86rem; border-bottom: 1px solid var(--ink);
  vertical-align: bottom; white-space: normal; }
tbody th { font-weight: 550; }
tr.agent th, tr.agent td { font-weight: 680; }
tr.reference th, tr.reference td { color: var(--soft); }
td small, th small { display: block; color: var(--soft); font-weight: 400; font-size: 0.8rem; line-height: 1.35; }
.wrap td, .wrap th { white-space: normal; text-align: left; }
.swatch { display: inline-block; width: 0.7em; height: 0.7em; border-radius: 50%; margin-right: 0.55em;
  background: var(--light); }
@media (prefers-color-scheme: dark) { .swatch { background: var(--dark); } }

dl.facts { display: grid; grid-template-columns: 11rem 1fr; margin: 1rem 0 0; border-top: 1px solid var(--line); }
dl.facts dt, dl.facts dd { margin: 0; padding: 0.6rem 0; border-bottom: 1px solid var(--line); }
dl.facts dt { color: var(--soft); }
dl.facts dd { max-width: none; }
@media (max-width: 36rem) {
  main { padding-top: 2rem; }
  dl.facts { grid-template-columns: 1fr; }
  dl.facts dt { border-bottom: 0; padding-bottom: 0; font-size: 0.88rem; }
  dl.facts dd { padding-top: 0.1rem; }
  th, td { padding-left: 1rem; }
  th:first-child { white-space: normal; max-width: 8.2rem; }
  .tiles { grid-template-columns: 1fr 1fr; }
  .tiles .number { font-size: 1.7rem; }
}
details { border-top: 1px solid var(--line); padding: 0.7rem 0; }
details:last-of-type { border-bottom: 1px solid var(--line); }
summary { cursor: pointer; font-weight: 550; }
pre { overflow-x: auto; background: var(--wash); border-radius: 6px; padding: 1rem;
  font-size: 0.82rem; line-height: 1.5;
  font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; }
.bar { display: inline-block; height: 0.6em; background: var(--accent); border-radius: 2px; opacity: 0.75; }
footer { margin-top: 4rem; color: var(--soft); font-size: 0.88rem; }
@media print { main { max-width: none; padding: 0; } video { display: none; } .plot img { min-width: 0; } }
"""
