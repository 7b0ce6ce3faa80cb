"""Transformer models whose MoE layers are computed by backends: what a kernel's answer does to logits and to text."""
