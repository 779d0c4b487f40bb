"""An HTTP server with the protocol of OpenAI's chat completions, in front of one asker.

server_app          the routes, and the events of one answer
allowed_documents   the documents that a request may name: their list, texts and open books
wire                requests, answers and errors as JSON
access              token, Host and Origin, size of a request
worker              the thread that answers, and its queue
question_page       the page for browsers, made of the files in page_files
server_run          the process that serves until a signal
"""
