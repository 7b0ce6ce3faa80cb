"""What a model answers with one arm: logits of given texts, and greedy continuations of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from moeguard.models.experts import Arm, Experts


@dataclass(frozen=True, slots=True)
class Answers:
    """arm: its name. logits: float32 [P * S, V] of the texts, routed as by the first arm. text: int64 [P, G], greedy tokens
    after each text, routed by the model itself; None where logits are not finite."""

    arm: str
    logits: Tensor
    text: Tensor | None


def answers(model: Any, experts: Sequence[Experts], arm: Arm, prompts: Tensor, length: int) -> Answers:
    """Run ``model`` with ``arm`` on prompts int64 [P, S], then ``length`` greedy steps."""
    try:
        for one in experts:
            one.give(arm)
        with torch.inference_mode():
            _follow(experts, True)
            logits = model(prompts, use_cache=False).logits.float().flatten(0, 1)
            finite = bool(torch.isfinite(logits).all())
            _follow(experts, False)
            text = _greedy(model, prompts, length) if finite else None
    finally:
        for one in experts:
            one.give(None)
    return Answers(arm.name, logits, text)


def _follow(experts: Sequence[Experts], follow: bool) -> None:
    for one in experts:
        one.follow = follow


def _greedy(model: Any, prompts: Tensor, length: int) -> Tensor:
    given, cache, text = prompts, None, []
    for _ in range(length):
        step = model(given, past_key_values=cache, use_cache=True)
        cache = step.past_key_values
        given = step.logits[:, -1].float().argmax(-1, keepdim=True)
        text.append(given)
    return torch.cat(text, 1) if text else prompts[:, :0]
