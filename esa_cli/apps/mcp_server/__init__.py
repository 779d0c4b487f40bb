"""A server of the Model Context Protocol (MCP) in front of one asker and the library.

mcp_app, mcp_run                the requests of the protocol; stdio and HTTP
tool_list, tool_jobs            the tools as they are listed; one call in the worker's thread
tool_arguments, tool_results    what a tool takes and returns
document_tools                  find, ask, ingest, list and show
named_documents                 the documents that a name of a request means
document_facts                  facts of the documents that requests may name
library_resources               stored documents as resources of the protocol
asker_on_demand                 the model, loaded when it is first needed
"""
