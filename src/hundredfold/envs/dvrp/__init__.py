"""A day of dial-a-ride bookings: who calls, what is offered, what the day costs."""
