"""Anthropic's Messages, for clients that speak them.

request        the body of POST /v1/messages
blocks         its system, tools and messages, as the messages that a template reads
cache_control  where entries are to stand in the prompt, and the rules for saying so
messages       reads a request, answers it, and counts its tokens
wire           a message as clients see it, whole and streamed; errors: what they are told when something goes wrong
"""
