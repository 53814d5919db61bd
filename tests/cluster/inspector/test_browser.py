"""The inspector in headless Chromium: what a reader sees and does, and what a hostile trajectory cannot do."""

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import uvicorn
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from squelch.cluster.inspector.app import application
from squelch.cluster.inspector.server import access_of, listen
from squelch.cluster.runs.folder import RunFolder
from squelch.kit.archive.writer import Archive
from tests.cluster.inspector.agent_run import agent_run
from tests.cluster.inspector.falling_run import falling_run
from tests.cluster.inspector.small_run import add_step, group, small_run, write_step
from tests.kit.text.made import rendering_here
from tests.needs import skip_or_fail

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Headless Chromium. Without it the tests are skipped with the reason; where CI is set, they fail."""
    path = shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        skip_or_fail("no chromium is installed; on Debian: apt-get install chromium")
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield found
        found.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_run(tmp_path_factory.mktemp("browsed") / "small")


@contextmanager
def served(folder: Path, prefix: str = "") -> Iterator[str]:
    """The inspector of a run, served in a thread of this process; `prefix`: behind a proxy that takes it away."""
    with listen("127.0.0.1", 0) as listening:
        port = listening.getsockname()[1]
        access = access_of("127.0.0.1", 8420, None, [])  # at another port, as behind a tunnel
        inspector = application(RunFolder(folder), access)

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["path"].startswith(f"{prefix}/"):
                await inspector(scope | {"path": scope["path"].removeprefix(prefix)}, receive, send)
            else:
                await PlainTextResponse("the proxy knows no such path", status_code=404)(scope, receive, send)

        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{port}{prefix}"
        server.should_exit = True
        thread.join(180)


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    """The inspector of `folder`."""
    with served(folder) as found:
        yield found


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page on which no script failed and the content policy refused nothing."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    found, wrong = context.new_page(), list[str]()

    def note(message: ConsoleMessage) -> None:
        if message.type == "error" and "422" not in message.text:
            wrong.append(message.text)

    found.on("console", note)
    found.on("pageerror", lambda error: wrong.append(str(error)))
    found.set_default_timeout(60_000)
    expect.set_options(timeout=60_000)
    yield found
    context.close()
    assert not wrong, wrong


PAGES = {
    "/": ".first-page .smalls svg",
    "/groups": "table.groups tbody tr",
    "/group?step=1&group=000001-000": ".trajectory .sampled i",
    "/compare?a=1:000001-000&b=2:000002-000": ".side .trajectory",
    "/scores?row=0&column=1": "canvas[data-drawn]",
    "/templates?prompt=1": ".templates tr[data-row]",
    "/timeline": ".lanes[data-drawn]",
    "/figures": ".charts[data-drawn] .uplot",
    "/where": ".where[data-dimension=turn] td b",
    "/search?text=goal": ".hits mark",
}
"""A part that is there once the page is drawn, by address."""
SIDEWAYS = """async () => {
  await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
  return [document.documentElement, ...document.querySelectorAll("body *")]
  .filter(e => e.scrollWidth > e.clientWidth + 1 && (e === document.documentElement
    || ["auto", "scroll"].includes(getComputedStyle(e).overflowX)))
  .map(e => `${e.tagName}.${e.className}: ${e.scrollWidth} in ${e.clientWidth}`); }"""
"""What can be scrolled sideways on a page, once it is painted."""


def test_every_page_opens_without_an_error_of_script_or_policy_and_scrolls_sideways_at_no_width(
    page: Page, address: str
) -> None:
    for path, drawn in PAGES.items():
        page.goto(address + path)
        page.wait_for_selector(drawn)
        for width in (1280, 611, 400, 320):
            page.set_viewport_size({"width": width, "height": 800})
            assert page.evaluate(SIDEWAYS) == [], (path, width)
        page.set_viewport_size({"width": 1280, "height": 800})


def test_axe_finds_nothing_wrong_on_any_page_light_or_dark(
    page: Page, address: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with served(falling_run(tmp_path_factory.mktemp("fallen") / "falling")) as falling:
        for path, drawn in (*((address + path, drawn) for path, drawn in PAGES.items()), (falling, ".found li")):
            page.emulate_media(color_scheme="light")
            page.goto(path)
            page.wait_for_selector(drawn)
            assert wrong(page) == [], path
            page.emulate_media(color_scheme="dark")
            assert wrong(page, runOnly=["color-contrast"]) == [], f"{path}, dark"


def test_the_first_page_works_by_keys_fits_a_phone_and_follows_a_run(
    page: Page, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = falling_run(tmp_path_factory.mktemp("pressed") / "falling")
    with served(folder) as falling:
        page.goto(f"{falling}/figures")
        page.wait_for_load_state()
        page.keyboard.press("g")
        page.keyboard.press("r")
        expect(page.locator("h1.verdict")).to_contain_text("the answer ignores the reasoning")
        for width in (1280, 360):
            page.set_viewport_size({"width": width, "height": 800})
            assert page.evaluate(SIDEWAYS) == [], width
        first = page.locator(".smalls a").first
        first.focus()
        page.keyboard.press("Enter")
        page.wait_for_url("**/scores?step=5")
        page.wait_for_selector("canvas[data-drawn]")
        page.locator("#status-line .alarm").click()
        page.wait_for_url(f"{falling}/#found")
        archive = Archive(folder)
        archive.metrics(41, {"success": 0.2, "total_steps": 50.0, "seconds/step": 9.0}, at=2000.0)
        archive.close()
        expect(page.locator("h1.verdict")).to_contain_text("At step 41 of 50")
        page.locator(".found summary").first.click()
        with page.expect_response(f"{falling}/"):
            page.evaluate("htmx.trigger(document.body, 'run-changed')")
        page.wait_for_timeout(200)
        kept = page.locator(".found details[open]")
        expect(kept, "a step does not close what was opened").to_have_count(1)
        page.keyboard.press("j")
        expect(page.locator(".found li.at")).to_have_count(1)
        page.keyboard.press("Enter")
        page.wait_for_url("**/scores?step=20")
        expect(page.locator(".judged")).to_contain_text("These reasonings depend on their prompts")


def wrong(page: Page, **options: list[str]) -> list[tuple[str, str, str]]:
    """What axe finds wrong: the rule, the first element, and what would mend it."""
    found = Axe().run(page, options={"resultTypes": ["violations"], **options}).response["violations"]
    return [(one["id"], one["nodes"][0]["html"], one["nodes"][0]["failureSummary"]) for one in found]


def test_behind_a_proxy_with_a_prefix_every_page_opens_and_leads_to_the_others(page: Page, folder: Path) -> None:
    with served(folder, "/user/me/proxy/8420") as behind:
        for path, drawn in PAGES.items():
            page.goto(behind + path)
            page.wait_for_selector(drawn)
        page.goto(f"{behind}/groups")
        page.wait_for_selector("table.groups tbody tr")
        for key, path in (("s", "/scores"), ("f", "/figures"), ("r", "/"), ("g", "/groups")):
            page.keyboard.press("g")
            page.keyboard.press(key)
            page.wait_for_url(behind + path)
        page.locator("[data-open]").first.click()
        page.wait_for_selector(".trajectory .sampled i")
        page.fill("#search", "goal")
        page.press("#search", "Enter")
        page.wait_for_selector(".hits mark")
        assert page.url == f"{behind}/search?text=goal"


def test_hostile_text_is_shown_and_does_nothing(page: Page, address: str) -> None:
    page.goto(f"{address}/group?step=1&group=000001-003")
    sampled = page.locator(".trajectory").first.locator(".sampled").first
    expect(sampled).to_contain_text("<script>window.hacked=1</script>")
    expect(sampled).to_contain_text("\\x1b[31m\\u202eevil\\u2066 {{ 7*7 }} \\x00")
    expect(page.locator(".cause").first).to_contain_text("<img src=x onerror=")
    assert page.evaluate("window.hacked") is None
    assert page.locator("main script, main img").count() == 0
    assert page.evaluate(
        "[...document.querySelectorAll('.sampled')].every(e => getComputedStyle(e).unicodeBidi === 'isolate')"
    )


def test_a_conversation_fits_every_width_and_its_hostile_texts_do_nothing(
    page: Page, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with rendering_here():
        folder = agent_run(tmp_path_factory.mktemp("agent") / "run", tmp_path_factory.mktemp("model") / "tools")
    with served(folder) as conversing:
        page.goto(f"{conversing}/group?step=1&group=000001-000")
        hostile = page.locator("#t2")
        expect(hostile.locator(".call").nth(1)).to_contain_text("nonsense <script>window.hacked=1</script>")
        result = hostile.locator(".message", has=page.locator(".role", has_text="result of weather"))
        expect(result.locator("pre")).to_contain_text('sunny <script>window.hacked=1</script><img src=x onerror="')
        expect(hostile.locator(".segment").last).to_contain_text("history rewritten 3 messages as in segment 1")
        hostile.locator("summary", has_text="prompt from there on").last.click()
        expect(hostile.locator(".turn").last).to_contain_text("Summary: it was sunny. And Bonn?")
        assert page.evaluate("window.hacked") is None and page.locator("main script, main img").count() == 0
        for width in (1280, 400, 320):
            page.set_viewport_size({"width": width, "height": 800})
            assert page.evaluate(SIDEWAYS) == [], width


def test_an_inline_script_that_got_into_the_page_would_not_run(browser: Browser, address: str) -> None:
    context = browser.new_context()
    found = context.new_page()
    found.goto(address)
    found.evaluate("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.hacked = 1\">')")
    found.evaluate("document.body.append(Object.assign(document.createElement('script'), {textContent: 'hacked = 1'}))")
    found.wait_for_timeout(200)
    assert found.evaluate("window.hacked") is None
    context.close()


def test_keys_move_open_search_and_go_back(page: Page, address: str) -> None:
    page.goto(f"{address}/groups")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("k")
    expect(page.locator("tr.at")).to_have_count(1)
    page.keyboard.press("Enter")
    named = page.locator(".facts .mono").first
    expect(named).to_have_text("000003-000")
    page.wait_for_load_state()  # keys work once the page's script has run
    page.keyboard.press("]")
    expect(named).to_have_text("000003-001")
    page.go_back()
    expect(named).to_have_text("000003-000")
    page.keyboard.press("g")
    page.keyboard.press("w")
    hard = page.locator(".where tr", has_text="4 x 4")
    expect(hard.locator("td")).to_have_count(4)
    expect(hard.locator("td").first).to_contain_text("best 0.3 at step 1")
    page.keyboard.press("g")
    page.keyboard.press("g")
    expect(page.locator("table.groups")).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("zero variance")
    page.keyboard.press("Enter")
    page.wait_for_url("**q=zero**")
    expect(page.locator("table.groups tbody tr")).to_have_count(3)


def test_the_list_is_searched_before_the_scripts_have_run(browser: Browser, address: str) -> None:
    context = browser.new_context(java_script_enabled=False)
    found = context.new_page()
    found.goto(f"{address}/groups")
    found.fill("main input[name=q]", "zero variance")
    found.press("main input[name=q]", "Enter")
    expect(found.locator("table.groups tbody tr")).to_have_count(3)
    context.close()


def test_filters_change_the_address_and_the_address_restores_them(page: Page, address: str) -> None:
    page.goto(f"{address}/groups")
    page.select_option("select[name=decision]", "dropped")
    page.wait_for_url("**decision=dropped**")
    expect(page.locator("table.groups tbody tr")).to_have_count(3)
    page.locator("th a", has_text="tokens").click()
    page.wait_for_url("**sort=tokens**")
    there = page.url
    page.goto(f"{address}/figures")
    page.goto(there)
    expect(page.locator("select[name=decision]")).to_have_value("dropped")
    expect(page.locator("th[aria-sort=descending]")).to_contain_text("tokens")


def test_a_cell_of_the_matrix_opens_both_texts_and_is_in_the_address(page: Page, address: str) -> None:
    page.goto(f"{address}/scores")
    canvas = page.wait_for_selector("canvas[data-drawn]")
    box = canvas.bounding_box()
    page.mouse.click(box["x"] + box["width"] * 5 / 6, box["y"] + box["height"] / 12)
    expect(page.locator("#cell")).to_contain_text("Another prompt")
    label = page.locator(".x-axis text").nth(2).bounding_box()
    assert abs(label["x"] + label["width"] / 2 - (box["x"] + box["width"] * 5 / 6)) < 2
    assert box["x"] + box["width"] > 700, "the matrix and the cell's text share the page's width"
    assert page.url.endswith("row=0&column=2")
    canvas.focus()
    page.keyboard.press("ArrowDown")
    expect(page.locator("#cell")).to_contain_text("trajectory 1")
    there = page.url
    page.goto(there)
    expect(page.locator("#cell")).to_contain_text("trajectory 1")


def test_a_legend_says_the_last_value_and_a_constant_has_an_axis_from_0(page: Page, address: str) -> None:
    page.goto(f"{address}/figures?smooth=5")
    page.wait_for_selector(".charts[data-drawn]")
    success = page.locator(".chart", has_text="Success").locator(".u-series:not(.band)", has_text="training")
    expect(success.locator(".u-value")).to_have_text("0.2")
    plot = page.locator(".chart", has_text="Seconds").locator(".u-over")
    plot.hover(position={"x": 1, "y": 60})
    expect(success.locator(".u-value")).to_have_text("0.1", timeout=60_000)
    axes = "document.querySelector('.charts').plots.map(p => [p.series[1].label, p.scales.y.min, p.scales.y.max])"
    assert ["rollout", 0, 8] in page.evaluate(axes), "a constant 4"
    expect(page.locator("#unmeasured")).to_contain_text("Fixed probe")


def test_a_token_says_its_probability_and_the_theme_stays(page: Page, address: str) -> None:
    page.goto(f"{address}/group?step=1&group=000001-000")
    page.locator(".sampled i").nth(4).hover()
    expect(page.locator("#tip")).to_contain_text("nats")
    before = page.evaluate("getComputedStyle(document.body).color")
    page.keyboard.press("t")
    page.reload()
    assert page.evaluate("getComputedStyle(document.body).color") != before
    page.keyboard.press("?")
    expect(page.locator("dialog")).to_be_visible()


def test_a_wrong_address_is_answered_in_words(page: Page, address: str) -> None:
    page.goto(f"{address}/group?step=1&group=none")
    expect(page.locator(".error")).to_contain_text("holds no group")
    page.locator(".error a").click()
    page.wait_for_selector("table.groups tbody tr")


def test_a_live_run_adds_its_steps_to_the_open_page(page: Page, address: str, folder: Path) -> None:
    page.goto(f"{address}/groups")
    first = page.locator("table.groups tbody tr").first
    expect(first).to_contain_text("3")
    archive = Archive(folder)
    add_step(archive, 4)
    archive.close()
    expect(page.locator("#status-line")).to_contain_text("step 4", timeout=60_000)
    expect(first.locator("td").first).to_have_text("4", timeout=60_000)


def test_the_trajectories_of_a_large_group_fill_a_grid(page: Page, folder: Path, address: str) -> None:
    archive = Archive(folder)
    write_step(archive, 5, [group(5, 0, tuple(float(n % 2) for n in range(16)))])
    archive.close()
    page.goto(f"{address}/group?step=5&group=000005-000")
    boxes = [gpu.bounding_box() for gpu in page.locator(".trajectory").all()]
    assert len(boxes) == 16 and len({box["y"] for box in boxes}) == 4
    assert max(box["x"] + box["width"] for box in boxes) <= 1280
