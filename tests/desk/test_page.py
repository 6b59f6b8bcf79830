"""The desk's page in real Chromium: a day booked by hand, on a desktop, a phone and a projector."""

import base64
import re
from functools import partial
from pathlib import Path

import axe_core_python
import pytest
from playwright import sync_api as playwright

from helpers.browser import BROWSER, open_chromium
from helpers.desk import make_desk, running
from helpers.processes import HANG_SECONDS
from hundredfold.desk.server import ServerOptions, create_app

pytestmark = [BROWSER, pytest.mark.browser]

HANG_MILLISECONDS = 1000 * HANG_SECONDS
TOKEN = "a secret of this test"
expect = playwright.expect
expect.set_options(timeout=HANG_MILLISECONDS)


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """A desk that asks for a token, on a free port of this machine."""
    app = create_app(make_desk(f"sqlite:///{tmp_path_factory.mktemp('desk') / 'desk.db'}"), ServerOptions(token=TOKEN))
    with running(app) as address:
        yield address


@pytest.fixture(scope="module")
def chromium():
    with open_chromium() as browser:
        yield browser


class Clerk:
    """Works with the page by keyboard."""

    def __init__(self, browser, address, width, scheme, context=None):
        context = context or browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        context.set_default_timeout(HANG_MILLISECONDS)
        self.page = context.new_page()
        self.problems = []
        self.page.on("console", lambda line: self.problems.append(line.text) if line.type == "error" else None)
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.goto(address)
        self.page.fill("#token", TOKEN)
        self.page.press("#token", "Enter")
        self.page.wait_for_selector("#figures dd")
        self.problems.clear()  # the browser reports the 401 before the token

    def message(self, pattern):
        expect(self.page.locator("#message")).to_have_text(re.compile(pattern))

    def figure(self, name):
        return self.page.locator("#figures div", has_text=name).locator("dd").inner_text()

    def request(self, rider, pickup, dropoff, time_text):
        for field, value in (("rider", rider), ("pickup", pickup), ("dropoff", dropoff), ("time", time_text)):
            self.page.fill(f"#{field}", value)
        self.page.press("#time", "Enter")
        self.message("^Quoted")

    def fits(self, width):
        """Check that nothing has to be scrolled sideways."""
        assert self.page.evaluate("document.documentElement.scrollWidth") == width

    def press(self, key):
        self.page.keyboard.press(key)

    @property
    def places(self):
        return self.page.evaluate("[...document.querySelectorAll('#places option')].map((one) => one.value)")


def accessibility_faults(page):
    """Serious faults that axe-core finds."""
    page.evaluate((Path(axe_core_python.__file__).parent / "axe.min.js").read_text())
    found = page.evaluate("axe.run().then((result) => result.violations)")
    return [(one["id"], one["nodes"][0]["html"]) for one in found if one["impact"] in ("serious", "critical")]


SCREENS = {"desktop": (1280, "light", 1), "phone": (390, "dark", 2), "projector": (1920, "dark", 3)}


@pytest.mark.parametrize(("width", "scheme", "days"), SCREENS.values(), ids=SCREENS.keys())
def test_a_day_is_booked_moved_undone_tried_and_closed(chromium, address, width, scheme, days):
    """The whole day by keyboard, on a day of its own per screen; nothing scrolls sideways."""
    clerk = Clerk(chromium, address, width, scheme)
    page, places = clerk.page, clerk.places
    for _ in range(days):
        page.click("#next-day")
    expect(page.locator("#bookings")).to_have_text("No requests on this day yet.")
    moved = 0
    for number in range(8):
        clerk.request(f"caller, {number}", places[3 * number], places[3 * number + 4], f"{9 + number % 4:02d}:10")
        if number == 0:
            assert accessibility_faults(page) == []
            assert page.locator("#map .wanted-end").count() == 2
        offers = page.locator("#quote [data-offer]").count()
        moved += offers > 0
        clerk.press("1" if offers else "0")
        clerk.message(f"^Booked: caller, {number}, pickup about")
        clerk.fits(width)
    assert moved > 0
    assert clerk.figure("booked") == "8"
    assert clerk.figure("offers accepted") == f"{moved} of {moved}"
    assert page.locator("#map polyline").count() == page.locator("#vehicles button").count() > 0
    assert page.locator("#timeline polygon").count() == 16
    assert page.locator("#bookings tbody tr").count() == 8

    driving = clerk.figure("driving")
    page.click("#bookings tbody tr:first-child button:has-text('Without?')")
    clerk.message("Tried, nothing was booked")
    expect(page.locator("#what-if")).to_contain_text("less. Nothing was booked.")
    page.click("#bookings tbody tr:first-child button:has-text('Cancel')")
    clerk.message("^Cancelled: caller, 7")
    assert clerk.figure("booked") == "7"
    assert page.get_attribute("#undo", "title") == "Take back the cancellation of caller, 7"
    page.keyboard.press("Escape")
    clerk.press("u")
    clerk.message("^Taken back: cancellation of caller, 7")
    assert (clerk.figure("booked"), clerk.figure("driving")) == ("8", driving)

    clerk.request("caller, 9", places[1], places[8], "10:00")
    clerk.press("d")
    clerk.message("^Noted: caller, 9 declined")
    page.click("#bookings button:has-text('caller, 3')")
    expect(page.locator("#rider-history")).to_contain_text(f"{days} requests")
    assert accessibility_faults(page) == []
    page.click("#rider-dialog form button")
    page.click("#close")
    clerk.message("^The day is closed")
    with page.expect_download() as download:
        page.click("#manifests button >> nth=0")
    assert Path(download.value.path()).read_text().startswith("vehicle,stop,time")
    assert accessibility_faults(page) == []
    clerk.fits(width)
    assert clerk.problems == []


def test_nobody_takes_back_the_step_of_somebody_else(chromium, address):
    clerk, other = (Clerk(chromium, address, 1280, "light") for _ in range(2))
    for one in (clerk, other):
        for _ in range(4):
            one.page.click("#next-day")
        expect(one.page.locator("#bookings")).to_have_text("No requests on this day yet.")
    places = clerk.places
    clerk.request("mine", places[1], places[5], "09:00")
    clerk.press("0")
    clerk.message("^Booked: mine")
    other.request("theirs", places[2], places[7], "12:00")
    other.press("0")
    other.message("^Booked: theirs")
    clerk.page.click("#undo")
    # Either the page has not seen the other booking yet and is refused, or it has and names it.
    clerk.message("^(The day has changed meanwhile|Taken back: answer of theirs)")
    expect(clerk.page.locator("#bookings")).to_contain_text("mine")
    assert clerk.page.locator("#bookings tbody tr", has_text="mine").locator(".van").count() == 1


def answer_with(pixel, asked, route):
    asked.append(route.request.url)
    route.fulfill(body=pixel, content_type="image/png")


def test_tiles_are_loaded_only_where_they_are_wanted(chromium):
    """Pixels of the tile server lie under the map; a page without the option asks for none."""
    pixel = base64.b64decode(
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
    )
    for tile_url in ("https://tiles.example.org/{z}/{x}/{y}.png", None):
        asked = []
        options = ServerOptions(token=TOKEN, tile_url=tile_url)
        with running(create_app(make_desk(), options)) as address:
            context = chromium.new_context(viewport={"width": 1280, "height": 900})

            context.route("https://tiles.example.org/**", partial(answer_with, pixel, asked))
            clerk = Clerk(chromium, address, 1280, "light", context)
            expect(clerk.page.locator("#map circle").first).to_be_visible()
            assert clerk.page.locator("#map image").count() == len(set(asked))
            assert bool(asked) == (tile_url is not None)
            assert all(re.fullmatch(r"https://tiles\.example\.org/\d+/\d+/\d+\.png", url) for url in asked)
            assert clerk.problems == []
            context.close()


def test_refusals_are_told_and_text_stays_text(chromium, address):
    clerk = Clerk(chromium, address, 1280, "dark")
    page, places = clerk.page, clerk.places
    for field, value in (("rider", "<img src=x onerror=alert(1)>"), ("pickup", places[0]), ("dropoff", places[1])):
        page.fill(f"#{field}", value)
    page.fill("#time", "10:00")
    page.press("#time", "Enter")
    clerk.message("rider")
    assert page.locator("#message.bad").count() == 1
    assert page.locator("img").count() == 0
    page.fill("#rider", "somebody")
    page.fill("#pickup", "Nowhere at all")
    page.press("#pickup", "Enter")
    clerk.message("no place of this name")
    assert all("422" in line or "404" in line or "400" in line for line in clerk.problems)
