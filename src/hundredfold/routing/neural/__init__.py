"""The neural oracle: an attention policy that routes a whole batch of books in one call."""
