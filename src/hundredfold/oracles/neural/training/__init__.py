"""Training of the routing policy: imitation of searched plans, then practice on its own."""
