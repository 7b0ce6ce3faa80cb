"""Sample logs as lm-eval writes them, made by hand."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

#: A sentence that stands for a question of GPQA, and must not be found anywhere.
SECRET = "Which unobtainium isotope decays by quokka emission"


def record(doc: int, right: bool = True, text: str | None = None, **changes: Any) -> dict[str, Any]:
    """One record of filter flexible-extract."""
    question = f"{SECRET} number {doc}?"
    said = f"It must be so. The answer is {doc if right else doc + 1}." if text is None else text
    return {
        "doc_id": doc, "doc": {"Question": question}, "target": str(doc),
        "arguments": {"gen_args_0": {"arg_0": question, "arg_1": {"until": ["</s>"], "temperature": 0.0}}},
        "resps": [[said]], "filtered_resps": [str(doc) if right else "[invalid]"], "filter": "flexible-extract",
        "metrics": ["exact_match"], "doc_hash": sha(question), "prompt_hash": sha(question), "target_hash": sha(str(doc)),
        "exact_match": float(right)} | changes


def write(folder: Path, records: Iterable[dict[str, Any]], task: str = "gsm8k",
          stamp: str = "2026-05-01T12-00-00.000001") -> Path:
    """A folder with one log."""
    folder.mkdir(exist_ok=True)
    (folder / f"samples_{task}_{stamp}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
    return folder


def sha(text: str) -> str:
    """sha256, as lm-eval hashes."""
    return hashlib.sha256(text.encode()).hexdigest()
