"""The Triton kernels compiled: every tactic against the oracle, bit-exact agreement, large offsets, graphs, tuning."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import moeguard as mg
from moeguard.backends.triton_moe.backend import Triton
from moeguard.backends.triton_moe.tactics import TACTICS, Tactic
from moeguard.checks.session import Session
from moeguard.checks.subject import Resources
from moeguard.core.case import Case
from moeguard.tensors.operand import Batch, Operand, Weights
from moeguard.tensors.problem import Problem

pytest.importorskip("triton", reason="triton is not installed")
pytestmark = pytest.mark.gpu

EVERY = [pytest.param(recipe, number, id=f"{recipe}-{tactic}") for recipe in TACTICS
         for number, tactic in enumerate(TACTICS[recipe])]
ACTIVATIONS: tuple[dict[str, Any], ...] = (
    {"kind": "swiglu"}, {"kind": "geglu"}, {"kind": "geglu_tanh"}, {"kind": "swiglu_oai", "limit": 2.0})
ROUTINGS = ("uniform", "skewed", "invalid_ids", "duplicate_ids", "one_expert")
LAYOUTS = ("nan_padding", "contiguous", "noncontiguous")


@pytest.fixture(scope="module")
def resources() -> Resources:
    return Resources("cuda")


def make_case(recipe: str, shape: tuple[int, int, int, int, int], **fields: Any) -> Case:
    names = ("num_tokens", "hidden_size", "intermediate_size", "num_experts", "top_k")
    return Case.model_validate({"recipe": recipe, "shape": dict(zip(names, shape, strict=True)), **fields})


def force(resources: Resources, case: Case, tactic: Tactic) -> torch.Tensor:
    """The answer of ``tactic``, guarded, judged and witnessed, the same in two executions."""
    session = Session(Triton(), case, resources)
    runs = [session.execute("tactics", "forced", tactic=tactic) for _ in range(2)]
    assert not session.findings, session.findings[0].model_dump_json()
    assert runs[0].ok and runs[1].ok and runs[0].same_bits(runs[1])
    assert session.backend.executed_tactic() == tactic
    return runs[0].answer


@pytest.mark.parametrize(("recipe", "number"), EVERY)
def test_tactic_on_tiled_and_ragged_shapes(resources: Resources, recipe: str, number: int) -> None:
    """Whole tiles with several blocks an expert; then extents that are multiples of 8 alone, shards and biases."""
    tactic = TACTICS[recipe][number]
    for step in range(3):
        turn = number + step
        force(resources, make_case(recipe, (300, 1024, 768, 16, 4), activation=ACTIVATIONS[turn % 4], seed=turn % 2,
                                   routing={"kind": ROUTINGS[turn % 5]}, weights={"bias": turn % 2 == 1}), tactic)
        force(resources, make_case(recipe, (129, 1032, 488, 12, 5), activation=ACTIVATIONS[turn % 4],
                                   layout={"kind": LAYOUTS[turn % 3]}, parallel={"ep_size": 3, "ep_rank": turn % 3},
                                   weights={"bias": turn % 2 == 0}), tactic)
    force(resources, make_case(recipe, (1, 1024, 768, 16, 4)), tactic)


@pytest.mark.parametrize("recipe", TACTICS)
def test_exact_answers_are_equal_for_all_tactics(resources: Resources, recipe: str) -> None:
    """Bit for bit."""
    case = make_case(recipe, (257, 1024, 768, 16, 4), inputs={"kind": "exact"})
    answers = [force(resources, case, tactic) for tactic in TACTICS[recipe]]
    assert all(torch.equal(answer, answers[0]) for answer in answers)


@pytest.mark.parametrize("recipe", TACTICS)
def test_odd_extents_and_ungated(resources: Resources, recipe: str) -> None:
    """Rows of 37 and 221 elements are loaded one by one; the activations without an up projection."""
    for kind in ("relu2", "silu", "gelu"):
        force(resources, make_case(recipe, (33, 221, 37, 4, 2), activation={"kind": kind}), TACTICS[recipe][0])
        force(resources, make_case(recipe, (200, 256, 512, 4, 2), activation={"kind": kind}), TACTICS[recipe][4])


@pytest.mark.parametrize("recipe", TACTICS)
@pytest.mark.parametrize("shape", [(5, 512, 256, 8, 2), (1000, 2048, 768, 64, 8), (0, 512, 256, 8, 2)])
def test_all_checks_are_clean(recipe: str, shape: tuple[int, int, int, int, int]) -> None:
    case = make_case(recipe, shape, routing={"kind": "skewed"})
    verdict = mg.check(Triton(), case, device="cuda")
    assert verdict.passed, verdict.findings[0].model_dump_json()


def test_a_call_can_be_captured_in_a_graph(resources: Resources) -> None:
    """Replayed on other ids and inputs in the same place, the graph gives the answer of an ordinary call."""
    case = make_case("bf16", (64, 1024, 768, 16, 4))
    problem, other = resources.problem(case), resources.problem(case.with_(seed=4))
    backend = Triton()
    assert backend.traits(case).graph_safe
    prepared = backend.prepare(problem.weights, case)
    batch = Batch(Operand(problem.batch.x.data.clone()), _clone(problem.batch.topk_ids), _clone(problem.batch.topk_weights))
    out = torch.empty(problem.output_shape, dtype=torch.bfloat16, device="cuda")
    backend.run(prepared, batch, out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        backend.run(prepared, batch, out)
    for wanted in (other, problem):
        batch.x.data.copy_(wanted.batch.x.data)
        _fill(batch, wanted)
        out.fill_(torch.nan)
        graph.replay()
        plain = torch.empty_like(out)
        backend.run(prepared, wanted.batch, plain)
        assert torch.equal(out, plain)


def test_tuning_returns_an_offered_tactic(resources: Resources) -> None:
    case = make_case("bf16", (512, 1024, 768, 16, 4))
    problem, backend = resources.problem(case), Triton()
    prepared = backend.prepare(problem.weights, case)
    assert backend.tune(prepared, problem.batch) in backend.tactics(prepared, problem.batch)


def test_offsets_beyond_32_bits() -> None:
    """The last of 513 experts of 2**22 elements; rows of x 2**20 apart; more than 2**31 elements of expert outputs."""
    backend = Triton()
    experts, hidden, inter = 513, 2048, 2048
    case = make_case("bf16", (2049, hidden, inter, experts, 1))
    last = _weights(1, hidden, inter)
    assert last.up is not None
    many = Weights(_last_of(experts, last.gate), _last_of(experts, last.up), _last_of(experts, last.down))
    rows = torch.randn(2049, hidden, device="cuda").bfloat16()
    wide = torch.empty(2049 << 20, dtype=torch.bfloat16, device="cuda").as_strided((2049, hidden), (1 << 20, 1))
    wide.copy_(rows)
    single = make_case("bf16", (2049, hidden, inter, 1, 1))
    got, wanted = torch.empty_like(rows), torch.empty_like(rows)
    for tactic in TACTICS["bf16"]:
        backend.run(backend.prepare(many, case), _batch(wide, experts - 1), got, tactic=tactic)
        backend.run(backend.prepare(last, single), _batch(rows, 0), wanted, tactic=tactic)
        assert torch.equal(got, wanted), tactic
        assert bool(wanted.any())


def test_expert_outputs_beyond_32_bits() -> None:
    """262,400 slots of 8,192 columns: the last rows equal those of a small batch."""
    backend, tactic = Triton(), TACTICS["bf16"][6]
    tokens, hidden, inter, top_k = 32800, 8192, 64, 8
    case = make_case("bf16", (tokens, hidden, inter, top_k, top_k))
    prepared = backend.prepare(_weights(top_k, hidden, inter), case)
    x = torch.randn(tokens, hidden, device="cuda").bfloat16()
    ids = torch.arange(top_k, dtype=torch.int32, device="cuda").repeat(tokens, 1)
    weights = torch.rand(tokens, top_k, device="cuda")
    out, few = torch.empty_like(x), torch.empty_like(x[-200:])
    backend.run(prepared, Batch(Operand(x), ids, weights), out, tactic=tactic)
    backend.run(prepared, Batch(Operand(x[-200:]), ids[-200:], weights[-200:]), few, tactic=tactic)
    assert torch.equal(out[-200:], few)


def _weights(experts: int, hidden: int, inter: int) -> Weights:
    def operand(rows: int, columns: int) -> Operand:
        return Operand((torch.randn(experts, rows, columns, device="cuda") * columns**-0.5).bfloat16())

    return Weights(operand(inter, hidden), operand(inter, hidden), operand(hidden, inter))


def _last_of(experts: int, operand: Operand) -> Operand:
    data = torch.empty(experts, *operand.data.shape[1:], dtype=torch.bfloat16, device="cuda")
    data[-1] = operand.data[0]
    return Operand(data)


def _batch(x: torch.Tensor, expert: int) -> Batch:
    ids = torch.full((x.shape[0], 1), expert, dtype=torch.int32, device="cuda")
    return Batch(Operand(x), ids, torch.ones(x.shape[0], 1, device="cuda"))


def _clone(tensor: torch.Tensor | None) -> torch.Tensor:
    assert tensor is not None
    return tensor.clone()


def _fill(batch: Batch, problem: Problem) -> None:
    for target, source in ((batch.topk_ids, problem.batch.topk_ids), (batch.topk_weights, problem.batch.topk_weights)):
        assert target is not None and source is not None
        target.copy_(source)
