"""Beyond one machine: slices of an env in Ray actors, each with a copy of the policy."""
