"""The gateway: HTTP, JSON, text and keys on one side; token ids to an engine on the other. It never loads torch.

Coming up        `__main__` (command line) · `serve` · `options`, `config`, `key_file`, `tenants`, `stores`, `following` · `start_plan`
                 · `app` (composition root) · `server` (socket, signals, drain) · `lifecycle` · `connection`
Around requests  `routes` · `middleware` (id, log line, errors, deadline) · `auth`, `key_store`, `key_watch`, `tenants`, `tenant_file`
                 · `browsers` (Host, Origin, CORS) · `caller` · `errors` · `log` · `body` · `sse`
On the way down  `openai/`, `responses/`, `anthropic/` (wire models and handlers) · `paging`
                 · `conversation`, `turns` (one answer, in nobody's dialect)
                 · `prompts`, `text_threads` (tokenising off the loop) · `splicing`, `known_ids`, `spoken` (the ids of the turn
                 before) · `chat_template`,
                 `message_adapter`, `template_sandbox` · `tokenizer`, `special_tokens` · `tools/` (what may be called)
                 · `structured/` (what shape is asked for) · `reply_format`, `reasoning`, `replies` (grammar and parser of a
                 reply) · `kept` (all that for the next request) · `desk` (takes places in the engine's queue, submits, and
                 owns what is in flight)
On the way up    `generation` (engine events to pieces of text) · `pieces` · `reply`, `attribution` (thoughts and calls)
                 · `detokenizer` · `stops` · `openai/answer` (whole or streamed)
Between them     `sessions/` (what clients leave here) · `caching/` (what requests have of the cache)
Looking in       `health` · `metrics` · `admin`, `faulty_store` · `docs` · `version`
Commands         `pull` · `keys_cli` · `chat_cli` · `bench` · `doctor` · `api_client`

Rules that show on the wire
---------------------------
* A field that is unknown or not served is a 400 naming it; only fields that change no answer are accepted and unused
  (`user`, `metadata`, `safety_identifier`, `service_tier: auto`). `null` is absent.
* A prompt alone longer than the context, and a prompt plus an explicit `max_tokens` longer than it, are 400
  `context_length_exceeded`. Without `max_tokens` a chat may use what is left, a completion 16 of it.
* The token that ends an answer is counted in `usage` and not shown; with a stop string the count goes up to the token that
  completed it. Stop strings do not apply before `min_tokens`.
* `priority` is 0 (first) to 1000: a request may give way, not overtake. `top_p: 0` is greedy.
* A stream's headers wait up to a second for the first token, so that an early failure has its own status; later ones are
  an event `{"error": …}` and the end, without `[DONE]`. Before that they wait until a grammar is compiled or refused.
* At most one field says what an answer has to look like. All of it is enforced, or the request is refused by path and
  keyword; only `response_format` without `strict` may leave something to be checked and reported.
* What is asked of the cache changes no answer, and is told as it was applied. Without a word about it a prompt is matched and
  left for others, and nothing is promised. A request that could not be honoured (a pin where nothing is written, a prewarm
  that would be bypassed) is a 400.
* Without API keys the server listens on loopback only, answers to its own host names only, and refuses requests that a
  foreign web page causes. `cors_origins: *` needs API keys. Every route but the health ones needs a key
  once there are keys; `/admin` needs the admin key, which opens everything else too.
"""
