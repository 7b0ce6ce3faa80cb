"""The oracle and the judge: float64 reference with declared rounding points, error model, limits, exact mode."""
