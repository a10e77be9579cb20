"""Every way a client can say what an answer has to look like, read into one `AnswerShape`.

asked             the request's fields, and the one of them that asks for something
wishes            what that is, read and not yet judged
response_format   OpenAI's field, with what llama.cpp, SGLang and vLLM put into it
peers             the fields of vLLM, SGLang, llama.cpp and Ollama; `closed` is an option of theirs
structural_tags   fixed text, free text and schemas put together by the client; `part` reads one object of them
source            where a shape was asked for, and how its refusal says so
schemas           schemas audited and compiled for checking, kept by their text
shapes            what was asked → an `AnswerShape`, or a 400; what becomes of a finished text
check             `POST /v1/schemas/check`: the same without an answer
"""
