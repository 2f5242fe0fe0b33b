"""Patches of the worker."""
