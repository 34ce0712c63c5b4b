"""Planted defects: mistakes in the source of the product, one at a time, that the simulator must find.

Each is a copy of the tree with one piece of source changed (`tests/sim/defects.py`), and an interpreter of its own.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.sim.defects import DEFECTS, LONG, SECONDS_MAX, first_bad, plant


@pytest.mark.parametrize("name", [*DEFECTS, *(pytest.param(name, marks=pytest.mark.long) for name in LONG)])
def test_the_simulator_finds_the_defect(name, tmp_path):
    defect = {**DEFECTS, **LONG}[name]
    seed, kinds, failures = first_bad(defect, tmp_path)
    assert kinds & defect.kinds, f"seed {seed} found {kinds}, {failures}"


def test_a_failed_seed_prints_the_command_that_repeats_it(tmp_path):
    tree = plant(DEFECTS["acknowledged before all in-sync replicas have it"], tmp_path)
    faults = ["--fault", "kill", "--fault", "isolation"]
    run = subprocess.run(
        [sys.executable, "-m", "ottla", "simulate", "--seed", "16", "--seeds", "3", "--minutes", "0.5", *faults],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tree)}, capture_output=True, text=True, timeout=SECONDS_MAX,
    )  # fmt: skip
    assert run.returncode == 1
    again = rf"run it again: ottla simulate --seed 1[678] --minutes 0.5 --brokers 3 {' '.join(faults)} --trace --detail"
    assert re.search(again, run.stdout)
    assert re.search(r"[123] of 3 seeds failed: 1[678]", run.stderr)
