"""How an engine's failure is told: how its processes ended, where they hung, in one error."""
