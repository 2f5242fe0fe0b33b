"""Ending an engine for good: the reaper, and what kills where there is none."""
