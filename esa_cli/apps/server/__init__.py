"""An HTTP server with the protocol of OpenAI's chat completions, in front of one asker.

server_app, server_run   the routes; the process that runs them until a signal
wire, completion_json    requests and answers as JSON; http_errors: errors
access                   token, Host and Origin, size of a request
allowed_documents        the documents that a request may name, and their open books
document_routes          their list (document_listing) and their texts (document_texts)
question_page            the page for browsers, made of the files in page_files
worker, streaming        the thread that answers, its queue, and the events of one answer
"""
