"""What clients leave with the server between two requests: responses, conversations, chat completions.

transcript     what a next turn continues from: messages, and the token ids that were really generated
ids            names of kept things, in the order of their making
"""
