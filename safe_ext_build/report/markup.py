"""Small pieces of HTML. Pure. All text goes through `text`: the names of sources come from strangers."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

# What HTML cannot hold, what would turn the direction of the text after it, and halves of surrogate pairs.
_UNSEEMLY = re.compile("[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def text(value: object) -> str:
    """A value as text or as a quoted attribute; what cannot be shown is shown as a replacement character."""
    return html.escape(_UNSEEMLY.sub("\N{REPLACEMENT CHARACTER}", str(value)), quote=True)


@dataclass(frozen=True)
class Cell:
    """A cell of a table. `value`: what a column of numbers is sorted by. `markup`: HTML in place of the text."""

    text: str
    value: float | None = None
    markup: str = ""

    def render(self) -> str:
        inside = self.markup or text(self.text)
        return f"<td>{inside}" if self.value is None else f"<td data-v={self.value:.7g}>{inside}"


@dataclass(frozen=True)
class Table:
    """A table. `columns`: name, and whether it holds numbers. `attributes`: those of each row, as they are."""

    id: str
    caption: str
    columns: Sequence[tuple[str, bool]]
    rows: Iterable[Sequence[Cell]]
    attributes: Iterable[str] = ()
    sorts: bool = False

    def render(self) -> str:
        heads = "".join(self._head(name, numbers) for name, numbers in self.columns)
        attributes = iter(self.attributes)
        rows = "\n".join(
            f"<tr{next(attributes, '')}>{''.join(cell.render() for cell in row)}" for row in self.rows
        )
        return (
            f'<div class="scroll" tabindex="0" role="region" aria-label="{text(self.caption)}">'
            f'<table id="{self.id}"><caption>{text(self.caption)}</caption>'
            f"<thead><tr>{heads}</thead><tbody>\n{rows}\n</tbody></table></div>"
        )

    def _head(self, name: str, numbers: bool) -> str:
        kind = ' class="n"' if numbers else ""
        label = f'<button type="button">{text(name)}</button>' if self.sorts else text(name)
        return f'<th scope="col"{kind}>{label}</th>'


def details(summary: str, inside: str) -> str:
    """A part that opens when it is asked for."""
    return f"<details><summary>{text(summary)}</summary>{inside}</details>"


def listing(items: Iterable[tuple[str, str]]) -> str:
    """Names and values; those that are empty are left out."""
    rows = "".join(f"<div><dt>{text(name)}</dt><dd>{text(value)}</dd></div>" for name, value in items if value)
    return f"<dl>{rows}</dl>"
