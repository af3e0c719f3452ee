"""The table in the page of rt-torchattacks says what is: every class runs, or does not, as its row says."""

import importlib.util
from pathlib import Path

import pytest
import torch
import torchattacks

import rt_core
from rt_core.testing import tiny_encoder

SCRIPT = Path(__file__).parents[3] / "plugins" / "torchattacks" / "scripts" / "attack_table.py"
specification = importlib.util.spec_from_file_location("attack_table", SCRIPT)
table = importlib.util.module_from_spec(specification)
specification.loader.exec_module(table)

ROWS = table.read()


@pytest.fixture(scope="module")
def data():
    encoder, inputs = tiny_encoder(), torch.rand(24, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    return table.Data(encoder, inputs[:2], rt_core.Bank(rt_core.represent(encoder, inputs)))


def test_the_table_has_every_class():
    classes = {name for name in torchattacks.__all__ if issubclass(getattr(torchattacks, name), torchattacks.attack.Attack)}
    assert set(ROWS) == classes
    assert sum(row.runs == "yes" for row in ROWS.values()) == 37
    assert all(row.reached != "–" for row in ROWS.values() if row.runs == "yes")


@pytest.mark.parametrize("name", ROWS)
def test_a_class_runs_as_its_row_says(name, data):
    options = {} if ROWS[name].runs != "yes" else table.options_of(name) | table.TINY.get(name, {})
    assert table.row_of(name, data, options).settled == ROWS[name].settled


def test_the_table_is_written_between_its_marks(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{table.MARK}\nnothing yet\n{table.MARK}\nafter\n")
    table.write(list(ROWS.values()), page)
    assert table.read(page) == ROWS
    assert page.read_text().startswith("before\n")
    assert page.read_text().endswith("\nafter\n")
    assert "nothing yet" not in page.read_text()
