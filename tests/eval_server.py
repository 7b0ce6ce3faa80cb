"""A small OpenAI-compatible server that knows the answers of a file of problems, and faults that it can be told to have.

    python eval_server.py PORT PROBLEMS.jsonl '{"wrong": 0.2, "die_after": 30}'

wrong: share of the questions that it answers with another number. rate_limit, garble: so many requests at first that get a 429,
a body that is no JSON. silent: every question with this word gets null. die_after: requests after which the process ends.
hang_after: requests after which it answers no more. model: its name. tokens_per_word: of its tokenizer. slow: seconds an answer
takes. says: what it prints at its start. echo: it prints each prompt, and repeats it before the answer (A).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from typing import Any

FAULTS: dict[str, Any] = json.loads(sys.argv[3]) if len(sys.argv) > 3 else {}
ROWS = [json.loads(line) for line in Path(sys.argv[2]).read_text().splitlines()]
ANSWERS = {row["question"]: row["answer"] for row in ROWS if "question" in row}
NUMBER = count(1)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.say(200, {"object": "list", "data": [{"id": FAULTS.get("model", "tiny"), "object": "model"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompt = body.get("prompt") or body["messages"][-1]["content"] if "prompt" in body or "messages" in body else ""
        if self.path == "/tokenize":
            self.say(404, {})
        elif body["max_tokens"] == 1:
            self.say(200, {"choices": [{"index": 0, "text": "."}], "usage": {"prompt_tokens": self.tokens(prompt)}})
        elif FAULTS.get("echo"):
            print(prompt, flush=True)
            self.say(200, {"choices": [{"index": 0, "text": f"You ask: {prompt} The answer is (A)."}]})
        else:
            self.answer(prompt.rpartition("Question: ")[2].removesuffix("\nAnswer:"), "messages" in body)

    def answer(self, question: str, chat: bool) -> None:
        number = next(NUMBER)
        if number > FAULTS.get("die_after", number):
            os._exit(7)
        time.sleep(60 if number > FAULTS.get("hang_after", number) else FAULTS.get("slow", 0))
        if number <= FAULTS.get("rate_limit", 0):
            self.say(429, {"error": "too many requests"}, {"Retry-After": "0"})
        elif number <= FAULTS.get("garble", 0):
            self.send(200, b'{"choices": [{"te')
        else:
            text: str | None = " " + ANSWERS.get(question, "#### 0")
            if int(hashlib.sha256(question.encode()).hexdigest(), 16) % 1000 < 1000 * FAULTS.get("wrong", 0):
                text = re.sub(r"#### (\d+)", lambda found: f"#### {int(found[1]) + 1}", str(text))
            if FAULTS.get("silent") and FAULTS["silent"] in question:
                text = None
            self.say(200, {"choices": [{"index": 0, "text": text} if not chat else
                                       {"index": 0, "message": {"role": "assistant", "content": text}}]})

    def tokens(self, text: str) -> int:
        return round(len(text.split()) * FAULTS.get("tokens_per_word", 1))

    def say(self, status: int, data: Any, headers: dict[str, str] | None = None) -> None:
        self.send(status, json.dumps(data).encode(), headers)

    def send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Say nothing."""


class Server(ThreadingHTTPServer):
    request_queue_size = 128


if __name__ == "__main__":
    print(f"serving on port {sys.argv[1]}", FAULTS.get("says", ""), flush=True)
    Server(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
