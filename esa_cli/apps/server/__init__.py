"""An HTTP server with OpenAI's chat completions and a page for browsers, in front of one `Esa`."""
