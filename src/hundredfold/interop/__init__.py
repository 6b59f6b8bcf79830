"""Other people's trainers on our worlds."""
