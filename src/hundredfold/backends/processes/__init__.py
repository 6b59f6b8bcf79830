"""Worker processes over shared memory."""
