"""An HTTP server with the protocol of OpenAI's chat completions, in front of one asker.

server_app, server_run   the routes; the process that runs them until a signal
wire, http_errors        requests, answers and errors as JSON
access                   token, Host and Origin, size of a request
allowed_documents        the files that a request may name, and their open books
worker, streaming        the thread that answers, its queue, and the events of one answer
"""
