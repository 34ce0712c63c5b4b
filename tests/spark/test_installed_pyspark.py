"""Workers take the installed PySpark, and not the zip of it, in every program."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="needs PySpark: make test installs it")

import pyspark

from ottla.spark.installed_pyspark import prefer
from tests.spark.conftest import REPOSITORY

INSTALLED = Path(pyspark.__file__).resolve().parent
ZIP = INSTALLED / "python" / "lib" / "pyspark.zip"


def where_from(tmp_path: Path, zip_path: Path) -> Path:
    """Of the PySpark that an interpreter finds which Spark has started with this zip."""
    site = tmp_path / "site"
    site.mkdir(exist_ok=True)
    shutil.copy(REPOSITORY / "pyspark_ottla" / "ottla_workers.pth", site)
    program = f"import site; site.addsitedir({str(site)!r}); import pyspark; print(pyspark.__file__)"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(zip_path), str(REPOSITORY)])}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert not done.stderr
    return Path(done.stdout.strip())


def test_the_zip_of_the_installed_package_is_left_out(tmp_path):
    assert where_from(tmp_path, ZIP) == INSTALLED / "__init__.py"


def test_the_zip_of_another_spark_is_what_its_workers_use(tmp_path):
    other = tmp_path / "spark" / "python" / "lib" / "pyspark.zip"
    other.parent.mkdir(parents=True)
    with zipfile.ZipFile(other, "w") as made:
        made.writestr("pyspark/__init__.py", "")
    assert where_from(tmp_path, other) == other / "pyspark" / "__init__.py"


def test_other_entries_of_a_path_are_not_changed(tmp_path):
    path = ["", str(ZIP), "/elsewhere/pyspark/python/lib/pyspark.zip", str(INSTALLED.parent), str(tmp_path)]
    prefer(path)
    assert path == ["", "/elsewhere/pyspark/python/lib/pyspark.zip", str(INSTALLED.parent), str(tmp_path)]
    alone = [str(ZIP), str(tmp_path)]
    prefer(alone)
    assert alone == [str(ZIP), str(tmp_path)], "the installed package is not on this path"


@pytest.mark.long
def test_the_wheel_has_the_pth_file(tmp_path):
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), "."]
    subprocess.run(command, cwd=REPOSITORY, check=True)
    [wheel] = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as made:
        assert "ottla_workers.pth" in made.namelist()
        assert "pyspark_ottla/ottla_workers.pth" not in made.namelist()
