"""A server of the Model Context Protocol (MCP) over one `Esa` and the library.

mcp_app          the protocol: requests, jobs, errors; stdio and HTTP
document_tools   the five tools as typed functions, which give their schemas
"""
