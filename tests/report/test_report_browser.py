"""The page in a real browser, from a file. Only where Chromium is missing is this left out, and says so."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from report_browser import Browser, browser, missing
from report_records import make, run, sample

from safe_ext_build.report import shelf
from safe_ext_build.report.record import Pause, Record

EVIL = "</script><script>document.title=1</script><img src=x onerror=document.title=1>.cu"

# The contrast of an element's text with what is behind it: https://www.w3.org/TR/WCAG21/#dfn-contrast-ratio
CONTRAST = """
const luminance = (color) => {
  const [r, g, b] = color.match(/[\\d.]+/g).slice(0, 3).map((part) => part / 255)
    .map((part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const ground = (element) => {
  for (let at = element; at; at = at.parentElement) {
    const color = getComputedStyle(at).backgroundColor;
    if (!/, 0\\)$/.test(color)) return color;
  }
  return "rgb(255, 255, 255)";
};
const ratio = (one, other) => {
  const [high, low] = [luminance(one), luminance(other)].sort((a, b) => b - a);
  return (high + 0.05) / (low + 0.05);
};
const worst = {};
const note = (kind, value) => { worst[kind] = Math.min(worst[kind] ?? 21, value); };
for (const element of document.querySelectorAll("h1, h2, p, li, dt, dd, th, td, span, button, summary, footer")) {
  if (element.textContent.trim()) note(element.localName, ratio(getComputedStyle(element).color, ground(element)));
}
for (const text of document.querySelectorAll("svg text")) {
  const bar = text.parentElement.querySelector(":scope > rect");
  const fill = bar && text.parentElement.dataset.i ? getComputedStyle(bar).fill : ground(text);
  if (!fill.startsWith("url")) note("svg text", ratio(getComputedStyle(text).fill, fill));
}
return worst;
"""


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if missing():
        names = " and ".join(missing())
        pytest.skip(
            f"THE REPORT IS NOT TESTED IN A BROWSER: no {names} (apt-get install chromium chromium-driver)"
        )
    with browser(tmp_path_factory.mktemp("browser")) as found:
        yield found


def build() -> Record:
    """Five compiles on two lanes; one is killed and run again, one fails, one has an evil name."""
    runs = (
        run("csrc/long_kernel.cu", 0, 40, job=1, cpu=39.0, archs="80;90", threads=2, curve=tuple(range(1, 17))),
        run("csrc/bind.cpp", 0, 10, job=2, cpu=9.0),
        run("csrc/big.cu", 10, 18, job=3, outcome="memory", why="stopped to make room", cpu=8.0),
        run("csrc/big.cu", 18, 40, job=3, attempt=2, cpu=20.5),
        run(EVIL, 40, 55, job=4, cpu=15.0),
        run("csrc/bad.cu", 40, 60, job=5, outcome="failed", cpu=5.0),
    )
    looks = tuple(
        sample(float(n), 2, 1 if n < 30 else 0, "it needs up to 3.0 GiB", 1 + n % 5) for n in range(0, 60, 2)
    )
    made = make(
        *runs, samples=looks, pauses=(Pause(1, 5.0, 9.0),), outcome="failed", error=f"{EVIL} does not compile"
    )
    return dataclasses.replace(made, project="gadget")


@pytest.fixture
def page(chromium: Browser, tmp_path: Path) -> Iterator[Browser]:
    shelf.export(build(), tmp_path / "a report.html")
    chromium.emulate("light")
    chromium.open(tmp_path / "a report.html")
    yield chromium
    assert chromium.complaints() == []


def wait_for(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def words(page: Browser, css: str) -> list[str]:
    script = "return [...document.querySelectorAll(arguments[0])].map((one) => one.innerText.trim())"
    found: list[str] = page.run(script, css)
    return found


def column(page: Browser, number: int) -> list[str]:
    return words(page, f"#sources tbody td:nth-child({number})")


def test_everything_is_there(page: Browser) -> None:
    assert page.run("return location.protocol") == "file:"
    assert words(page, "h1") == ["Failed after 1 min"]
    assert words(page, "h2") == ["What to do next", "Timeline", "Memory", "Sources", "Plan", "Environment"]
    assert words(page, ".advice li")[0].startswith("Mend csrc/bad.cu first")
    assert page.run("return document.querySelectorAll('#lanes [data-i]').length") == 6
    assert page.run("return document.querySelectorAll('#memory .killed').length") == 1
    assert page.run("return document.querySelectorAll('#lanes .still').length") == 1
    heights = "return [...document.querySelectorAll('.plot')].map((one) => one.getBoundingClientRect().width)"
    assert all(width > 700 for width in page.run(heights))
    assert page.run("return performance.getEntriesByType('resource').length") == 0


def test_the_name_of_a_source_does_nothing(page: Browser) -> None:
    assert page.run("return document.title") == "gadget: failed after 1 min"
    assert EVIL in column(page, 1)
    assert page.run("return document.images.length + document.scripts.length") == 1
    # Even markup that came in would run no code: the page names the only script that may.
    page.run("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"document.title=1\">')")
    wait_for(lambda: any("Content Security Policy" in line for line in page.complaints()))
    assert page.run("return document.title") == "gadget: failed after 1 min"


def test_sorting_by_mouse_and_keyboard(page: Browser) -> None:
    by_cpu = column(page, 1)
    assert by_cpu[0] == "csrc/long_kernel.cu" and by_cpu[-1] == "csrc/bad.cu"
    page.click("#sources th:nth-child(2) button")
    assert column(page, 1) == by_cpu[::-1]
    assert page.run("return document.querySelector('#sources th:nth-child(2)').ariaSort") == "ascending"
    page.run("document.querySelector('#sources th:nth-child(1) button').focus()")
    page.press("\ue007")  # enter
    by_name = [EVIL, "csrc/bad.cu", "csrc/big.cu", "csrc/bind.cpp", "csrc/long_kernel.cu"]
    assert column(page, 1) == by_name
    page.press(" ")
    assert column(page, 1) == by_name[::-1]
    page.click("#sources th:nth-child(4) button")
    assert column(page, 1)[0] == "csrc/long_kernel.cu" and column(page, 4)[0] == "40 s"


def test_pointing_at_a_bar_tells_what_it_was(page: Browser) -> None:
    assert words(page, "#tip") == [""]
    page.point('[data-i="0"]')
    said = words(page, "#tip")[0]
    for text in ("csrc/long_kernel.cu", "compiled", "39 s", "1.0 GiB", "80 90", "Threads"):
        assert text in said
    assert page.run("return document.querySelectorAll('#tip path').length") == 1
    page.point('[data-i="2"]')
    assert "stopped for memory: stopped to make room" in words(page, "#tip")[0]
    page.point("h1")
    assert page.run("return document.getElementById('tip').hidden")


def test_the_keyboard_goes_from_bar_to_bar(page: Browser) -> None:
    page.run("document.getElementById('lanes').focus()")
    page.press("\ue011", "\ue014", "\ue014")  # home, right, right
    assert "csrc/big.cu" in words(page, "#tip")[0]
    page.press("\ue010")  # end
    assert "csrc/bad.cu" in words(page, "#tip")[0]
    page.press("\ue00c")  # escape
    assert page.run("return document.getElementById('tip').hidden")
    page.run("document.getElementById('memory').focus()")
    page.press("\ue014")
    said = words(page, "#tip")[0]
    assert "0:02" in said and "3.0 GiB" in said and "it needs up to 3.0 GiB" in said


def test_both_themes_can_be_read(page: Browser) -> None:
    page.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    grounds = set()
    for system in ("light", "dark"):
        page.emulate(system)
        for _ in range(2):
            low = {kind: ratio for kind, ratio in page.run(CONTRAST).items() if ratio < 4.5}
            assert low == {}, system
            grounds.add(page.run("return getComputedStyle(document.body).backgroundColor"))
            page.click("#theme")
    assert len(grounds) == 2
    assert page.run("return localStorage.length") == 1
    page.run("localStorage.clear()")


def test_a_narrow_window_scrolls_only_down(page: Browser) -> None:
    page.emulate("light", 380)
    assert page.run("return document.documentElement.scrollWidth") <= 380


def on_a_farm() -> Record:
    """Two lanes here, two of the farm; one run came back from there."""
    runs = (
        run("csrc/here.cu", 0, 30, job=1),
        run("csrc/away.cu", 0, 40, job=2, remote=True, cpu=2.0, threads=2, archs="80;90"),
        run("csrc/back.cu", 1, 20, job=3, remote=True, cpu=2.0, outcome="returned", why="Job failed on server"),
        run("csrc/back.cu", 20, 45, job=3, attempt=2),
    )
    return make(*runs, samples=tuple(sample(float(n)) for n in range(0, 45, 3)))


def test_the_farm_has_lanes_of_its_own(chromium: Browser, tmp_path: Path) -> None:
    shelf.export(on_a_farm(), tmp_path / "farm.html")
    chromium.emulate("light")
    chromium.open(tmp_path / "farm.html")
    top = "return document.querySelector(arguments[0]).getBoundingClientRect().top"
    tops = [chromium.run(top, f'#lanes [data-i="{number}"]') for number in (0, 3, 1, 2)]
    assert tops == sorted(tops) and len(set(tops)) == 4
    assert tops[0] < tops[1] < chromium.run(top, "#lanes .apart") < tops[2]
    gutter = "return [...document.querySelectorAll('#lanes .gutter text')].map((one) => one.textContent)"
    assert chromium.run(gutter) == ["1", "2", "farm 1", "farm 2"]
    fill = "return getComputedStyle(document.querySelector(arguments[0])).fill"
    assert chromium.run(fill, '[data-i="2"] rect') not in (
        chromium.run(fill, '[data-i="0"] rect'),
        chromium.run(fill, '[data-i="1"] rect'),
    )
    chromium.point('[data-i="2"]')
    said = words(chromium, "#tip")[0]
    assert "came back from the farm: Job failed on server" in said and "on the farm" in said
    assert "came back from the farm" in words(chromium, "#lanes-help")[0]
    chromium.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    for system in ("light", "dark"):
        chromium.emulate(system)
        assert {kind: ratio for kind, ratio in chromium.run(CONTRAST).items() if ratio < 4.5} == {}, system
    assert chromium.complaints() == []
