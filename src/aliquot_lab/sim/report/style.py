"""The report's style sheet: system font, tabular figures, thin lines, light and dark, and paper."""

from __future__ import annotations

from typing import Final

_LIGHT: Final = ("#1b7837", "#2166ac", "#b35806", "#762a83", "#8c510a", "#c51b7d", "#4d4d4d", "#01665e", "#b2182b")
_DARK: Final = ("#7fc97f", "#80b1d3", "#fdb863", "#c2a5cf", "#dfc27d", "#f1b6da", "#bababa", "#5ab4ac", "#ef8a62")


def _colours(shades: tuple[str, ...]) -> str:
    return "".join(f"--s{number}:{shade};" for number, shade in enumerate(shades))


_SERIES: Final = "".join(
    f".line.s{n}{{stroke:var(--s{n})}}.band.s{n}{{fill:var(--s{n})}}i.s{n}{{background:var(--s{n})}}"
    for n in range(len(_LIGHT))
)

# Below this width a row of a wide table is a card with a line for each figure, named by `data-name`.
_PHONE: Final = (
    ".phone{display:none}@media screen and (max-width:640px){.screen{display:none}.phone{display:block}"
    "main{padding:16px 8px 48px}h1{font-size:22px;line-height:28px}"
    ".cards thead{display:none}.cards,.cards tbody,.cards tr,.cards th,.cards td{display:block}"
    ".cards tbody th{font-weight:600;margin-top:16px}.cards td{display:flex;justify-content:space-between;"
    "padding:0 8px}.cards td::before{content:attr(data-name);color:var(--soft);white-space:normal;"
    "text-align:left;padding-right:16px}th,td{padding:0 4px}table{font-size:13px}code{overflow-wrap:anywhere}}"
)
# Last, so that it overrides what is above.
_PRINT: Final = (
    f"@media print{{:root{{--ink:#000;--soft:#555;--rule:#ccc;--paper:#fff;{_colours(_LIGHT)}}}"
    "main{max-width:none;padding:0}section{break-inside:avoid}details{display:none}.wide{overflow:visible}"
    "table{font-size:10px;line-height:16px}thead th,small{font-size:9px}th,td{padding:0 4px}h2{margin-top:24px}"
    "svg,i{print-color-adjust:exact}}@page{margin:12mm}"
)

STYLE: Final = (
    f":root{{color-scheme:light dark;--ink:#1a1a1a;--soft:#666;--rule:#ddd;--paper:#fff;{_colours(_LIGHT)}}}"
    f"@media (prefers-color-scheme:dark){{:root{{--ink:#e6e6e6;--soft:#999;--rule:#3a3a3a;--paper:#161616;"
    f"{_colours(_DARK)}}}}}"
    "body{margin:0;background:var(--paper);color:var(--ink);font:16px/24px system-ui,sans-serif;"
    "font-variant-numeric:tabular-nums}"
    "main{max-width:1152px;margin:0 auto;padding:24px 32px 64px}"
    "h1{font-size:28px;line-height:32px;margin:0 0 8px;font-weight:600}"
    "h2{font-size:18px;line-height:24px;margin:40px 0 8px;font-weight:600}"
    "p{margin:0 0 8px;max-width:80ch}.small,small{font-size:13px;color:var(--soft)}"
    ".note{border-left:4px solid #b35806;padding-left:12px;font-weight:600}"
    "table{border-collapse:collapse;font-size:14px;line-height:24px}.wide{overflow-x:auto}"
    "th,td{text-align:right;padding:0 8px;border-bottom:1px solid var(--rule);font-weight:400;white-space:nowrap}"
    "thead th{color:var(--soft);font-size:13px;white-space:normal;vertical-align:bottom;line-height:16px;"
    "padding:4px 8px}"
    "tbody th,thead th:first-child{text-align:left}"
    "svg{display:block;width:100%;height:auto}svg text{font-size:12px;fill:var(--soft)}"
    "svg .end{text-anchor:end}svg .mid{text-anchor:middle}svg .title{fill:var(--ink)}"
    ".grid{stroke:var(--rule);stroke-width:1}.axis,.tick{stroke:var(--soft);stroke-width:1}"
    ".frame{fill:none;stroke:var(--rule);stroke-width:1}"
    ".line{fill:none;stroke-width:1.75;stroke-linejoin:round}.band{opacity:.18;stroke:none}"
    ".legend{list-style:none;display:flex;flex-wrap:wrap;gap:0 24px;margin:0;padding:0;font-size:14px}"
    "i{display:inline-block;width:12px;height:12px;margin-right:8px;border-radius:2px;vertical-align:-1px}"
    "summary{font-size:13px;color:var(--soft);cursor:pointer}code{font-size:13px}.verdict{font-size:18px;line-height:26px}"
    + _SERIES
    + _PHONE
    + _PRINT
)
