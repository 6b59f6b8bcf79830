"""Learning how flexible each customer is, from nothing but answers to offers.

`companion` listens while a policy trains and tells the envs what it believes; it asks a model
(`counting` or `embedding`) to learn from the `answers` it has kept, and `judge` says how well that
went.
"""
