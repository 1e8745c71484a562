"""Equations as MathML, when the site is built: browsers draw it themselves, with no script and no network."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

from latex2mathml.converter import convert

EQUATION = re.compile(r'<(span|div) class="arithmatex">\s*\\[(\[](.*?)\\[)\]]\s*</\1>', re.DOTALL)


def on_page_content(html: str, **_: Any) -> str:
    """Every equation that pymdownx.arithmatex has marked, converted."""

    def converted(found: re.Match[str]) -> str:
        display = "block" if found[1] == "div" else "inline"
        return convert(unescape(found[2]).strip(), display=display)

    return EQUATION.sub(converted, html)
