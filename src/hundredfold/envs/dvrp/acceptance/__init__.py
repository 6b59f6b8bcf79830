"""Acceptance models: learn each customer's flexibility type from responses to offers.

`belief_model` collects responses while a policy trains, refits a type model (`bayes` or
`embedding`) and exports its beliefs to the envs; `metrics` compares beliefs with the truth.
"""
