"""Transfer: documents to and from other libraries, in one file or a folder at a URL."""
