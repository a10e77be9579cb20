"""OpenAI's wire format.

`fields` (strict parsing, one clear sentence per error) · `sampling` (fields that chat and completions share) · `messages`,
`template_kwargs` ·
`chat`, `completions` (request, handler and writer of each) · `answer` (what both do: whole or streamed) · `reply_wire` (thoughts and calls) · `logprobs` ·
`models` · `tokenize` · `stored` (completions that are kept)
"""
