"""OpenAI's Responses.

items     what a response is asked with and answers with, and as messages
"""
