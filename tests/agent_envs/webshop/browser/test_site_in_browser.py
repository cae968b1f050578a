"""The site as a person's browser shows it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from agent_envs.webshop.browser.chromium import Chromium
from agent_envs.webshop.browser.errors import BrowserError
from agent_envs.webshop.engine import Rules
from agent_envs.webshop.site.app import Site
from agent_envs.webshop.site.server import SiteServer
from tests.agent_envs.webshop import shops
from tests.agent_envs.webshop.site.test_security import SCRIPT, hostile_shop

DESK = shops.DESKS[0]
ITEM = f"/item_page/fixed_0/{DESK}/desk/1/%7B%7D"
PATHS = (
    "/fixed_0",
    "/search_results/fixed_0/desk/1",
    "/search_results/fixed_0/desk/9",
    ITEM,
    f"/item_sub_page/fixed_0/{DESK}/desk/1/Features/%7B%7D",
    f"/done/fixed_0/{DESK}/%7B%7D",
    "/score/fixed_0",
    "/about",
    "/nobody",
)


@pytest.fixture(scope="module")
def server(browser: None) -> Iterator[SiteServer]:
    shop = shops.shop()
    with SiteServer(Site(shop, shop.goals("human"), "human", Rules(show_attributes=True))) as made:
        yield made


@pytest.fixture(scope="module")
def chromium(browser: None) -> Iterator[Chromium]:
    made = Chromium()
    yield made
    made.close()


def run(chromium: Chromium, script: str) -> Any:
    return chromium.driver.execute_script(script)


def gone(driver: Any, element: Any) -> None:
    """Waits until the page of `element` was left: a script's way to another is not waited for."""
    from selenium.webdriver.support.expected_conditions import staleness_of
    from selenium.webdriver.support.wait import WebDriverWait

    WebDriverWait(driver, 30).until(staleness_of(element))


def test_a_person_chooses_options_and_buys(server: SiteServer, chromium: Chromium) -> None:
    driver = chromium.driver
    driver.get(f"{server.url}/fixed_2")
    field = driver.find_element("id", "search_input")
    assert driver.switch_to.active_element == field
    field.send_keys("writing desk")
    field.submit()
    found(driver, DESK, "partial link text").click()
    label = found(driver, "//label[text()='navy blue']", "xpath")
    label.click()  # what a mouse hits is the label, and it chooses the radio input
    gone(driver, label)
    label = found(driver, "//label[text()='navy blue']", "xpath")
    radio = driver.find_element("id", label.get_attribute("for") or "")
    assert radio.is_selected()
    colours = [
        run(chromium, f"return getComputedStyle({where}).backgroundColor")
        for where in (
            "document.querySelector('input:checked + label')",
            "document.querySelector('input:not(:checked) + label')",
        )
    ]
    assert colours[0] != colours[1]  # the chosen option is seen to be chosen
    driver.find_element("css selector", ".purchase").click()
    reward = float(found(driver, "#reward pre").text)
    assert "Thank you" in driver.find_element("tag name", "body").text
    visit = server.site.visit("fixed_2")
    assert visit.purchase is not None
    assert visit.purchase.reward == reward
    assert visit.purchase.options == (("color", "navy blue"),)


def test_the_keyboard_chooses_options_too(server: SiteServer, chromium: Chromium) -> None:
    from selenium.webdriver.common.keys import Keys

    driver = chromium.driver
    driver.get(f"{server.url}{ITEM}")
    link = driver.find_element("css selector", "a.choose[aria-label='red']")
    link.send_keys(Keys.ENTER)
    gone(driver, link)
    assert "red" in driver.current_url
    current = driver.find_element("css selector", "a.choose[aria-current='true']")
    assert current.get_attribute("aria-label") == "red"


def test_the_page_keeps_its_place_while_options_are_chosen(
    server: SiteServer, chromium: Chromium
) -> None:
    driver = chromium.driver
    driver.set_window_size(500, 400)
    try:
        driver.get(f"{server.url}{ITEM}")
        run(chromium, "window.scrollTo(0, 250)")
        place = run(chromium, "return window.scrollY")
        assert place > 100
        former = driver.find_element("tag name", "body")
        run(chromium, "document.querySelector('input[value=red]').click()")
        gone(driver, former)
        assert "red" in driver.current_url
        assert run(chromium, "return window.scrollY") == place
        driver.get(f"{server.url}/item_page/fixed_0/{shops.DESKS[2]}/desk/1/%7B%7D")
        assert run(chromium, "return window.scrollY") == 0
    finally:
        driver.set_window_size(1280, 900)


def test_it_works_without_scripts(server: SiteServer) -> None:
    chromium = Chromium(switches=("--blink-settings=scriptEnabled=false",))
    try:
        driver = chromium.driver
        driver.get(f"{server.url}/fixed_3")
        driver.find_element("id", "search_input").send_keys("writing desk")
        found(driver, ".btn").click()
        found(driver, DESK, "partial link text").click()
        found(driver, "a.choose[aria-label='m']").click()
        assert found(driver, "input[value='m']:checked").is_selected()
        found(driver, ".purchase").click()
        assert found(driver, "#reward pre").text
        visit = server.site.visit("fixed_3")
        assert visit.purchase is not None
        assert visit.purchase.options == (("size", "m"),)
    finally:
        chromium.close()


def test_the_policy_of_the_pages_is_met_by_the_pages(
    server: SiteServer, chromium: Chromium
) -> None:
    """No inline script or style, nothing from outside: nothing is blocked, nothing missing."""
    driver = chromium.driver
    for path in PATHS:
        driver.get(f"{server.url}{path}")
        said = [e["message"] for e in logs(chromium) if path != "/nobody" or "404" not in str(e)]
        assert said == [], path
        assert run(
            chromium,
            "return [...document.images].every((i) => i.complete && i.naturalWidth > 0)"
            " && document.styleSheets.length === 1"
            " && (document.documentElement.classList.contains('js'))",
        )


def found(driver: Any, what: str, by: str = "css selector") -> Any:
    """An element as soon as it is there: a click returns before a slow page has come."""
    from selenium.webdriver.support.wait import WebDriverWait  # of an extra

    return WebDriverWait(driver, 60).until(lambda d: d.find_element(by, what))


def logs(chromium: Chromium) -> list[dict[str, Any]]:
    driver = chromium.driver
    driver.command_executor._commands["getLog"] = ("POST", "/session/$sessionId/se/log")
    found: list[dict[str, Any]] = driver.execute("getLog", {"type": "browser"})["value"]
    return found


@pytest.mark.parametrize("width", [320, 390, 768, 1280])
def test_no_page_is_wider_than_its_window(
    server: SiteServer, chromium: Chromium, width: int
) -> None:
    driver = chromium.driver
    driver.command_executor._commands["cdp"] = ("POST", "/session/$sessionId/goog/cdp/execute")
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600}
    command = {"cmd": "Emulation.setDeviceMetricsOverride", "params": size}
    driver.execute("cdp", command)
    try:
        odd = f"/item_page/fixed_0/{shops.ODD}/odd%20lamp/1/%7B%7D"
        for path in (*PATHS, odd):
            driver.get(f"{server.url}{path}")
            assert run(chromium, "return innerWidth") == width
            assert run(chromium, "return document.documentElement.scrollWidth") <= width, path
    finally:
        driver.execute("cdp", {"cmd": "Emulation.clearDeviceMetricsOverride", "params": {}})


def test_light_and_dark(server: SiteServer, chromium: Chromium) -> None:
    driver = chromium.driver
    driver.command_executor._commands["cdp"] = ("POST", "/session/$sessionId/goog/cdp/execute")
    luminance = {}
    for scheme in ("light", "dark"):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        command = {"cmd": "Emulation.setEmulatedMedia", "params": {"features": features}}
        driver.execute("cdp", command)
        driver.get(f"{server.url}{ITEM}")
        colours = run(
            chromium,
            "const s = getComputedStyle(document.body); return [s.backgroundColor, s.color]",
        )
        luminance[scheme] = [sum(map(int, c[4:-1].split(","))) for c in colours]
    driver.execute("cdp", {"cmd": "Emulation.setEmulatedMedia", "params": {"features": []}})
    assert luminance["light"][0] > 600 > 200 > luminance["light"][1]
    assert luminance["dark"][0] < 200 < 600 < luminance["dark"][1]


def test_scripts_in_products_do_not_run(chromium: Chromium) -> None:
    shop = hostile_shop()
    site = Site(shop, shop.goals("human"), "human", Rules(show_attributes=True))
    driver = chromium.driver
    logs(chromium)  # what is there of other tests
    with SiteServer(site) as server:
        for path in (
            "/fixed_0",
            "/search_results/fixed_0/script/1",
            "/item_page/fixed_0/B0HOSTILE1/x/1/%7B%7D",
            "/item_sub_page/fixed_0/B0HOSTILE1/x/1/Description/%7B%7D",
            "/done/fixed_0/B0HOSTILE1/%7B%7D",
            "/score/fixed_0",
        ):
            driver.get(f"{server.url}{path}")
            assert run(chromium, "return document.scripts.length") == 1
            # An open alert would fail the next command, and the policy would have been told.
            assert logs(chromium) == []
        driver.get(f"{server.url}/item_page/fixed_0/B0HOSTILE1/x/1/%7B%7D")
        run(chromium, "document.querySelector('input[type=radio]').click()")
        assert driver.current_url.startswith(server.url)
        assert SCRIPT in driver.find_element("css selector", "h2").text


def test_a_page_of_the_site_that_is_no_page_of_the_visit_is_an_error(env: Any) -> None:
    env.reset(seed=0)
    env.step("search[desk]")
    base = env.unwrapped
    driver = base.front.driver
    driver.execute_script("document.querySelector('.product-link').href = '/about'")
    listed = next(a for a in base._admissible() if "b0desk" in a)
    with pytest.raises(BrowserError, match="/about"):
        env.step(listed)
    assert "Page 1" in env.step("search[desk]")[0]
