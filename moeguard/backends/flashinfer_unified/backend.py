"""What the two families share: one runner a case, a forced tactic, and the library's own tuning of it."""

from __future__ import annotations

import ast
from abc import abstractmethod
from collections.abc import Hashable
from typing import Any, ClassVar

from torch import Tensor

from moeguard.autotune.statistics import Statistics, choices
from moeguard.autotune.vacuous import conclude
from moeguard.backends.flashinfer_unified.config import Formats, config
from moeguard.backends.flashinfer_unified.library import Library, load, refusal
from moeguard.backends.flashinfer_unified.prepared import Prepared, into
from moeguard.backends.protocol import Availability, Backend, Refused, Support, VacuousTuning
from moeguard.core.case import Case
from moeguard.tensors.operand import Batch, Weights

#: FlashInfer's name of the tactic that is taken without tuning.
DEFAULT = -1


class FlashInferUnified(Backend):
    """One runner of ``flashinfer.fused_moe``, called as ``MoELayer`` calls it after its choice.

    The layer itself keeps the winner of its first call for good and drops a backend that does not fit in silence, so it is not
    used. Ids and token counts are not checked first.
    """

    #: Recipes to the formats of the two GEMMs; for activations without a gate where they differ.
    formats: ClassVar[dict[str, Formats]]
    #: Name of ``RoutingInputMode`` under which the weights of the router stay float32.
    routing: ClassVar[str]

    def availability(self) -> Availability:
        reason = refusal() or self.lacking()
        return Availability.yes() if reason is None else Availability.no(reason)

    @abstractmethod
    def lacking(self) -> str | None:
        """Which package of the family is missing on this machine; None when all are there."""

    @abstractmethod
    def candidate(self, library: Library, case: Case) -> Any:
        """FlashInfer's configuration of the backend."""

    @abstractmethod
    def runner(self, library: Library, case: Case) -> Any:
        """The class of the runner."""

    @abstractmethod
    def view(self, library: Library, weights: Weights, case: Case) -> dict[str, Tensor]:
        """The weights as the runner takes them."""

    @abstractmethod
    def offered(self, prepared: Prepared, inputs: Any) -> tuple[tuple[Any, ...], ...]:
        """Every tactic that the tuner could pick for these inputs."""

    def named_formats(self, case: Case) -> Formats:
        """What the two GEMMs of ``case`` multiply."""
        return self.formats[case.recipe]

    def common(self, case: Case) -> Support:
        """What both families refuse: they have no biases and no experts elsewhere."""
        if case.recipe not in self.formats:
            return Support.no(f"no kernel on SM90 for recipe {case.recipe}")
        if case.activation_format != "standard":
            return Support.no("the standard activation format only")
        if case.parallel.ep_size > 1:
            return Support.no("no expert parallelism (supports_expert_parallelism is False)")
        if case.weights.bias:
            return Support.no("no biases")
        if case.recipe == "fp8_per_tensor" and case.activation.kind == "swiglu_oai":
            return Support.no("gate and up share one scale in the kernel; with swiglu_oai that of up is no factor")
        return Support.yes()

    def prepare(self, weights: Weights, case: Case) -> Prepared:
        library, formats = load(), self.named_formats(case)
        layer = config(library, case, formats, self.candidate(library, case))
        runner = self.runner(library, case)(layer, device=weights.gate.data.device)
        runner.check_support()
        runner.build()
        view = self.view(library, weights, case)
        scaled = next((name for name in ("w1_scale", "fc1_dequant_scale") if name in view), None)
        return Prepared(case, runner, view, scaled if case.recipe == "fp8_per_tensor" else None,
                        formats.activation == "FP8PerTensor", self.routing, weights)

    def tactics(self, prepared: Prepared, batch: Batch) -> tuple[tuple[Any, ...], ...]:
        if batch.topk_ids is None or not batch.topk_ids.shape[0]:
            return ()
        return self.offered(prepared, prepared.pack(load(), batch))

    def run(self, prepared: Prepared, batch: Batch, out: Tensor, *, tactic: Hashable | None = None,
            workspace: Tensor | None = None) -> None:
        if batch.topk_ids is None:
            raise Refused("the batched activation format is not supported")
        runner, chosen = prepared.runner, named(tactic)
        inputs = prepared.pack(load(), batch)
        into(inputs, out)
        answer = runner.forward(inputs, tactic=chosen, **runner.launch_kwargs_for(inputs))
        if answer.data_ptr() != out.data_ptr():
            raise RuntimeError("the runner did not write into the output that it was given")

    def tune(self, prepared: Prepared, batch: Batch) -> tuple[Any, ...] | None:
        """FlashInfer's ``autotune`` for the bucket of this batch, as ``MoELayer`` asks for one runner; None for no tokens."""
        if batch.topk_ids is None or not batch.topk_ids.shape[0]:
            return None
        library, runner = load(), prepared.runner
        inputs, tuner = prepared.pack(library, batch), library.tuner.get()
        op, options = f"moe_{runner.backend_key}", runner.launch_kwargs_for(inputs)
        before = Statistics.of(tuner)
        with library.autotune(True):
            tuner.choose_one(op, [runner], runner.tuning_config_for(inputs), inputs, **options)
        read = choices(tuner, op, [runner], runner.tuning_config_for(inputs), lambda _: inputs, (batch.topk_ids.shape[0],))
        done = conclude(before, Statistics.of(tuner), read, {op: map(str, self.offered(prepared, inputs))})
        if done.vacuous:
            raise VacuousTuning(done.sentence)
        chosen = named(read[0].tactic)
        return None if chosen == DEFAULT else chosen


def named(tactic: Hashable | None) -> Any:
    """The tuple behind a tactic or its ``str``; -1 for None. Raises ValueError for anything else."""
    if tactic is None:
        return DEFAULT
    try:
        value = ast.literal_eval(tactic) if isinstance(tactic, str) else tactic
    except (ValueError, SyntaxError):
        value = None
    if value == DEFAULT or (isinstance(value, tuple) and value):
        return value
    raise ValueError(f"tactic {tactic!r}; allowed: -1, or a tuple such as ('ffma', 1, 4) or (32, 128, 64, 1, 128, 64, 1)")

