"""Case to tensors: the counter-based generator, operands, weights, inputs and routing."""
