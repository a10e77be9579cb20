"""OpenAI's wire format: one file for the models of each endpoint, one for its handler."""
