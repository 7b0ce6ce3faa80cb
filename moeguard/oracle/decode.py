"""Exact mode names its culprit: which token and which expert explain a wrong row."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from moeguard.oracle.reference import Reference
from moeguard.quant.formats import round_to

#: Rows that are explained at most.
MOST_ROWS = 4


def decode(reference: Reference, y: Tensor, wrong: Tensor) -> list[dict[str, Any]]:
    """Explanations of the first wrong rows of ``y`` [T, H]; ``wrong`` bool [T, H] marks differing elements.

    Each is {"token", "cause", ...}: ``missing`` or ``doubled`` (with "expert"), ``token`` (the answer of another
    token), ``partial`` (one expert's contribution is wrong by less than the whole: the smallest candidate), or ``unknown``.
    """
    return [_explain(reference, y, int(token)) for token in wrong.any(1).nonzero()[:MOST_ROWS, 0]]


def _explain(reference: Reference, y: Tensor, token: int) -> dict[str, Any]:
    slots, form = reference.slots, reference.output.name
    wanted = round_to(reference.y, form)
    same = (wanted == y[token]).all(1).nonzero()[:, 0]
    if same.numel() and bool(y[token].any()):
        return {"token": token, "cause": "token", "of_token": int(same[0])}
    mine = (slots.token == token).nonzero()[:, 0]
    first = reference.problem.case.first_expert
    touched = []
    for slot in mine.tolist():
        part = reference.expert_output[slot] * slots.weight[slot]
        expert = int(slots.expert[slot]) + first
        for cause, factor in (("missing", -1.0), ("doubled", 1.0)):
            if bool((round_to(reference.y[token] + factor * part, form) == y[token]).all()):
                return {"token": token, "cause": cause, "expert": expert}
        difference = y[token] - reference.y[token]
        touched.append((float(torch.dot(difference, part).abs() / (part.norm() + 1e-300)), expert))
    if not touched:
        return {"token": token, "cause": "unknown"}
    return {"token": token, "cause": "partial", "expert": max(touched)[1]}
