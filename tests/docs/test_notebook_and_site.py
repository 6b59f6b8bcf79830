"""The notebook runs from top to bottom, and the documentation site builds without a broken link."""

import os
from pathlib import Path

import nbformat
import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]


@pytest.mark.process
def test_the_notebook_runs_and_its_agent_balances_the_pole(tmp_path):
    notebook = nbformat.read(ROOT / "examples" / "first_steps.ipynb", as_version=4)
    assert all(not cell.outputs for cell in notebook.cells if cell.cell_type == "code")
    NotebookClient(notebook, timeout=1800, resources={"metadata": {"path": str(tmp_path)}}).execute()
    printed = [output.text for cell in notebook.cells for output in cell.get("outputs", []) if output.get("text")]
    mean = next(float(text.split()[2]) for text in printed if text.startswith("mean return"))
    assert mean > 300
    assert (tmp_path / "runs" / "first-steps" / "report.html").exists()


def test_the_documentation_site_builds_without_a_broken_link(tmp_path, monkeypatch):
    monkeypatch.setenv("NO_MKDOCS_2_WARNING", "1")
    monkeypatch.chdir(ROOT)
    # Strict: a link, anchor or name of the reference that leads nowhere is an error.
    build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(tmp_path / "site")))
    pages = {path.parent.name for path in (tmp_path / "site").glob("*/index.html")}
    assert {page.stem for page in (ROOT / "docs").glob("*.md")} - {"index"} <= pages
    assert "hundredfold.make_vec" in (tmp_path / "site" / "reference" / "index.html").read_text()
    assert os.listdir(tmp_path / "site" / "search")
