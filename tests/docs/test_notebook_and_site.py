"""The notebook runs, the documentation site builds and opens without an error, and links lead somewhere."""

import os
import re
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import nbformat
import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config
from nbclient import NotebookClient

from helpers.browser import BROWSER, WatchedPage, open_chromium

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\]\(([^)\s]+)\)")


@pytest.mark.process
def test_the_notebook_runs_and_its_agent_balances_the_pole(tmp_path):
    notebook = nbformat.read(ROOT / "examples" / "first_steps.ipynb", as_version=4)
    assert all(not cell.outputs for cell in notebook.cells if cell.cell_type == "code")
    NotebookClient(notebook, timeout=1800, resources={"metadata": {"path": str(tmp_path)}}).execute()
    printed = [output.text for cell in notebook.cells for output in cell.get("outputs", []) if output.get("text")]
    mean = next(float(text.split()[2]) for text in printed if text.startswith("mean return"))
    assert mean > 300
    assert (tmp_path / "runs" / "first-steps" / "report.html").exists()


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The documentation as a site; a link, anchor or name of the reference that leads nowhere is an error."""
    folder = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_MKDOCS_2_WARNING", "1")
        patch.chdir(ROOT)
        build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder)))
    return folder


def test_the_documentation_site_builds_without_a_broken_link(site):
    pages = {path.parent.name for path in site.glob("*/index.html")}
    assert {page.stem for page in (ROOT / "docs").glob("*.md")} - {"index"} <= pages
    reference = (site / "reference" / "index.html").read_text()
    assert "hundredfold.make_vec" in reference
    assert "hundredfold.record_video" in reference
    assert os.listdir(site / "search")


class SilentHandler(SimpleHTTPRequestHandler):
    def log_message(self, *words):
        """Requests are not printed."""


@pytest.fixture
def address(site):
    """The site on a free port of this machine."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(SilentHandler, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


@BROWSER
@pytest.mark.browser
def test_every_page_of_the_site_opens_without_an_error(site, address):
    places = sorted(path.parent.relative_to(site).as_posix() for path in site.rglob("index.html"))
    assert len(places) > 10
    with open_chromium() as browser:
        for width in (390, 1280):
            opened = WatchedPage(browser, width)
            for place in places:
                page = opened.open(f"{address}{place}/".replace("/./", "/"))
                assert page.locator("h1").first.inner_text(), place
                assert opened.problems == [], place
                assert opened.overflow == 0, place
            # Nothing is loaded from other hosts.
            assert opened.hosts == {urlsplit(address).netloc}
            page.context.close()


def anchors_of(markdown):
    """Anchors of a file's headings, as repository hosts name them."""
    text = re.sub(r"^```.*?^```", "", markdown, flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", sorted(path.name for path in ROOT.glob("*.md")))
def test_links_and_anchors_outside_of_the_site_lead_somewhere(name):
    for link in LINK.findall((ROOT / name).read_text()):
        parts = urlsplit(link)
        if parts.scheme:
            continue
        target = ROOT / (parts.path or name)
        assert target.exists(), link
        assert not parts.fragment or parts.fragment in anchors_of(target.read_text()), link


def test_a_heading_has_the_anchor_of_repository_hosts():
    assert anchors_of("# PPO & DQN\n```\n# no heading\n```\n## A `sweep` on a cluster\n") == {
        "ppo--dqn",
        "a-sweep-on-a-cluster",
    }
