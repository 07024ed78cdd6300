"""What a response carries: JSON, streams, exports, files."""
