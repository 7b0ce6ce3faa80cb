"""What surrounds an execution: poison, guard bands, digests."""
