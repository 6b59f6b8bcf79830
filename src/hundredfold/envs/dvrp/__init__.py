"""Dynamic dial-a-ride: trips are booked one by one, with offers of time-window shifts."""
