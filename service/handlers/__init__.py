"""Validated input -> one store call -> answer; one file a resource."""
