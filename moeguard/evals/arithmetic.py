"""A small set of arithmetic word problems in GSM8K's form, made up here: for tests and for trying a setup, not a benchmark."""

from __future__ import annotations

import random

NAMES = ("Ana", "Ben", "Cleo", "Dev", "Ella", "Finn", "Gita", "Hugo")
THINGS = ("apples", "books", "coins", "eggs", "keys", "pens", "stamps", "tiles")


def problems(count: int, seed: int = 0, largest: int = 20) -> list[dict[str, str]]:
    """``count`` rows with ``question`` and ``answer``, which ends with ``#### N``; numbers from 2 to ``largest``."""
    draw = random.Random(seed)
    return [_problem(draw, largest) for _ in range(count)]


def _problem(draw: random.Random, largest: int) -> dict[str, str]:
    name, other = draw.sample(NAMES, 2)
    thing = draw.choice(THINGS)
    a, b, c = (draw.randint(2, largest) for _ in range(3))
    match draw.randrange(4):
        case 0:
            return _row(f"{name} has {a} {thing} and gets {b} more from {other}. How many {thing} does {name} have now?",
                        f"{a} + {b} = {a + b}", a + b)
        case 1:
            return _row(f"{name} has {a + b} {thing} and gives {b} of them to {other}. How many {thing} are left?",
                        f"{a + b} - {b} = {a}", a)
        case 2:
            return _row(f"{name} fills {a} boxes with {b} {thing} each. How many {thing} are in the boxes?",
                        f"{a} * {b} = {a * b}", a * b)
        case _:
            return _row(f"{name} buys {a} bags of {b} {thing} and finds {c} more. How many {thing} does {name} have?",
                        f"{a} * {b} = {a * b}. {a * b} + {c} = {a * b + c}", a * b + c)


def _row(question: str, steps: str, answer: int) -> dict[str, str]:
    return {"question": question, "answer": f"{steps}\n#### {answer}"}
