"""Cases by property-based generation: boundary tables, profiles, Hypothesis strategies, rounds and shrinking."""
