"""Which cases have the same weights: content depends on the case without tokens, routing and inputs, and of the seed on what
``same_weights`` leaves."""

from __future__ import annotations

from moeguard.core.case import Case

#: Number of weight sets per shape family; scenarios that differ in inputs only share one.
BANK = 4
#: Kinds of scales that are an edit of the normal ones: other factors of the experts, on the same codes.
EDITS = ("tiny", "bimodal", "heterogeneous")


def weight_key(case: Case) -> str:
    """Identity of the weight content; equal keys mean equal bits."""
    return f"{drawn_key(case)}|{case.scales.kind}|{case.scales.exponent}"


def same_weights(case: Case) -> int:
    """Seeds that are apart by a multiple of this have equal weights: one set of the bank, and what kinds choose experts by."""
    return BANK * case.shape.num_experts


def drawn_key(case: Case) -> str:
    """Identity of what is drawn: the same whatever factors scales of a kind in EDITS have."""
    kind, exponent = ("normal", 0) if case.scales.kind in EDITS else (case.scales.kind, case.scales.exponent)
    # the experts that kind zero of the scales, and zero_expert, choose by the seed
    dead = 0 if (kind, case.weights.kind) == ("normal", "normal") else \
        f"{case.seed % case.shape.num_experts}.{case.seed // BANK % case.shape.num_experts}"
    return "|".join(map(str, (
        case.recipe, case.shape.hidden_size, case.shape.intermediate_size, case.shape.num_experts, case.activation.gated,
        kind, exponent, case.weights.kind, case.weights.bias, case.inputs.kind == "exact", case.seed % BANK, dead)))
