"""The child process that runs lm-evaluation-harness. It is started by its path and needs lm-eval alone, nothing of moeguard.

Jobs come as lines of JSON on stdin, results go as lines of JSON to the file descriptor that the first argument names; stdin's
end is the process's end. Question texts stay in this process's memory, in a private folder that goes with it, and in the pipe.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

Row = dict[str, Any]

#: Loggers of lm-eval that write bodies of HTTP responses.
TALKATIVE = ("lm_eval.models.api_models", "lm_eval.models.openai_completions")
#: Stock files of lm-eval 0.4.13 that a local task is made from.
STOCK = {"gsm8k": "gsm8k/gsm8k.yaml", "gpqa": "gpqa/cot_zeroshot/_gpqa_cot_zeroshot_yaml"}
#: Data sets of the Hugging Face hub: name, configuration, split that is asked, split of the examples.
HUB = {"gsm8k": ("openai/gsm8k", "main", "test", "train"), "gpqa": ("Idavidrein/gpqa", "gpqa_diamond", "train", None)}


def main() -> None:
    """Answer jobs until stdin ends."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))  # so that the private folder goes
    with os.fdopen(int(sys.argv[1]), "w", encoding="utf-8") as results, tempfile.TemporaryDirectory() as private:
        os.environ.setdefault("HF_DATASETS_CACHE", str(Path(private, "datasets")))
        say(results, hello())
        for line in sys.stdin:
            job = json.loads(line)
            try:
                say(results, {"ok": JOBS[job.pop("job")](private, **job)})
            except Exception as error:
                say(results, {"error": f"{type(error).__name__}: {str(error)[:300]}"})


def say(results: IO[str], data: Any) -> None:
    """One line."""
    results.write(json.dumps(data) + "\n")
    results.flush()


def hello() -> dict[str, str]:
    """Which lm-eval this is, or why there is none."""
    try:
        import lm_eval
    except ImportError as error:
        return {"missing": str(error)}
    for name in TALKATIVE:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return {"version": lm_eval.__version__}


def fetch(private: str, task: str) -> dict[str, Any]:
    """Rows of a public data set, from the cache of Hugging Face or its hub."""
    import datasets

    name, configuration, asked, examples = HUB[task]
    found = datasets.load_dataset(name, configuration)
    return {"rows": [dict(row) for row in found[asked]], "train": examples and [dict(row) for row in found[examples]]}


def prepare(private: str, name: str, task: str, shots: list[Row], rows: list[Row]) -> None:
    """A task of that name over these rows, in lm-eval's own form: a stock task with other data."""
    import lm_eval

    folder = Path(private, name)
    folder.mkdir()
    files = {}
    for split, those in (("train", shots), ("test", rows)):
        if those:
            files[split] = str(folder / f"{split}.jsonl")
            Path(files[split]).write_text("".join(json.dumps(row) + "\n" for row in those), encoding="utf-8")
    settings = {
        "include": str(Path(lm_eval.__file__).parent / "tasks" / STOCK[task]), "task": name, "tag": None,
        "dataset_path": "json", "dataset_name": None, "dataset_kwargs": {"data_files": files},
        "process_docs": None, "training_split": None, "validation_split": None, "test_split": "test",
        "fewshot_split": "train" if shots else None, "num_fewshot": len(shots),
        "fewshot_config": {"sampler": "first_n"} if shots else None,
    }
    (folder / f"{name}.yaml").write_text(json.dumps(settings), encoding="utf-8")  # JSON is YAML


def evaluate(private: str, name: str, ids: list[int], base_url: str, model: str, chat: bool, concurrency: int, seed: int,
             generation: dict[str, Any]) -> list[Row]:
    """The sample records of the questions ``ids`` of a prepared task, answered by a server."""
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    arguments = {"model": model, "base_url": base_url, "num_concurrent": concurrency, "max_retries": 1, "timeout": 10**6,
                 "tokenizer_backend": None, "tokenized_requests": False, "seed": seed}
    done = simple_evaluate(
        model="local-chat-completions" if chat else "local-completions", model_args=arguments, tasks=[name],
        task_manager=TaskManager(include_path=str(Path(private, name)), include_defaults=False), samples={name: ids},
        bootstrap_iters=0, log_samples=True, apply_chat_template=chat, gen_kwargs=generation)
    return [{key: value for key, value in record.items() if key not in ("doc", "target")} for record in done["samples"][name]]


JOBS: dict[str, Callable[..., Any]] = {"fetch": fetch, "prepare": prepare, "evaluate": evaluate}

if __name__ == "__main__":
    main()
