"""The page in a real browser: it runs no faulty script and asks nobody for anything."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from edgefuse.report import html

from .sample import early, failing, passing
from .searched import searched

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-sync",
    "--enable-logging=stderr",
    "--v=0",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--virtual-time-budget=1000",  # Timers and refreshes of the page run before it is dumped.
    "--dump-dom",
)
CONSOLE = re.compile(r":CONSOLE[:(]\d+\)?\] (.*)")


@dataclass(frozen=True)
class Visit:
    """What a page did when it was opened."""

    dom: str
    console: list[str]
    requests: set[str]


@pytest.fixture
def visit(tmp_path: Path, require_tool: Callable[..., str]) -> Callable[[str], Visit]:
    chromium = require_tool("chromium", "chromium", "chromium-browser", "google-chrome")

    def open_page(text: str) -> Visit:
        page, log = tmp_path / "report.html", tmp_path / "net.json"
        page.write_text(text, encoding="utf-8")
        own = (f"--user-data-dir={tmp_path / 'profile'}", f"--log-net-log={log}")
        done = subprocess.run(
            [chromium, *FLAGS, *own, page.as_uri()],
            capture_output=True,
            encoding="utf-8",
            timeout=120,
            check=True,
        )
        return Visit(done.stdout, CONSOLE.findall(done.stderr), _requests(log))

    return open_page


def _requests(log: Path) -> set[str]:
    """Every address a page asked for.

    The browser's own start-up requests have no origin as their initiator; those of a page have
    the page's. Files never reach the network log.
    """
    recorded = json.loads(log.read_text(encoding="utf-8"))
    started = recorded["constants"]["logEventTypes"]["URL_REQUEST_START_JOB"]
    jobs = [e["params"] for e in recorded["events"] if e["type"] == started and "params" in e]
    return {job["url"] for job in jobs if "url" in job and job["initiator"] != "not an origin"}


def _stamp(dom: str) -> str:
    found = re.search(r'<p id="verdict"[^>]*>(.*?)</p>', dom, re.DOTALL)
    assert found, "the verdict is not in the page"
    return re.sub(r"<[^>]*>", "", found[1])


@pytest.mark.parametrize(
    ("report", "verdict"),
    [
        (passing() | {"quantisation": searched()}, "pass"),
        (failing(), "fail"),
        (early(), "error"),
        ({}, "incomplete"),
    ],
)
def test_page_opens_alone_and_in_silence(report, verdict, visit):
    seen = visit(html.render(report))
    assert _stamp(seen.dom).split()[-1] == verdict
    assert seen.console == []
    assert seen.requests == set()


def test_hostile_text_stays_text(visit):
    attack = '"></script></style></title><script>throw Error("ran")</script>'
    attack += "<img src=http://127.0.0.1:9/a onerror=throw(1)>"
    fields = ("recipe", "description", "command", "target", "verdict", "edgefuse")
    report = passing() | dict.fromkeys(fields, attack)
    report["stages"][0]["summary"] = attack
    seen = visit(html.render(report))
    assert seen.console == []
    assert seen.requests == set()
    assert "<script" not in seen.dom
    assert "<img" not in seen.dom


@pytest.mark.parametrize(
    "asking",
    [
        '<img src="{}">',
        '<link rel="stylesheet" href="{}">',
        '<iframe src="{}"></iframe>',
        '<meta http-equiv="refresh" content="0;url={}">',
        "<script>fetch('{}', {{mode: 'no-cors'}}).catch(() => 0)</script>",
    ],
)
def test_a_request_would_be_seen(asking, visit):
    url = "http://127.0.0.1:9/x.png"
    assert url in visit(asking.format(url)).requests


def test_a_request_to_the_browsers_maker_would_be_seen(visit):
    url = "https://fonts.googleapis.com/css"
    assert visit(f'<link rel="stylesheet" href="{url}">').requests == {url}


def test_a_script_error_would_be_seen(visit):
    seen = visit('<p id="verdict">pass</p><script>undefined_function()</script>')
    assert any("undefined_function is not defined" in line for line in seen.console)


def test_the_policy_of_the_page_forbids_requests_and_scripts(visit):
    page = html.render(passing())
    planted = '<img src="http://127.0.0.1:9/x.png"><script>document.title = "ran"</script></main>'
    seen = visit(page.replace("</main>", planted))
    assert seen.requests == set()
    assert "<title>ran</title>" not in seen.dom
    assert len(seen.console) == 2
