"""The ledger file: what is read, and what is refused with one sentence."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from commandline import ROOT
from ledger_files import ENTRY, ledger

from moeguard.core.case import Case
from moeguard.core.errors import MoeguardError
from moeguard.ledger.file import Ledger


def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / "known.toml"
    path.write_text(ledger({}, {"id": "second", "tactic": "(1, *)"}))
    read = Ledger.load(path)
    assert (read.source, [one.id for one in read.entries]) == (str(path), ["last-column", "second"])
    assert read.entries[0].case == Case.model_validate(ENTRY["case"])


def test_the_hash_is_of_the_content(tmp_path: Path) -> None:
    path = tmp_path / "known.toml"
    hashes = []
    for text in (ledger(), ledger().replace("\n", "\n# a remark\n", 1), ledger({"reason": "Another."})):
        path.write_text(text)
        hashes.append(Ledger.load(path).sha256)
    assert hashes[0] == hashes[1] != hashes[2]


def test_a_case_file_beside_the_ledger(tmp_path: Path) -> None:
    (tmp_path / "cases").mkdir()
    (tmp_path / "cases" / "one.json").write_text(Case.model_validate(ENTRY["case"]).to_json())
    (tmp_path / "known.toml").write_text(ledger({"case": "cases/one.json"}))
    (tmp_path / "inside.toml").write_text(ledger())
    assert Ledger.load(tmp_path / "known.toml").sha256 == Ledger.load(tmp_path / "inside.toml").sha256


def test_the_one_of_the_readme(tmp_path: Path) -> None:
    blocks = re.findall(r"```toml\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    (block,) = (block for block in blocks if "[[entry]]" in block)
    (tmp_path / "readme.toml").write_text(block)
    (entry,) = Ledger.load(tmp_path / "readme.toml").entries
    assert not entry.applies_to(entry.case.with_(shape={"num_tokens": 256}))


def test_an_empty_ledger(tmp_path: Path) -> None:
    (tmp_path / "none.toml").write_text("schema = 1\n")
    assert Ledger.load(tmp_path / "none.toml").entries == ()


def test_the_packaged_one() -> None:
    assert Ledger.load() == Ledger.load("packaged")
    assert all(one.reference and one.versions for one in Ledger.load().entries)


@pytest.mark.parametrize(("fields", "words"), [
    ({"id": "Upper"}, ["id", "pattern"]),
    ({"kinds": []}, ["kinds"]),
    ({"kinds": ["wrong"]}, ["kinds.0", "unwritten_output"]),
    ({"recipes": ["fp4"]}, ["recipes.0", "'fp4' is unknown; allowed: bf16"]),
    ({"versions": "0.7"}, ["versions", "allowed: PEP 440"]),
    ({"versions": ""}, ["versions", "allowed: PEP 440"]),
    ({"reference": "https://example.org/1"}, ["reference", "without links"]),
    ({"expires": "soon"}, ["expires", "'soon' is not a date; allowed: YYYY-MM-DD"]),
    ({"expires": 20301231}, ["expires", "YYYY-MM-DD"]),
    ({"crash_class": "no"}, ["crash_class", "boolean"]),
    ({"crash_class": True}, ["crash_class", "crash and hang only"]),
    ({"reason": None}, ["reason", "required"]),
    ({"condition": None}, ["condition", "required"]),
    ({"condition": [{"field": "tokens", "equals": 1}]}, ["condition", "'tokens' is unknown"]),
    ({"proof": [{"field": "x"}]}, ["proof", "not understood"]),
    ({"colour": "red"}, ["colour: unknown field; allowed: id, backend"]),
    ({"case": {"schema": 2, "shape": {}}}, ["case.schema"]),
    ({"case": "missing.json"}, ["missing.json", "no such file"]),
    ({"condition": [{"field": "shape.num_tokens", "equals": 0}]}, ["own case is not covered"]),
    ({"recipes": ["fp16"]}, ["own case is not covered"]),
])
def test_a_wrong_entry_is_named_with_its_field(fields: dict[str, Any], words: list[str], tmp_path: Path) -> None:
    path = tmp_path / "known.toml"
    path.write_text(ledger(fields))
    with pytest.raises(MoeguardError) as error:
        Ledger.load(path)
    assert all(word in str(error.value) for word in words), error.value
    if "case" not in fields:
        assert f"{path}: entry 1" in str(error.value)


@pytest.mark.parametrize(("text", "words"), [
    ("", "schema None is not supported; allowed: 1"),
    ("schema = 2", "schema 2 is not supported; allowed: 1"),
    ("schema = 1\nentries = []", "entries: unknown field; allowed: schema, entry"),
    ("schema = 1\nentry = 3", "entry: allowed: tables"),
    ("schema = ", "not valid TOML"),
    (ledger({}, {}), "entry 2 (last-column): id: used twice"),
])
def test_a_wrong_file(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "known.toml"
    path.write_text(text)
    with pytest.raises(MoeguardError) as error:
        Ledger.load(path)
    assert words in str(error.value)
