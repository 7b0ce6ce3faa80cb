"""Plain values: case, recipe, numerics, finding, verdict, environment, errors. No torch."""
