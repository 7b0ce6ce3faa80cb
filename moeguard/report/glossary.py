"""The words of a report: what each kind of finding, outcome and number means, in one sentence each."""

from __future__ import annotations

from moeguard.core.finding import Kind

KINDS: dict[Kind, str] = {
    "unwritten_output": "Part of the output still holds the poison that was there before the call.",
    "out_of_bounds_write": "Memory before or after the output was changed.",
    "input_mutated": "An input, a weight or a routing tensor was changed by the call.",
    "wrong_return": "The call returned something, although its answer belongs into the output tensor.",
    "output_alias": "The output shares memory with an input or with a result that was handed out before.",
    "non_finite": "The output holds NaN or infinity where the reference is finite.",
    "mismatch": "The output is further from the high-precision reference than rounding can explain.",
    "bad_tactic": "One tactic gives a wrong answer where another one is right.",
    "tactic_not_executed": "A tactic was asked for, and another one ran.",
    "vacuous_autotune": "Tuning ran, but chose nothing or chose among nothing.",
    "autotune_mismatch": "The answer with the tuned tactic is wrong, or differs from the default's beyond rounding.",
    "nondeterministic": "The same call on the same input gave different answers.",
    "stale_state": "An answer, or the range that is tuned for, depends on an earlier call.",
    "workspace_dependence": "The answer depends on what the workspace held before the call.",
    "batch_variance": "A token's answer depends on the other tokens of the batch.",
    "metamorphic": "A change of the input with a known effect on the output had another effect.",
    "graph_mismatch": "A replayed CUDA graph gives another answer than the eager call.",
    "crash": "A call into the backend raised, returned what it must not, or ended its process.",
    "hang": "The call did not come back in time.",
    "routing_contract": "Unusual expert ids are not treated as the backend declares.",
    "layout_contract": "Rows with gaps, or weights in another release's layout, are neither refused nor answered rightly.",
    "tuning_range": "Token counts that are served lie outside the tuned range.",
    "perf_regression": "The call is slower than its baseline by more than noise.",
}

OUTCOMES: dict[str, str] = {
    "ok": "ran, its memory was checked, and its answer was right",
    "finding": "ran, and something was wrong",
    "refused": "raised, as the backend declares for such input",
    "unjudged": "ran and its memory was checked, but nothing in the answer was comparable",
}

NUMBERS: dict[str, str] = {
    "z": "error of an output element in units of the scale that the error model allows it",
    "\u03c4": "limit of max |z|, which follows from the number of elements and the accepted rate of false alarms",
    "rms(z)": "root mean square of z over a block; the nominal limit is 1.5",
    "\u03c1": "error relative to that of twins: emulations of the same recipe in another order; nominal limit 2",
    "deterministic cap": "the most that all roundings together can add up to; what is beyond it is proven, not statistical",
}

WORDS: dict[str, str] = {
    "cell": "a backend with one recipe, on one architecture and set of versions: what evidence is about",
    "case": "the description from which all tensors of a scenario follow bit for bit; its JSON is enough to repeat it",
    "execution": "one call of a backend that got a memory check and a verdict; shrinking and replays are not counted",
    "reproduced": "whether the finding came back on a second try; one that does not come back stays a finding",
    "known": "covered by an entry of the ledger; does not fail a run unless it is strict",
    "fingerprint": "the identity of a finding: kind, backend, recipe and tactic, but not the case",
}
