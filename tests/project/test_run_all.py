"""Command pages run from top to bottom in a kernel, as "Run All" of JupyterLab does."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NBS = Path(__file__).parents[2] / "nbs"
PAGES = [*sorted(NBS.glob("8*.ipynb")), *sorted(NBS.glob("9*.ipynb"))]


@pytest.mark.long
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_run_all_ends_without_an_error(page):
    book = nbformat.read(page, 4)
    NotebookClient(
        book, timeout=280, kernel_name="python3", resources={"metadata": {"path": str(page.parent)}}
    ).execute()
    assert any(cell.cell_type == "code" and cell.execution_count for cell in book.cells)


def test_nothing_but_commands_is_kept_from_a_kernel():
    "A cell that nbdev skips still runs in JupyterLab"
    skipped = [
        f"{page.name}: {cell.id}"
        for page in NBS.rglob("*.ipynb")
        for cell in nbformat.read(page, 4).cells
        if cell.cell_type == "code"
        and "#| eval: false" in cell.source
        and "__spec__" not in cell.source
    ]
    assert skipped == [], "run it, guard it, or show it in the text"


@pytest.mark.parametrize("package", ["verl"])
def test_a_cell_for_what_few_have_asks_whether_it_is_there(package):
    found = [
        (page.name, cell.source)
        for page in NBS.rglob("*.ipynb")
        for cell in nbformat.read(page, 4).cells
        if cell.source.startswith(f"#| {package}")
    ]
    assert (
        found and [name for name, source in found if f'find_spec("{package}")' not in source] == []
    )
