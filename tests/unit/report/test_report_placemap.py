"""The map of where in the output a finding lies."""

from __future__ import annotations

from xml.etree import ElementTree

import torch

from moeguard.checks.place import place_map
from moeguard.report import placemap


def test_every_cell_and_every_tile_border_is_drawn() -> None:
    value = torch.zeros(130, 200)
    value[70, 150] = 40.0
    drawn = placemap.svg(place_map(value, "largest |z| over its limit"))
    tree = ElementTree.fromstring(drawn)
    names = [element.tag.split("}")[1] for element in tree.iter()]
    assert names.count("line") == 2 + 3 and names.count("title") == 26 * 29
    titles = [element.text or "" for element in tree.iter() if element.tag.endswith("title")]
    assert [title for title in titles if title.endswith(": 40")] == ["rows 70 to 74, columns 147 to 153: 40"]
    assert "T 130" in drawn and "H 200" in drawn


def test_unwritten_elements_are_red() -> None:
    mask = torch.zeros(3, 8)
    mask[:, -1] = 1
    assert placemap.svg(place_map(mask, "unwritten")).count("#b3261e") == 3


def test_no_map_and_a_broken_one_draw_nothing() -> None:
    for place in (None, {}, {"tokens": 1}, {"tokens": "x", "hidden": 1, "rows": 1, "columns": 1, "values": []},
                  {"tokens": 0, "hidden": 4, "rows": 1, "columns": 1, "values": []}):
        assert placemap.svg(place) == ""
