"""Beyond one machine: slices of a world in Ray actors, each with a copy of the policy."""
