"""Stands in for lm-evaluation-harness where it is not installed: the calls that moeguard makes, over HTTP.

The form of tasks and records is that of lm-eval 0.4.13; the soak tests run the real one against the same code.
"""

from __future__ import annotations

import hashlib
import json
import re
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

__version__ = "0.4.13"
FILTERS = {"gsm8k": {"strict-match": r"#### (\-?[0-9\.\,]+)", "flexible-extract": r"(-?[$0-9.,]{2,})|(-?[0-9]+)"},
           "gpqa": {"strict-match": r"(?<=The answer is )(.*)(?=.)", "flexible-extract": r"(\([A-Z]\))"}}


def simple_evaluate(model, model_args, tasks, task_manager, samples, gen_kwargs, apply_chat_template, **_):
    """Ask the server and score, as ``lm_eval.simple_evaluate`` does."""
    (name,) = tasks
    task = json.loads(Path(task_manager.include_path, f"{name}.yaml").read_text())
    files = task["dataset_kwargs"]["data_files"]
    rows = [json.loads(line) for line in Path(files["test"]).read_text().splitlines()]
    shots = [json.loads(line) for line in Path(files["train"]).read_text().splitlines()] if task["num_fewshot"] else []
    before = "".join(f"Question: {row['question']}\nAnswer: {row['answer']}\n\n" for row in shots)
    settings = gen_kwargs | {"until": ["Question:", "</s>", "<|im_end|>"]}

    def ask(place):
        prompt = before + _prompt(rows[place])
        body = {"model": model_args["model"], "max_tokens": gen_kwargs["max_gen_toks"], "seed": model_args["seed"]}
        body |= {"messages": [{"role": "user", "content": prompt}]} if apply_chat_template else {"prompt": prompt}
        request = urllib.request.Request(model_args["base_url"], json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as response:
            choice = json.loads(response.read())["choices"][0]
        return prompt, choice["message"]["content"] if apply_chat_template else choice["text"]

    with ThreadPoolExecutor(model_args["num_concurrent"]) as pool:
        answers = dict(zip(samples[name], pool.map(ask, samples[name]), strict=True))
    return {"samples": {name: [_record(place, rows[place], *answers[place], settings, key, pattern)
                               for key, pattern in FILTERS[name.partition("_")[0]].items() for place in samples[name]]}}


def _prompt(row):
    if "question" in row:
        return f"Question: {row['question']}\nAnswer:"
    return f"What is the correct answer to this question:{row['Question']}\nChoices:\n" + "\n".join(
        f"({letter}) {row[f'choice{place}']}" for place, letter in enumerate("ABCD", start=1)) + "\nLet's think step by step: "


def _record(place, row, prompt, text, settings, name, pattern):
    found = re.findall(pattern, text)
    flat = [one if isinstance(one, str) else next(part for part in one if part) for one in found]
    answer = (flat[0] if name == "strict-match" else flat[-1]).strip() if flat else "[invalid]"
    target = row["answer"].rpartition("#### ")[2]
    return {"doc_id": place, "doc": row, "target": row["answer"], "arguments": [(prompt, settings)], "resps": [[text]],
            "filtered_resps": [answer], "filter": name, "metrics": ["exact_match"], "doc_hash": _sha(json.dumps(row)),
            "prompt_hash": _sha(prompt), "target_hash": _sha(row["answer"]), "exact_match": float(answer == target)}


def _sha(text):
    return hashlib.sha256(text.encode()).hexdigest()
