"""A server that speaks the language of OpenAI's chat completions, over one asker.

wire     requests as plain data; answers and errors in OpenAI's shapes
worker   the one thread that reads and answers, and the queue before it
allowed_documents  which documents a request may name
guard    who may come in: token, host, size
faults   what went wrong, as an error that says whose mistake it was
app      the routes
"""
