"""What clients leave with the server between two requests: responses, conversations, chat completions.

ids            names of kept things, in the order of their making
sessions       the front of the store they are in: what it does while that is unavailable
journal        changes that the store does not have yet
metrics        how the store is doing, for Prometheus
"""
