"""OpenAI's Responses: a conversation that the server keeps.

request   the body of POST /v1/responses; tools: what it says of tools and the text's form in a way of its own
items     what a response is asked with and answers with, and as messages
create    reads a request, with what it goes on from, and answers it
output    the items of an answer as they grow, and the events that tell of it
wire      a response as clients see it, whole and streamed
records   what is kept of responses and conversations, and how a next turn finds it
diagnostics  why a response did not find what another had left in the cache
kept      get, delete, input items, input tokens
background  responses that are made while nobody waits; event_log: their events, for who comes back
conversations  what clients do with conversations
routes    the table of addresses
"""
