"""A tiny mixture-of-experts model that knows a set of problems by heart, and transformers' own server for it.

Run with an interpreter that has torch and transformers[serving]:

    python tiny_moe.py train PROBLEMS.jsonl MODEL_DIR
    python tiny_moe.py serve MODEL_DIR PORT [BACKEND]

With BACKEND the experts of the served model are computed by that backend or mutant of moeguard, in bfloat16.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

STEPS, BATCH, LEARNING_RATE, SEED = 550, 8, 4e-3, 0


def train(problems: Path, target: Path) -> None:
    """Train on the problems until it knows them, and save."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import MixtralConfig, MixtralForCausalLM, PreTrainedTokenizerFast

    rows = [json.loads(line) for line in problems.read_text().splitlines()]
    texts = [(f"Question: {row['question']}\nAnswer:", f" {row['answer']}") for row in rows]
    split = pre_tokenizers.Split(Regex(r"\d|\s|[A-Za-z]+|[^\w\s]"), "isolated")
    # transformers looks for stop strings behind a text of its own, which must have tokens
    seen = {piece for pair in texts for text in pair for piece, _ in split.pre_tokenize_str(text)}
    words = sorted({"abcdef"} | seen | set("0123456789"))
    vocabulary = {word: place for place, word in enumerate(["<pad>", "</s>", "<unk>", *words])}
    raw = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    raw.pre_tokenizer, raw.decoder = split, decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="<pad>", eos_token="</s>", unk_token="<unk>")
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    model = MixtralForCausalLM(MixtralConfig(
        vocab_size=len(vocabulary), hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, num_local_experts=4, num_experts_per_tok=2, max_position_embeddings=256, pad_token_id=0,
        eos_token_id=1, bos_token_id=None, sliding_window=None))
    inputs, labels = [], []
    for prompt, answer in texts:
        question, whole = raw.encode(prompt).ids, [*raw.encode(prompt + answer).ids, 1]
        inputs.append(torch.tensor(whole))
        labels.append(torch.tensor([-100] * len(question) + whole[len(question):]))
    x = torch.nn.utils.rnn.pad_sequence(inputs, batch_first=True)
    y = torch.nn.utils.rnn.pad_sequence(labels, batch_first=True, padding_value=-100)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, STEPS)
    model.train()
    for step in range(STEPS):
        chosen = torch.randint(len(x), (BATCH,))
        loss = model(input_ids=x[chosen], attention_mask=(x[chosen] != 0).long(), labels=y[chosen]).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


def serve(model: str, port: str, backend: str | None) -> None:
    """transformers' own server, in this process."""
    from transformers.cli.transformers import main

    if backend is not None:
        _through(backend)
    sys.argv = ["transformers", "serve", model, "--port", port, "--host", "127.0.0.1", "--device", "cpu"]
    main()


def _through(name: str) -> None:
    """Have the experts of Mixtral models computed by a backend of moeguard."""
    from transformers.models.mixtral.modeling_mixtral import MixtralExperts

    from moeguard.backends import registry
    from moeguard.core.case import Case
    from moeguard.mutants.catalogue import HEALTHY, MUTANTS
    from moeguard.tensors.operand import Batch, Operand, Weights

    kernel = next((one() for one in (*MUTANTS, *HEALTHY) if one.name == name), None) or registry.get(name)
    held: dict[int, Any] = {}

    def forward(self: Any, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor) -> torch.Tensor:
        tokens, hidden = hidden_states.shape
        shape = {"num_tokens": tokens, "hidden_size": hidden, "intermediate_size": self.intermediate_dim,
                 "num_experts": self.num_experts, "top_k": top_k_index.shape[-1]}
        case = Case.model_validate({"shape": shape, "recipe": "bf16"})
        if id(self) not in held:
            gate, up = self.gate_up_proj.detach().bfloat16().chunk(2, dim=1)
            weights = Weights(Operand(gate.contiguous()), Operand(up.contiguous()), Operand(self.down_proj.detach().bfloat16()))
            held[id(self)] = kernel.prepare(weights, case)
        logits = torch.zeros(tokens, self.num_experts)
        batch = Batch(Operand(hidden_states.detach().bfloat16()), top_k_index.int(), top_k_weights.float(), logits)
        out = torch.zeros(tokens, hidden, dtype=torch.bfloat16)
        kernel.run(held[id(self)], batch, out)
        return out.to(hidden_states.dtype)

    MixtralExperts.forward = forward


if __name__ == "__main__":
    if sys.argv[1] == "train":
        train(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        serve(sys.argv[2], sys.argv[3], sys.argv[4] if len(sys.argv) > 4 else None)
