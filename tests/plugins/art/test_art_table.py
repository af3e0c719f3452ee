"""The table of docs/plugins/art.md says what is so: every attack of ART runs as it says, or says why not."""

import importlib.util
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

import rt_core
from rt_art import ARTAttack
from rt_art.library import evasions
from rt_art.table import REFUSED, SERVED

ROOT = Path(__file__).parents[3]


def load_script():
    spec = importlib.util.spec_from_file_location("attack_table", ROOT / "plugins/art/scripts/attack_table.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


script = load_script()


def lines_of_the_page():
    page = script.PAGE.read_text()
    inside = page.split(script.OPEN)[1].split(script.CLOSE)[0]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in inside.splitlines() if line.startswith("| `")]
    return {row[0].strip("`"): row for row in cells}


TABLE = lines_of_the_page()


@pytest.fixture(scope="module")
def problem():
    return script.problem(samples=2)


def test_every_attack_of_art_is_in_the_table_once():
    assert not set(SERVED) & set(REFUSED)
    assert set(evasions()) <= set(SERVED) | set(REFUSED) == set(TABLE) | {"BrendelBethgeAttack"}
    assert set(script.SETTINGS) == set(SERVED)


@pytest.mark.parametrize("name", sorted(set(REFUSED) & set(TABLE)))
def test_what_is_refused_says_why(name):
    assert TABLE[name] == [f"`{name}`", REFUSED[name]]
    with pytest.raises(ValueError, match=f"ART's {name} cannot attack encoders: ") as raised:
        ARTAttack(name)
    assert str(raised.value).endswith(REFUSED[name])


@pytest.mark.parametrize("name", SERVED)
def test_what_is_served_runs_as_the_table_says(name, problem):
    row = dict(zip(script.COLUMNS, TABLE[name], strict=True))
    options = script.FAST.get(name, script.SETTINGS[name])
    missing = [package for package in SERVED[name].needs if find_spec(package) is None]
    assert row["runs"] == (f"with {', '.join(SERVED[name].needs)}" if SERVED[name].needs else "yes")
    if missing:
        with pytest.raises(ImportError, match=f"pip install {missing[0]}"):
            script.attack_of(name, options)
        return
    attack = script.attack_of(name, options)
    encoder, inputs, targets, bank = problem
    modes = row["modes"].split(", ")
    assert attack.mode == modes[0]
    assert row["rows"] == ("batch" if attack.batched else "one at a time")
    assert [aim for aim in ("away", "target") if row[aim] != "–"] == list(attack.aims)
    for mode in modes:
        assert ARTAttack(name, mode=mode, **options).mode == mode
    for mode in {"y", "unit", "threshold", "instance"} - set(modes):
        with pytest.raises(ValueError, match=f"ART's {name} does not work in mode '{mode}'"):
            ARTAttack(name, mode=mode, **options)
    moves = []
    for aim in attack.aims:
        if (name, aim) in script.SLOW:
            continue
        trace = rt_core.perturb(attack, encoder, inputs, targets=targets if aim == "target" else None, bank=bank)
        assert trace.forwards > len(inputs)
        assert ("reached" in trace.notes) == (attack.mode == "threshold")
        moves.append(not torch.equal(trace.inputs, inputs))
    assert any(moves) or name in MAY_STAND


MAY_STAND = {"ThresholdAttack", "ZooAttack", "TargetedUniversalPerturbation"}
"""With so few steps these may find nothing, and hand back the input."""
