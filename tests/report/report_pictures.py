"""Makes the pictures of docs/howto/report.md: `python tests/report/report_pictures.py`. Needs pngquant, too.

The build that they show is simulated: flash-attn's 73 sources on 16 cores with 48 GiB, from measured curves.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from report_browser import browser
from report_records import flash_attention

from safe_ext_build.report import shelf

STATIC = Path(__file__).resolve().parents[2] / "docs" / "_static"
# Name, colour scheme, width, height, and the bar to point at.
PICTURES = (
    ("report-light", "light", 1200, 1290, ""),
    ("report-dark", "dark", 1200, 1290, '[data-i="40"]'),
    ("report-narrow", "light", 420, 1250, ""),
)


def main() -> None:
    STATIC.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as place, browser(Path(place)) as page:
        shelf.export(flash_attention(73, 16, 48), Path(place) / "report.html")
        for name, scheme, width, height, bar in PICTURES:
            page.emulate(scheme, width, height)
            page.open(Path(place) / "report.html")
            if bar:
                page.point(bar)
            page.shoot(STATIC / f"{name}.png")
    pictures = [str(STATIC / f"{name}.png") for name, *_ in PICTURES]
    subprocess.run(
        ["pngquant", "--force", "--ext", ".png", "--nofs", "--strip", "64", "--", *pictures], check=True
    )


if __name__ == "__main__":
    main()
