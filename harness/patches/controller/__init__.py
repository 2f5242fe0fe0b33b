"""Patches of the controller."""
