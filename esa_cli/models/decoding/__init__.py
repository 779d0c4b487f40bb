"""An answer decoded by a CUDA graph: recorded once, and replayed for every token."""
