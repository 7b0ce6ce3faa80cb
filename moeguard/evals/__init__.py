"""Spot checks of whole models: paired evaluations of two serving arms, and what they can and cannot tell."""
