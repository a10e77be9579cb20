"""The whole server from outside: real processes, real sockets, the official client.

The hash model makes the answers exact: `tests.bench.hash_oracle` says what each must be. `server` starts and ends the
processes, `traffic` asks and checks, `wire` speaks bytes where a client library would be too polite. `chats` reads chat
completions strictly, whole and streamed, and `thinker` makes a model that has thoughts and calls of its own and says noise.
"""
