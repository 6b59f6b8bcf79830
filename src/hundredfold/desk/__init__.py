"""Booking desk: quotes, books and routes dial-a-ride trips for a clerk, with a policy of `dvrp`."""
