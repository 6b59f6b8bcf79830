"""hundredfold."""
