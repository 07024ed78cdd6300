"""What a request brings: its body, its JSON, its parameters."""
