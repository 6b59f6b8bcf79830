"""The data that travels, the promises between rooms, random streams, errors."""
