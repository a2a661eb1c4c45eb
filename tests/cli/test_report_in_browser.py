"""A report in headless Chromium: it opens without errors; tables and charts do what they are for."""

import shutil

import pytest

from g10sim.results.reading import read_results

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = [pytest.mark.browser, pytest.mark.slow]

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)
MEMORIES = ["6500 KiB", "8 MiB", "64 MiB"]


@pytest.fixture(scope="module")
def browser():
    if BROWSER is None:
        pytest.skip(f"none of {', '.join(BROWSERS)} is installed")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def page(browser, g10sim, config, here):
    """The report of three policies under three sizes of memory."""
    assert g10sim("run", config(sweep={"system.gpu.memory": MEMORIES})).code == 0
    assert g10sim("report", "out").code == 0
    opened = browser.new_page(viewport={"width": 1200, "height": 900})
    problems = []
    opened.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.goto((here / "out" / "report.html").as_uri())
    opened.wait_for_selector("body[data-ready=yes]")
    yield opened
    opened.close()
    assert problems == []


def column(page, title):
    """The texts of a column of the results, in the rows that are shown."""
    heads = page.locator("#results thead tr:first-child th").all_text_contents()
    place = heads.index(title) + 1
    return page.locator(f"#results tbody tr:not([hidden]) td:nth-child({place})").all_text_contents()


def wait_for(page, condition):
    """Wait until something holds; the page itself lets no text run as a program."""
    for _ in range(100):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(100)
    raise AssertionError(condition)


@pytest.mark.parametrize("width", [1200, 1920])
def test_it_fits(page, width):
    page.set_viewport_size({"width": width, "height": 1000})
    page.wait_for_timeout(500)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator("#chart .main-svg").first.bounding_box()["width"] > width / 2
    tables = "[...document.querySelectorAll('.scroll')].filter(box => box.offsetParent)"
    assert page.evaluate(f"{tables}.every(box => box.scrollWidth <= box.clientWidth)")
    assert page.locator("#configuration, details").first.get_attribute("open") is None


def test_tables_sort_and_filter(page):
    shares = [float(text.rstrip("%")) for text in column(page, "of ideal")]
    header = page.locator("#results thead th", has_text="of ideal")
    header.click()
    assert [float(text.rstrip("%")) for text in column(page, "of ideal")] == sorted(shares)
    header.click()
    assert [float(text.rstrip("%")) for text in column(page, "of ideal")] == sorted(shares, reverse=True)
    page.get_by_label("filter of ideal").first.fill("<100")
    below = [share for share in shares if share < 100]
    assert 0 < len(below) < len(shares)
    assert len(column(page, "of ideal")) == len(below)
    assert page.locator("#count").text_content() == f"{len(below)} of 9 rows"
    page.get_by_label("filter policy").first.fill("deepum")
    assert set(column(page, "policy")) == {"DeepUM+"}
    drawn = page.evaluate("document.getElementById('parts').data[0].y.length")
    assert drawn == len(column(page, "policy"))  # the breakdown is of what the table shows


def test_charts_show_the_results(page):
    results = read_results("out")
    shown = {line["name"]: line for line in page.evaluate(
        "document.getElementById('chart').data.map(line => ({name: line.name, x: line.x, y: line.y}))"
    )}  # fmt: skip
    assert set(shown) == {"Base UVM", "DeepUM+", "Ideal", "Bound"}
    assert shown["Ideal"]["y"] == [1, 1, 1]
    for policy, label in (("base_uvm", "Base UVM"), ("deepum", "DeepUM+")):
        expected = results[results["policy"] == policy]["performance"]
        assert shown[label]["x"] == ["6.34766", "8", "64"]  # in MiB, as the legend of the axis says
        assert shown[label]["y"] == pytest.approx(list(expected), rel=1e-5)
    page.locator("select#y").select_option(label="time of an iteration (ms)")
    names = page.evaluate("document.getElementById('chart').data.map(line => line.name)")
    assert names == ["Ideal", "Base UVM", "DeepUM+"]


def test_policies_can_be_hidden_and_the_chart_zoomed(page):
    page.locator("#chart .legendtoggle").first.click()
    wait_for(page, "document.getElementById('chart').data[0].visible === 'legendonly'")
    box = page.locator("#chart .nsewdrag").first.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + box["height"] * 0.3)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + box["height"] * 0.7, steps=5)
    page.mouse.up()
    wait_for(page, "document.getElementById('chart').layout.yaxis.range[0] > 0.1")


def test_the_best_policy_is_named_where_it_is_best(page):
    results = read_results("out")
    others = results[results["policy"] != "ideal"]
    labels = {"base_uvm": "Base UVM", "deepum": "DeepUM+"}
    cells = page.locator("#pivot td b").all_text_contents()
    for memory, best in zip(MEMORIES, cells, strict=True):
        rows = others[others["system.gpu.memory"] == memory]
        assert best in {
            labels[row.policy] for row in rows.itertuples() if row.performance == rows.performance.max()
        }
