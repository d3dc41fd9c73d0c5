"""The HTML page in Chromium: sorting, filters, details of rows, small screens, and no network requests."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from lra_bench.page.page import write_page
from lra_bench.tables.layouts import LAYOUTS
from tests.support.page_records import study
from tests.support.record_factory import make_record

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")

NASTY = "<img src=x onerror=a(1)>"  # longer values are shortened in names
SMALL = "#track=small"
LISTOPS = "#track=small&task=listops"


@dataclass
class Observed:
    """Requests, console messages and dialogs of a page."""

    requests: list[str] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    dialogs: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("results")
    records = [
        *study(root),
        make_record("luna", hash="dddd0000", protocol="small", differences={"model.mixer.kind": NASTY}, command=NASTY),
    ]
    frames = {name: layout.make(records) for name, layout in LAYOUTS.items()}
    return write_page(records, frames, root).as_uri()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    arguments = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    with sync_api.sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield found
        found.close()


@pytest.fixture
def observed() -> Observed:
    return Observed()


@pytest.fixture
def visit(browser: Any, address: str, observed: Observed) -> Iterator[Any]:
    """Return a function that opens the page at a URL fragment in a new context.

    At the end of the test, there must be no other requests, console messages or dialogs.
    """
    contexts = []

    def open_page(at: str = "", **options: Any) -> Any:
        contexts.append(browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options}))
        page = contexts[-1].new_page()
        page.on("request", lambda request: observed.requests.append(request.url))
        page.on("console", lambda message: observed.messages.append(message.text))
        page.on("pageerror", lambda error: observed.messages.append(str(error)))
        page.on("dialog", lambda dialog: (observed.dialogs.append(dialog.message), dialog.dismiss()))
        page.goto(address + at)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert {url.partition("#")[0] for url in observed.requests} == {address}
    assert (observed.messages, observed.dialogs) == ([], [])


def shown(page: Any, selector: str) -> list[str]:
    """Return the texts of the visible elements."""
    return page.locator(f"{selector}:visible").all_inner_texts()


def column(page: Any, key: str, body: str = "ranked") -> list[tuple[float | None, str]]:
    """Return the sort value and the text of each cell of a column in the first visible table that has it."""
    return page.evaluate(
        """([key, kind]) => {
          const place = (each) => [...each.tHead.rows[0].cells].findIndex((head) => head.dataset.key === key);
          const all = [...document.querySelectorAll("main table")];
          const table = all.find((each) => each.checkVisibility() && place(each) >= 0);
          const at = place(table);
          return [...table.querySelectorAll(`tbody.${kind} > tr.row`)].filter((row) => !row.hidden).map((row) => {
            const { value } = row.cells[at].dataset;
            return [value === undefined ? null : Number(value), row.cells[at].innerText];
          });
        }""",
        [key, body],
    )


def head(page: Any, key: str) -> Any:
    return page.locator(f'th[data-key="{key}"]:visible').first


def test_scores_are_sorted_as_numbers_with_missing_values_last(visit: Any) -> None:
    page = visit(SMALL)
    button = head(page, "image").get_by_role("button")
    before = column(page, "image")
    assert "(" in before[0][1]
    for direction in ("descending", "ascending"):
        button.click()
        assert head(page, "image").get_attribute("aria-sort") == direction
        values = [value for value, _ in column(page, "image")]
        known = [value for value in values if value is not None]
        assert values == [*sorted(known, reverse=direction == "descending"), *[None] * (len(values) - len(known))]
        assert 2 < len(known) < len(values)
    button.click()
    assert head(page, "image").get_attribute("aria-sort") is None and column(page, "image") == before
    head(page, "parameters").get_by_role("button").click()
    sizes = [value for value, _ in column(page, "parameters")]
    assert sizes == sorted(sizes) and min(sizes) < 10_000 < max(sizes)  # sorted as text, 61,440 would follow 4,096


def test_tables_are_sorted_with_the_keyboard(visit: Any) -> None:
    page = visit(SMALL)
    head(page, "listops").get_by_role("button").focus()
    page.keyboard.press("Enter")
    values = [value for value, _ in column(page, "listops")]
    assert values == sorted(values, reverse=True)
    page.keyboard.press("Space")
    assert [value for value, _ in column(page, "listops")] == sorted(values)
    assert page.evaluate("document.activeElement.closest('th').dataset.key") == "listops"


def test_speed_is_sorted_separately_for_each_hardware(visit: Any) -> None:
    page = visit(LISTOPS)
    head(page, "train_tokens_per_second").get_by_role("button").click()
    machines = [text for _, text in column(page, "hardware")]
    speeds = [value for value, _ in column(page, "train_tokens_per_second")]
    groups = [
        (machine, [speed for _, speed in rows])
        for machine, rows in itertools.groupby(zip(machines, speeds, strict=True), lambda each: each[0])
    ]
    assert [machine for machine, _ in groups] == ["cpu-epyc-2t", "h200-bf16"]
    assert all(values == sorted(values, reverse=True) for _, values in groups)
    assert groups[1][1][0] > groups[0][1][1]  # the order across machines is different
    assert "sorted separately" in " ".join(shown(page, ".machines"))
    page.get_by_role("combobox", name="Hardware").select_option("cpu-epyc-2t")
    assert shown(page, ".machines") == []


def test_filters_select_rows_and_are_stored_in_the_url(visit: Any) -> None:
    page = visit()
    page.get_by_role("combobox", name="Protocol").select_option("small")
    page.get_by_role("combobox", name="Task").select_option("listops")
    assert shown(page, "section.track h2") == ["small protocol · 62 runs"]
    assert shown(page, ".board h3") == ["listops"]
    page.get_by_role("combobox", name="Family").select_option("sparse")
    page.get_by_role("combobox", name="Hardware").select_option("h200-bf16")
    assert [name.split()[0] for name in shown(page, "tr.row.measured th.variant")] == ["local"]
    assert page.get_by_role("status").first.inner_text() == "4 rows shown"  # includes three floors
    linked = visit(page.evaluate("location.hash"))
    assert shown(linked, "tr.row.measured th.variant") == shown(page, "tr.row.measured th.variant")
    linked.get_by_role("button", name="Reset").click()
    assert linked.evaluate("location.hash") == ""
    linked.get_by_role("combobox", name="Protocol").select_option("all protocols")
    linked.get_by_role("searchbox").fill("FEATURES=64 rope")
    assert shown(linked, "button.open") == ["performer · features=64 · rope"]
    linked.get_by_role("searchbox").fill("no such name")
    assert set(shown(linked, ".nothing")) == {"No row matches the filters."}


def test_published_rows_are_in_their_own_track(visit: Any) -> None:
    for at in (SMALL, LISTOPS):
        assert shown(visit(at), "tbody.published") == []
    page = visit("#track=_published&q=reformer")
    assert len(shown(page, "tbody.published tr.row")) >= 3 and shown(page, "tbody.ranked") == []


def test_a_row_is_opened_by_click_and_by_key(visit: Any) -> None:
    page = visit(LISTOPS)
    row = page.locator('tr.row[data-name="longformer"]:visible')
    button = row.locator("button.open")
    row.locator("td").first.click()
    assert button.get_attribute("aria-expanded") == "true"
    detail = page.locator(f"#{button.get_attribute('aria-controls')}")
    assert "seed=0,1,2" in detail.inner_text() and "Nangia and Bowman" in detail.inner_text()
    assert detail.locator("svg[role=img]").count() == 4
    heights = detail.locator("svg.chart").evaluate_all("all => all.map((each) => each.getBoundingClientRect().height)")
    assert min(heights) > 100
    page.reload()
    assert button.get_attribute("aria-expanded") == "true"
    button.press("Enter")
    assert button.get_attribute("aria-expanded") == "false" and page.locator("tr.detail").count() == 0
    button.press("Enter")
    assert page.locator("tr.detail:visible").count() == 1
    page.get_by_role("searchbox").fill("luna")
    assert page.locator("tr.detail:visible").count() == 0


def test_details_follow_their_row_and_contain_all_tasks(visit: Any) -> None:
    page = visit(SMALL)
    page.locator('tr.row[data-name="local"][data-hardware^=cpu] button.open:visible').first.click()
    tasks = page.get_by_role("group", name="Task")
    assert tasks.get_by_role("button").all_inner_texts() == ["listops", "enwik8", "image", "text"]
    tasks.get_by_role("button", name="text").click()
    assert "diverged in the factory" in page.locator("tr.detail").inner_text()
    head(page, "variant").get_by_role("button").click()
    assert page.evaluate("document.querySelector('tr.detail').previousElementSibling.dataset.name") == "local"


def test_the_command_is_copied_from_a_local_file(visit: Any) -> None:
    page = visit(LISTOPS, permissions=["clipboard-read", "clipboard-write"])
    page.locator('tr.row[data-name="longformer"] button.open:visible').click()
    page.get_by_role("button", name="Copy").first.click()
    page.get_by_role("button", name="Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()").startswith("lra-bench bench task=listops model=longformer")
    # Without the clipboard API, the selection is copied.
    page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    copied = page.evaluate(
        """() => new Promise((done) => {
          document.addEventListener("copy", () => done(String(document.activeElement.value)), { once: true });
          document.querySelector("details.config").open = true;
          document.querySelector("details.config .copy").click();
        })"""
    )
    assert copied.startswith("task:")


def test_names_with_html_are_shown_as_text(visit: Any, observed: Observed) -> None:
    page = visit(LISTOPS)
    row = page.locator("tr.row:visible", has_text=NASTY)
    row.locator("button.open").click()
    assert NASTY in page.locator("tr.detail pre").first.inner_text()
    assert page.locator("img").count() == 0
    page.get_by_role("searchbox").fill(NASTY)
    assert len(shown(page, "button.open")) == 1


def test_light_and_dark_themes_can_be_selected(visit: Any) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    reference = "getComputedStyle(document.querySelector('[data-name=transformer] .dot')).backgroundColor"
    light, dark = visit(), visit(color_scheme="dark")
    assert light.evaluate(ground) != dark.evaluate(ground)
    assert light.evaluate(reference) != dark.evaluate(reference)
    theme = dark.get_by_role("button", name="Theme")
    theme.click()
    assert theme.inner_text() == "Theme: light" and dark.evaluate(ground) == light.evaluate(ground)
    theme.click()
    assert theme.inner_text() == "Theme: dark" and dark.evaluate(ground) != light.evaluate(ground)


@pytest.mark.parametrize("at", [SMALL, LISTOPS, "#track=_published&q=reformer"])
def test_tables_scroll_on_small_screens_and_the_page_does_not(visit: Any, at: str) -> None:
    page = visit(at, viewport={"width": 390, "height": 844})
    if at != SMALL and "published" not in at:
        page.locator("button.open:visible").first.click()
        page.locator(".numbers summary:visible").first.click()
        assert page.locator("tr.detail .inner").bounding_box()["width"] <= 390
    page.locator(".guide summary").click()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    box = page.locator(".scroll:visible").first
    box.evaluate("each => { each.scrollLeft = 150; }")
    if at == SMALL:
        first = page.locator("tbody th.variant:visible").first.bounding_box()
        assert box.evaluate("each => each.scrollLeft") == 150 and first["x"] >= box.bounding_box()["x"] >= 0


def test_focused_elements_are_outlined(visit: Any) -> None:
    page = visit(SMALL)
    page.keyboard.press("Tab")
    reached = set()
    for _ in range(30):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.className + document.activeElement.localName"))
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
    assert {"sortbutton", "openbutton", "scrolldiv"} <= reached


def test_all_tables_are_visible_without_scripts(visit: Any) -> None:
    page = visit(java_script_enabled=False)
    assert page.locator(".board table").count() > 6
    assert page.locator('[id="board-small-listops-2"] tr.row').first.is_visible()
    assert not page.locator("form.controls").is_visible()


def test_the_answers_are_visible_without_scrolling_and_open_the_table_of_their_task(visit: Any) -> None:
    for width, height in ((1366, 768), (390, 844)):
        page = visit(viewport={"width": width, "height": height})
        box = page.locator(".answer").first.bounding_box()
        assert box["y"] + box["height"] < height and box["x"] >= 0 and box["x"] + box["width"] <= width
    answer = page.locator(".answer").first
    assert "best score" in answer.inner_text()
    task = answer.get_by_role("link").inner_text()
    answer.get_by_role("link").click()
    assert [title.split(":")[0] for title in shown(page, ".board h3")] == [task]
