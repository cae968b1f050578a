"""What visitors send can harm neither other visitors nor the machine."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from agent_envs.errors import MissingData
from agent_envs.webshop.catalogue import Shop
from agent_envs.webshop.site import log as site_log
from agent_envs.webshop.site.app import BODY_LIMIT, HEADERS, Site, create_app
from agent_envs.webshop.site.log import SessionLog
from tests.agent_envs.webshop import shops
from tests.agent_envs.webshop.site.conftest import page
from tests.agent_envs.webshop.site.reading import Read

SCRIPT = "<script>alert('x')</script><img src=x onerror=alert(1)>\"'`&lt;"
DESK = shops.DESKS[0]


def hostile_shop() -> Shop:
    """One product whose every text is a script."""
    raw = shops.raw(
        "B0HOSTILE1",
        SCRIPT,
        full_description=SCRIPT,
        small_description=[SCRIPT, "javascript:alert(1)"],
        images=["javascript:alert(1)", f"https://x/{SCRIPT}"],
        category=SCRIPT,
        query=SCRIPT,
        product_category=SCRIPT,
        customization_options={
            SCRIPT: [{"value": SCRIPT, "image": f"data:text/html,{SCRIPT}"}],
            "../../x": [{"value": "..\\..\\x"}],
        },
    )
    attributes = {"B0HOSTILE1": {"attributes": [SCRIPT]}}
    humans = {
        "B0HOSTILE1": [
            {
                "instruction": SCRIPT,
                "instruction_attributes": [SCRIPT],
                "instruction_options": [SCRIPT],
            }
        ]
    }
    return Shop.from_raw([raw], attributes, humans)


def test_scripts_in_products_and_goals_stay_texts() -> None:
    shop = hostile_shop()
    site = Site(shop, shop.goals("human"), "human", shops_rules())
    client = create_app(site).test_client()
    pages = [page(client, "/fixed_0"), page(client, "/fixed_0", search_query=SCRIPT)]
    item = page(client, "/item_page/fixed_0/B0HOSTILE1/x/1/{}")
    for radio in item.radios:
        pages.append(page(client, radio.attributes["data-url"]))
    for name in ("Description", "Features", "Attributes"):
        pages.append(page(client, f"/item_sub_page/fixed_0/B0HOSTILE1/x/1/{name}/{{}}"))
    chosen = pages[2]
    buy = next(
        e.attributes["action"] for e in chosen.elements if e.tag == "form" and "Buy" in e.text
    )
    pages += [page(client, buy, x="y"), page(client, "/score/fixed_0")]
    assert sum("alert('x')" in read.shown for read in pages) >= 6
    for read in pages:
        assert [e.attributes["src"] for e in read.elements if e.tag == "script"] == [
            "/static/shop.js"
        ]
        assert {e.attributes["src"] for e in read.elements if e.tag == "img"} <= {
            "/static/other.svg"
        }
        for element in read.elements:
            assert not [name for name in element.attributes if name.startswith("on")]


def shops_rules() -> Any:
    from agent_envs.webshop.engine import Rules

    return Rules(show_attributes=True)


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py",
        "/static/..%2fapp.py",
        "/static/%2e%2e/visits.py",
        "/static/....//app.py",
        "/static//etc/passwd",
        "/static/..%5capp.py",
        "/static/shop.css%00.svg",
        "/../../etc/passwd",
        "/%2e%2e%2f%2e%2e%2fetc%2fpasswd",
        "/templates/base.html",
        "/.git/config",
        "/done/../fixed_0",
    ],
)
def test_paths_lead_to_no_file(client: Any, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 404
    assert "import " not in answer.text
    assert "root:" not in answer.text


def test_sessions_of_others_cannot_be_found(site: Site, client: Any) -> None:
    """Ids look alike, but only the whole one opens a visit; and no page lists them."""
    sid = site.new_visit().sid
    for guess in (sid[:-1], sid + "A", sid.swapcase(), sid[::-1], f"{sid}%20", f"{sid}%0A", "%20"):
        assert client.get(f"/search_results/{guess}/desk/1").status_code == 404
    assert sid not in client.get("/fixed_0").text
    assert sid not in client.get("/about").text


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "TRACE", "CONNECT", "PROPFIND", "X"])
def test_odd_methods_are_refused(client: Any, method: str) -> None:
    for path in ("/", "/fixed_0", f"/done/fixed_0/{DESK}/{{}}", "/about"):
        answer = client.open(path, method=method)
        assert answer.status_code == 405
        assert "GET" in answer.headers["Allow"]


@pytest.mark.parametrize(
    "headers",
    [
        {"X-Forwarded-Host": "evil.example"},
        {"X-Original-URL": "/done"},
        {"X-HTTP-Method-Override": "DELETE"},
        {"Cookie": "session=" + "x" * 4000},
        {"Content-Type": "multipart/form-data"},
        {"Content-Type": "multipart/form-data; boundary=" + "b" * 300},
        {"Content-Type": "application/json"},
        {"Content-Type": "text/html; charset=utf-7"},
        {"Accept-Encoding": "\x7f"},
        {"Range": "bytes=0-,0-,0-,0-"},
        {"If-None-Match": "*"},
    ],
)
def test_odd_headers_change_nothing(client: Any, headers: dict[str, str]) -> None:
    plain = client.get("/fixed_0").text
    assert client.get("/fixed_0", headers=headers).text == plain
    answer = client.post("/fixed_0", data=b"search_query=desk", headers=headers)
    assert answer.status_code in (303, 400)
    assert "evil" not in answer.text + str(answer.headers)


def test_oversized_forms_are_refused(client: Any) -> None:
    answer = client.post("/fixed_0", data={"search_query": "x" * (BODY_LIMIT + 1)})
    assert answer.status_code == 413
    many = "&".join(f"a{number}=1" for number in range(5_000))
    kind = "application/x-www-form-urlencoded"
    answer = client.post("/fixed_0", data=many, content_type=kind)
    assert answer.status_code in (303, 413)
    answer = client.post("/fixed_0", data=b"search_query=%ff%fe%80", content_type=kind)
    assert answer.status_code == 303


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/fixed_0",
        "/search_results/fixed_0/desk/1",
        "/about",
        "/static/shop.css",
        "/static/nothing.css",
        "/nobody",
    ],
)
def test_every_answer_has_the_protecting_headers(client: Any, path: str) -> None:
    answer = client.get(path)
    for name, value in HEADERS.items():
        assert answer.headers[name] == value
    policy = answer.headers["Content-Security-Policy"]
    assert "unsafe" not in policy
    assert "http" not in policy
    assert "Set-Cookie" not in answer.headers
    if not path.startswith("/static"):
        assert answer.headers["Cache-Control"] == "no-store"


def test_a_site_of_this_machine_answers_under_its_own_names_only(site: Site) -> None:
    client = create_app(site, {"127.0.0.1", "localhost", "[::1]"}).test_client()
    for host in (
        "127.0.0.1:3000",
        "localhost",
        "localhost:80",
        "LOCALHOST:3000",
        "LocalHost",
        "[::1]:3000",
        "[::1]",
    ):
        assert client.get("/fixed_0", headers={"Host": host}).status_code == 200
    for host in (
        "evil.example",
        "evil.example:3000",
        "127.0.0.1.evil.example",
        "localhost.",
        "[::1].evil.example",
        "[::1",
        "[::2]",
        "[]",
        "localhost:evil",
        "",
    ):
        assert client.get("/fixed_0", headers={"Host": host}).status_code == 400
    named = create_app(site, {"Shop.LAN"}).test_client()
    assert named.get("/", headers={"Host": "sHOP.lan:80"}).status_code == 303
    assert create_app(site).test_client().get("/", headers={"Host": "shop.lan"}).status_code == 303


def test_a_fault_of_the_site_shows_nothing_of_it(
    site: Site, client: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*args: object) -> None:
        raise RuntimeError("an inner secret")

    monkeypatch.setattr(site, "html", fail)
    with caplog.at_level(logging.ERROR):
        answer = client.get("/search_results/fixed_0/a%0DERROR forged%1b[2J/1")
    assert answer.status_code == 500
    assert "secret" not in answer.text
    assert "Traceback" not in answer.text
    assert Read(answer.text).having("message")
    # The log has the reason, and nothing that the visitor could forge a line with.
    (record,) = caplog.records
    assert "an inner secret" in str(record.exc_info)
    assert record.getMessage().isprintable()


def test_there_is_no_debugger(site: Site) -> None:
    app = create_app(site)
    assert app.debug is False
    assert app.testing is False
    client = app.test_client()
    answer = client.get("/?__debugger__=yes&cmd=resource&f=debugger.js")
    assert answer.status_code == 303
    assert client.get("/console").status_code == 404


# ---------------------------------------------------------------- logs


def logged(site: Site, folder: Path) -> Any:
    noted = Site(site.shop, site.goals, "human", log=SessionLog(folder, clock=lambda: 1.5))
    return create_app(noted).test_client()


def test_the_log_says_what_the_original_s_says(site: Site, tmp_path: Path) -> None:
    client = logged(site, tmp_path / "new" / "logs")
    page(client, "/fixed_2")
    page(client, "/fixed_2", search_query="writing desk")
    page(client, f"/item_page/fixed_2/{DESK}/writing desk/1/{{}}")
    page(client, f"/item_sub_page/fixed_2/{DESK}/writing desk/1/Features/{{'size': 'm'}}")
    page(client, f"/done/fixed_2/{DESK}/{{'size': 'm'}}")
    page(client, f"/done/fixed_2/{DESK}/{{'size': 'm'}}")  # reloaded: no second purchase
    lines = (tmp_path / "new/logs/fixed_2.jsonl").read_text(encoding="ascii").splitlines()
    entries = [json.loads(line) for line in lines]
    names = ["index", "search_results", "item_page", "item_sub_page", "done"]
    assert [entry["page"] for entry in entries] == names
    goal = site.goals[2]
    for entry in entries:
        assert entry["goal"]["instruction_text"] == goal.instruction
        assert entry["task_id"] == "human-2"
        assert entry["time"] == 1.5
        assert entry["url"].startswith("http://localhost/")
    assert entries[1]["content"]["keywords"] == ["writing", "desk"]
    assert len(entries[1]["content"]["search_result_asins"]) == 10
    assert entries[3]["content"]["options"] == {"size": "m"}
    assert entries[4]["content"]["price"] == 20.5
    assert set(entries[4]["reward_info"]) >= {"r_type", "r_att", "w_att", "r_price", "w_price"}
    assert 0 <= entries[4]["reward"] <= 1


def test_nothing_that_visitors_send_forges_a_line(site: Site, tmp_path: Path) -> None:
    client = logged(site, tmp_path)
    query = 'x\n{"page": "done", "reward": 1.0}\r\u2028\u2029\x85\x1b[2J\x00'
    page(client, "/fixed_1", search_query=query)
    client.get("/search_results/fixed_1/a%0D%7B%7D%0B/1?x=%0A%7B%7D", headers={"Host": "h\x85"})
    client.get("/search_results/fixed_1/a%0A%7B%7D/1")  # a line break is in no address
    client.get("/item_page/..%2f..%2fetc/x/y/1/{}")
    client.get("/search_results/..%5c..%5cx/y/1")
    (file,) = tmp_path.iterdir()
    assert file.name == "fixed_1.jsonl"
    data = file.read_bytes()
    assert data.isascii()
    lines = data.decode().split("\n")
    assert lines.pop() == ""
    assert {json.loads(line)["page"] for line in lines} == {"search_results"}
    assert all(line.isprintable() for line in lines)


def test_the_log_of_a_session_is_bounded(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site_log, "FILE_LIMIT", 4_000)
    client = logged(site, tmp_path)
    for _ in range(30):
        page(client, "/fixed_1")
    lines = (tmp_path / "fixed_1.jsonl").read_text().splitlines()
    assert (tmp_path / "fixed_1.jsonl").stat().st_size < 9_000
    assert [json.loads(line)["page"] for line in lines[-2:]] == ["index", "log_full"]


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(MissingData, match="cannot be written to"):
        SessionLog(tmp_path / "file" / "logs")
