"""The pictures of docs/learn.md: as their tool draws them, for light and dark pages; and what the page has to have."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from ottla.drills.catalogue import DRILLS

REPOSITORY = Path(__file__).resolve().parent.parent
LEARN = (REPOSITORY / "docs" / "learn.md").read_text()
SVG = "{http://www.w3.org/2000/svg}"

_spec = importlib.util.spec_from_file_location("draw_pictures", REPOSITORY / "tools" / "draw_pictures.py")
assert _spec is not None
assert _spec.loader is not None
draw_pictures = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(draw_pictures)


@pytest.mark.parametrize("name", draw_pictures.PICTURES)
def test_a_picture_is_as_its_tool_draws_it_and_has_colours_for_dark_pages(name):
    drawn = draw_pictures.PICTURES[name]()
    assert (draw_pictures.DIRECTORY / name).read_text() == drawn, "run: python tools/draw_pictures.py"
    root = ElementTree.fromstring(drawn)
    assert "prefers-color-scheme: dark" in (root.findtext(f"{SVG}style") or "")
    width, height = int(root.get("width", "")), int(root.get("height", ""))
    for each in root.iter(f"{SVG}rect"):
        assert float(each.get("x", "0")) + float(each.get("width", "0")) <= width
        assert float(each.get("y", "0")) + float(each.get("height", "0")) <= height
    assert f"(pictures/{name})" in LEARN


@pytest.mark.parametrize("name", ["groups.svg", "actors.svg"])
def test_blue_is_for_replicas_only(name):
    assert 'class="replica' not in draw_pictures.PICTURES[name]()


def test_each_subject_of_learn_has_a_picture_a_command_a_drill_and_a_guarantee():
    sections = re.split(r"^## ", LEARN, flags=re.MULTILINE)[1:]
    assert len(sections) == 8
    for section in sections:
        assert "](pictures/" in section, section
        assert "```sh\n" in section
        assert re.search(r"^Drills?: ", section, re.MULTILINE)
        assert re.search(r"^Guarantee: ", section, re.MULTILINE)
    assert set(re.findall(r"`([a-z-]+)`", LEARN)) >= set(DRILLS), "every drill stands there"
