"""Campaigns: scenarios, worker processes, journal, run directories."""
