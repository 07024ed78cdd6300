"""Writing responses: JSON, streams, exports, files."""
